"""What kernels ask of a device: the kinds of calls that the guarded tests make.

A kind is a name (``xp.sum``, ``array.__add__``) with the kinds of its arguments, of those given by
keyword, and of its result: ``["float32[2]", {"axis": "int"}, "float32[1]"]``. The table of all,
``tests/kernels/cupy_calls.json``, is what ``tests/kernels/test_cupy_calls.py`` binds to the real
CuPy, which needs no GPU for it. ``python -m tests.support.record_calls`` writes it anew.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).resolve().parents[1] / "kernels/cupy_calls.json"
#: Set while the table is written: kinds that it lacks are taken down, not refused.
RECORDING = "TILEWRIGHT_RECORD_CALLS"

#: What is asked of CuPy alone, in ``kernels.backend`` and ``kernels.device_memory``.
DEVICE_ONLY = {
    "xp.asnumpy": ["float32[2]", {}, "float32[2]"],
    "xp.cuda.MemoryPool.free_all_blocks": ["MemoryPool", {}, "None"],
    "xp.cuda.MemoryPool.get_limit": ["MemoryPool", {}, "int"],
    "xp.cuda.MemoryPool.set_limit": ["MemoryPool", {"size": "int"}, "None"],
    "xp.cuda.MemoryPool.total_bytes": ["MemoryPool", {}, "int"],
    "xp.cuda.MemoryPool.used_bytes": ["MemoryPool", {}, "int"],
    "xp.cuda.PinnedMemoryPool.free_all_blocks": ["PinnedMemoryPool", {}, "None"],
    "xp.cuda.memory.OutOfMemoryError": [{}, "type"],
    "xp.cuda.runtime.CUDARuntimeError": [{}, "type"],
    "xp.cuda.runtime.deviceSynchronize": [{}, "None"],
    "xp.cuda.runtime.driverGetVersion": [{}, "int"],
    "xp.cuda.runtime.getDeviceCount": [{}, "int"],
    "xp.cuda.runtime.memGetInfo": [{}, "(int, int)"],
    "xp.fft.config.get_plan_cache": [{}, "PlanCache"],
    "xp.get_default_memory_pool": [{}, "MemoryPool"],
    "xp.get_default_pinned_memory_pool": [{}, "PinnedMemoryPool"],
}

#: Kinds of calls by name, each as its line of JSON.
Calls = dict[str, set[str]]
seen: Calls = {}


class UnknownCallError(AssertionError):
    """A kind of call that the table lacks, so that nothing has bound it to CuPy."""


@functools.cache
def table() -> Calls:
    """Return the kinds of calls that are bound to CuPy."""
    calls = json.loads(TABLE.read_text())
    return {name: {json.dumps(kind) for kind in kinds} for name, kinds in calls.items()}


def write_table() -> int:
    """Write what was seen in this process as the table, and return how many kinds there are."""
    calls = seen | {name: {json.dumps(kind)} for name, kind in DEVICE_ONLY.items()}
    parts = [
        f" {json.dumps(name)}: [\n  " + ",\n  ".join(sorted(kinds)) + "\n ]"
        for name, kinds in sorted(calls.items())
    ]
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return sum(map(len, calls.values()))


def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Take down a call, whose device arrays are given as NumPy's.

    Raises
    ------
    UnknownCallError
        The table has no such kind.
    """
    if isinstance(result, np.generic):  # a device has no scalars
        result = np.asarray(result)
    named = {key: _kind(value) for key, value in sorted(kwargs.items())}
    kind = json.dumps([*map(_kind, args), named, _kind(result)])
    if kind in seen.setdefault(name, set()):
        return
    seen[name].add(kind)
    if not os.environ.get(RECORDING) and kind not in table().get(name, set()):
        raise UnknownCallError(
            f"{name} {kind} is not in {TABLE.name}: `python -m tests.support.record_calls` puts it "
            "there, and tests/kernels/test_cupy_calls.py then binds it to CuPy"
        )


def _kind(value: Any) -> str:
    """Return the kind of an argument: what decides which CuPy takes it, and how."""
    if isinstance(value, Host):
        return f"host {value.dtype}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{value.ndim}]"
    if isinstance(value, np.generic):
        return f"np.{value.dtype}"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, list):
        return f"[{' or '.join(sorted({_kind(item) for item in value}))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_kind, value))})"
    if isinstance(value, slice):
        return "slice" if value.step is None else "slice by step"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"dtype {np.dtype(value)}"
    return "None" if value is None else type(value).__name__


class Host:
    """Data of the host that goes to the device."""

    def __init__(self, data: Any) -> None:
        array = np.asarray(data)
        self.dtype = array.dtype
