"""A device that is not there: arrays that behave like CuPy's towards NumPy.

``numpy.asarray`` of a guarded array raises, as it does for CuPy; every function of
the guarded namespace refuses bare NumPy arrays, as CuPy does. A kernel that runs on
it therefore moves data only through the backend.
"""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import numpy as np
import scipy.fft
import scipy.ndimage

from tilewright.kernels.backend import Backend


class GuardError(TypeError):
    """NumPy and the guarded namespace were mixed."""


class GuardedArray:
    """An array on the pretended device."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: Any) -> None:
        self._host = host

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise GuardError("implicit conversion of a device array to NumPy")

    def get(self) -> Any:
        return np.array(self._host)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):  # the doors that NumPy tries before `__array__`
            raise AttributeError(name)
        value = getattr(self._host, name)
        return _wrap_function(value) if callable(value) else _wrap(value)

    def __getitem__(self, key: Any) -> Any:
        return _wrap(self._host[_unwrap_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[_unwrap_index(key)] = _unwrap(value)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (_wrap(item) for item in self._host)

    def __float__(self) -> float:
        return float(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __index__(self) -> int:
        return operator.index(self._host)


def _binary(name: str) -> Any:
    def method(self: GuardedArray, other: Any) -> Any:
        return _wrap(getattr(self._host, name)(_unwrap(other)))

    return method


def _inplace(name: str) -> Any:
    def method(self: GuardedArray, other: Any) -> GuardedArray:
        self._host = getattr(self._host, name)(_unwrap(other))
        return self

    return method


def _unary(name: str) -> Any:
    def method(self: GuardedArray) -> Any:
        return _wrap(getattr(self._host, name)())

    return method


_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]
for _name in _BINARY:
    setattr(GuardedArray, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(GuardedArray, f"__r{_name}__", _binary(f"__r{_name}__"))
    setattr(GuardedArray, f"__i{_name}__", _inplace(f"__i{_name}__"))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(GuardedArray, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(GuardedArray, f"__{_name}__", _unary(f"__{_name}__"))


def _wrap(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return GuardedArray(value)
    if isinstance(value, tuple):
        items = [_wrap(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, GuardedArray):
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise GuardError("a NumPy array was handed to a device function")
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(item) for item in value)
    return value


def _unwrap_index(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_unwrap(item) for item in key)
    return _unwrap(key)


def _wrap_function(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        result = function(
            *(_unwrap(arg) for arg in args), **{key: _unwrap(arg) for key, arg in kwargs.items()}
        )
        return out if isinstance(out, GuardedArray) else _wrap(result)

    return call


class GuardedNamespace:
    """A module whose functions take and return guarded arrays only.

    ``asarray`` and ``array`` are the doors: they accept host data.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name in ("asarray", "array", "ascontiguousarray"):
            return lambda data, *args, **kwargs: _wrap(
                value(data._host if isinstance(data, GuardedArray) else data, *args, **kwargs)
            )
        if isinstance(value, type) or not callable(value):
            return GuardedNamespace(value) if isinstance(value, ModuleType) else value
        return _wrap_function(value)


class GuardedBackend(Backend):
    """Its arrays come back by their own method, as CuPy's do."""

    def to_numpy(self, array: Any) -> Any:
        return array.get() if isinstance(array, GuardedArray) else array


def guarded_backend() -> Backend:
    """Return a CPU backend whose arrays refuse NumPy, as CuPy's do."""
    return GuardedBackend(
        "cpu",
        GuardedNamespace(np),
        GuardedNamespace(scipy.fft),
        GuardedNamespace(scipy.ndimage),
    )
