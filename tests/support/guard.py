"""A device that is not there: arrays that behave like CuPy's towards NumPy.

``numpy.asarray`` of a guarded array raises, as it does for CuPy; every function of
the guarded namespace refuses bare NumPy arrays, as CuPy does. A kernel that runs on
it therefore moves data only through the backend. Each kind of call is held against the
table of those that are bound to CuPy (:mod:`tests.support.device_calls`); those that
CuPy answers otherwise are refused (:mod:`tests.support.device_differences`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import scipy.fft
import scipy.ndimage

from tests.support import device_calls
from tests.support.device_calls import Host
from tests.support.device_differences import (
    GuardError,
    check_call,
    check_cast,
    check_dtype,
    check_index,
    check_spectrum,
)
from tilewright.kernels.backend import Backend


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
        if callable(value):
            return _wrap_function(f"array.{name}", value, self._host)
        device_calls.note(f"array.{name}", (), {}, value)
        return _wrap(value)

    def __getitem__(self, key: Any) -> Any:
        at = _unwrap_index(key)
        check_index(self._host.shape, at, False)
        found = self._host[at]
        if isinstance(found, np.generic):  # CuPy's single elements are views of their array
            found = self._host[(*at, ...) if isinstance(at, tuple) else (at, ...)]
        device_calls.note("array.__getitem__", (self._host, at), {}, found)
        return _wrap(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        at, new = _unwrap_index(key), _unwrap(value)
        check_index(self._host.shape, at, True)
        check_cast(new, self._host.dtype)
        device_calls.note("array.__setitem__", (self._host, at, new), {}, None)
        self._host[at] = new

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        device_calls.note("array.__iter__", (self._host,), {}, None)
        return (_wrap(item) for item in self._host)


def _binary(name: str) -> Any:
    def method(self: GuardedArray, other: Any) -> Any:
        value = _unwrap(other)
        result = getattr(self._host, name)(value)
        device_calls.note(f"array.{name}", (self._host, value), {}, result)
        return _wrap(result)

    return method


def _inplace(name: str) -> Any:
    def method(self: GuardedArray, other: Any) -> GuardedArray:
        value = _unwrap(other)
        self._host = getattr(self._host, name)(value)
        device_calls.note(f"array.{name}", (self._host, value), {}, self._host)
        return self

    return method


def _unary(name: str) -> Any:
    def method(self: GuardedArray) -> Any:
        result = getattr(self._host, name)()
        device_calls.note(f"array.{name}", (self._host,), {}, result)
        return _wrap(result)

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
    if _name != "matmul":  # CuPy's arrays have no ``@=``
        setattr(GuardedArray, f"__i{_name}__", _inplace(f"__i{_name}__"))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(GuardedArray, f"__{_name}__", _binary(f"__{_name}__"))
# No ``index``: CuPy's arrays are not taken as bounds of slices, lengths or places of lists.
for _name in ("neg", "pos", "abs", "invert", "float", "int", "bool"):
    setattr(GuardedArray, f"__{_name}__", _unary(f"__{_name}__"))


def _wrap(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        check_dtype(value)
        return GuardedArray(np.asarray(value))  # a device has no scalars
    if isinstance(value, tuple):
        items = [_wrap(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, GuardedArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise GuardError("a NumPy array was handed to a device function")
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(item) for item in value)
    return value


def _unwrap_index(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_unwrap(item) for item in key)
    return _unwrap(key)


def _wrap_function(name: str, function: Any, *this: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        given = tuple(_unwrap(arg) for arg in args)
        named = {key: _unwrap(arg) for key, arg in kwargs.items()}
        check_call(name, function, (*this, *given), named)
        if name.endswith("argsort"):
            named["kind"] = "stable"  # CuPy's only one
        result = function(*given, **named)
        check_spectrum(name, given, named, result)
        device_calls.note(name, (*this, *given), named, result)
        return out if isinstance(out, GuardedArray) else _wrap(result)

    return call


class GuardedNamespace:
    """A module whose functions take and return guarded arrays only.

    ``asarray`` and ``array`` are the doors: they accept host data.
    """

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name == "set_workers":  # threads of the host
            raise AttributeError(name)
        value, full = getattr(self._module, name), f"{self._name}.{name}"
        if name in ("asarray", "array", "ascontiguousarray"):
            return _door(full, value)
        if isinstance(value, ModuleType):
            return GuardedNamespace(value, full)
        if isinstance(value, type) or not callable(value):
            device_calls.note(full, (), {}, value)
            return value
        return _wrap_function(full, value)


def _door(name: str, function: Any) -> Any:
    def call(data: Any, *args: Any, **kwargs: Any) -> Any:
        of_device = isinstance(data, GuardedArray)
        host = data._host if of_device else data
        result = function(host, *args, **kwargs)
        check_cast(host, result.dtype)
        device_calls.note(name, (host if of_device else Host(host), *args), kwargs, result)
        return _wrap(result)

    return call


class GuardedBackend(Backend):
    """Its arrays come back by their own method, as CuPy's do."""

    def to_numpy(self, array: Any) -> Any:
        return array.get() if isinstance(array, GuardedArray) else array


def guarded_backend() -> Backend:
    """Return a CPU backend whose arrays refuse NumPy, as CuPy's do."""
    return GuardedBackend(
        "cpu",
        GuardedNamespace(np, "xp"),
        GuardedNamespace(scipy.fft, "fft"),
        GuardedNamespace(scipy.ndimage, "ndimage"),
    )
