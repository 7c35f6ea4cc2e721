"""What kernels ask of a device: the kinds of calls that the guarded tests make.

A kind is a name (``xp.sum``, ``array.__add__``) with the kinds of its arguments, of those given by
keyword, and of its result: ``["float32[2]", {"axis": "int"}, "float32[1]"]``. The table of all,
``tests/kernels/cupy_calls.json``, is what ``tests/kernels/test_cupy_calls.py`` binds to the real
CuPy, which needs no GPU for it. ``python -m tests.support.record_calls`` writes it anew.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).resolve().parents[1] / "kernels/cupy_calls.json"
#: Set while the table is written: kinds that it lacks are taken down, not refused.
RECORDING = "TILEWRIGHT_RECORD_CALLS"

#: How names begin that are asked of CuPy alone, in ``kernels.backend`` and ``device_memory``: no
#: guarded test makes such calls, and they are written into the table by hand.
DEVICE_ONLY = ("xp.asnumpy", "xp.cuda.", "xp.fft.", "xp.get_default_")

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


def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Take down a call, whose device arrays are given as NumPy's; raise if the table lacks it."""
    if isinstance(result, np.generic):  # a device has no scalars
        result = np.asarray(result)
    named = {key: _kind(value) for key, value in sorted(kwargs.items())}
    kind = json.dumps([*map(_kind, args), named, _kind(result)])
    if kind in seen.setdefault(name, set()):
        return
    if not os.environ.get(RECORDING) and kind not in table().get(name, set()):
        raise UnknownCallError(
            f"{name} {kind} is not in {TABLE.name}: `python -m tests.support.record_calls` puts it "
            "there, and tests/kernels/test_cupy_calls.py then binds it to CuPy"
        )
    seen[name].add(kind)


def _kind(value: Any) -> str:
    """Return the kind of an argument: what decides which CuPy takes it, and how."""
    match value:
        case Host():
            return f"host {value.dtype}"
        case np.ndarray():
            return f"{value.dtype}[{value.ndim}]"
        case np.generic():
            return f"np.{value.dtype}"
        case str():
            return repr(value)
        case list():
            return f"[{' or '.join(sorted({_kind(item) for item in value}))}]"
        case tuple():
            return f"({', '.join(map(_kind, value))})"
        case slice():
            return "slice" if value.step is None else "slice by step"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"dtype {np.dtype(value)}"
    return "None" if value is None else type(value).__name__


class Host:
    """Data of the host that goes to the device."""

    def __init__(self, data: Any) -> None:
        self.dtype = np.asarray(data).dtype
