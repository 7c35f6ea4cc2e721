"""Other CPUs on this one: environments and arithmetic that change the last bits of results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

umath: Any = importlib.import_module("numpy._core._multiarray_umath")

#: What NumPy takes from the C library or from vector instructions, without correct rounding.
_FUNCTIONS = ("exp", "sin", "cos", "tan", "arcsin", "arctan2", "hypot", "log", "power", "sinc")


def environments() -> dict[str, dict[str, str]]:
    """Return an environment for each level of instructions that NumPy has code for here.

    The lowest also takes FMA from the C library and AVX from OpenBLAS, and one thread.
    """
    usable = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    levels = {
        "-".join(["without", *usable[k:]]): {"NPY_DISABLE_CPU_FEATURES": " ".join(usable[k:])}
        for k in range(len(usable))
    }
    lowest = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(usable),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return {"all": {}, **levels, "lowest": lowest}


def disturb() -> None:
    """Make NumPy's functions, of this process, wrong by up to two units in the last place.

    A CPU with instructions that this one lacks may round so.
    """
    rng = np.random.default_rng(0)

    def disturbed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            exact = np.asarray(function(*args, **kwargs))
            steps = rng.integers(-2, 3, exact.shape)
            return exact * (1 + steps * np.finfo(exact.real.dtype).eps / 2)

        return call

    for name in _FUNCTIONS:
        setattr(np, name, disturbed(getattr(np, name)))
