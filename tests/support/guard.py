"""A device that is not there: arrays that behave like CuPy's towards NumPy.

``numpy.asarray`` of a guarded array raises, as it does for CuPy; every function of
the guarded namespace refuses bare NumPy arrays, as CuPy does. A kernel that runs on
it therefore moves data only through the backend. Calls that CuPy answers otherwise than NumPy are
refused: from "Differences between CuPy and NumPy" in CuPy's user guide, and from its sources where
that page is silent (indices, casts, sums by atomics, and transforms whose input is no spectrum of
real pixels). That CuPy has a function and takes its arguments is seen on a GPU alone (``gpu``).
"""

from types import ModuleType
from typing import Any

import numpy as np
import scipy.fft
import scipy.ndimage

from tilewright.kernels.backend import Backend

#: Of the largest value of a spectrum: rounding of float32 transforms leaves 1e-6.
_HERMITIAN = 1e-5


class GuardError(TypeError):
    """A device would not take this, or would answer otherwise."""


def check_dtype(array: Any) -> None:
    """Refuse arrays of what is no number, or wider than float64: CuPy has none."""
    kind = array.dtype.kind
    if kind not in "biufc" or array.dtype.itemsize > (16 if kind == "c" else 8):
        raise GuardError(f"CuPy has no arrays of {array.dtype}")


def check_cast(values: Any, dtype: Any) -> None:
    """Refuse to make integers of what they cannot hold: undefined in C++, so each device's own."""
    values, dtype = np.asarray(values), np.dtype(dtype)
    if values.dtype.kind != "f" or dtype.kind not in "iu" or not values.size:
        return
    limits = np.iinfo(dtype)
    if not (values.min() > limits.min - 1.0 and values.max() < limits.max + 1.0):
        raise GuardError(f"{values.min()} … {values.max()} as {dtype} is another number on a GPU")


def check_index(shape: tuple[int, ...], at: Any, is_set: bool) -> None:
    """Refuse two masks in one index, and places that are set twice: any of the values stays."""
    parts = at if isinstance(at, tuple) else (at,)
    arrays = [np.asarray(part) for part in parts if isinstance(part, np.ndarray | list)]
    if sum(array.dtype == bool for array in arrays) > 1:
        raise GuardError("CuPy takes one mask in an index")
    if is_set and any(array.ndim and array.dtype.kind in "iu" for array in arrays):
        places = np.arange(np.prod(shape, dtype=int)).reshape(shape)[at]
        if np.unique(places).size < places.size:
            raise GuardError("a place is set twice: on a GPU any of its values stays")


def check_call(name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a function or method by what it is given."""
    if isinstance(function, np.ufunc) and any(isinstance(value, list | tuple) for value in args):
        raise GuardError(f"{name}: CuPy's ufuncs take arrays and scalars, no lists")
    if name == "array.astype":
        check_cast(args[0], args[1] if len(args) > 1 else kwargs["dtype"])
    if name == "ndimage.map_coordinates" and kwargs.get("order", 3) > 1:
        # CuPy 14 takes the pixel before a position in the image's precision, and the fraction in
        # that of the positions: where these disagree, the value is that of the next pixel.
        precision = np.promote_types(args[0].dtype, np.float32)
        if (np.floor(args[1].astype(precision)) != np.floor(args[1])).any():
            raise GuardError("map_coordinates: a position just below a pixel is read one pixel off")


def check_spectrum(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], image: Any) -> None:
    """Refuse what is no spectrum of a real image: cuFFT reads another half of it than SciPy."""
    if not name.startswith("fft.irfft"):
        return
    forward = getattr(scipy.fft, name.removeprefix("fft.i"))
    axes = {key: kwargs[key] for key in ("axes", "axis") if key in kwargs}
    spectrum, again = args[0], forward(image, **axes)
    if spectrum.shape != again.shape:
        raise GuardError(f"{name}: a spectrum of {spectrum.shape} for an image of {image.shape}")
    largest = float(np.abs(spectrum).max(initial=0))
    if float(np.abs(again - spectrum).max(initial=0)) > _HERMITIAN * largest:
        raise GuardError(f"{name}: not the spectrum of a real image")


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
        return _wrap(value)

    def __getitem__(self, key: Any) -> Any:
        at = _unwrap(key)
        check_index(self._host.shape, at, False)
        found = self._host[at]
        if isinstance(found, np.generic):  # CuPy's single elements are views of their array
            found = self._host[(*at, ...) if isinstance(at, tuple) else (at, ...)]
        return _wrap(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        at, new = _unwrap(key), _unwrap(value)
        check_index(self._host.shape, at, True)
        check_cast(new, self._host.dtype)
        self._host[at] = new

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (_wrap(item) for item in self._host)


def _operator(name: str, in_place: bool) -> Any:
    def method(self: GuardedArray, *operands: Any) -> Any:
        values = [_unwrap(value) for value in operands]
        result = getattr(self._host, name)(*values)
        if in_place:
            self._host = result
        return self if in_place else _wrap(result)

    return method


_ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
_ARITHMETIC += ["and", "or", "xor", "lshift", "rshift"]
_IN_PLACE = [f"i{name}" for name in _ARITHMETIC if name != "matmul"]  # CuPy's have no ``@=``
# No ``index``: CuPy's arrays are not taken as bounds of slices, lengths or places of lists.
_OTHERS = ["lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs", "invert"]
_OTHERS += ["float", "int", "bool", *(f"r{name}" for name in _ARITHMETIC)]
for _name in [*_ARITHMETIC, *_OTHERS, *_IN_PLACE]:
    setattr(GuardedArray, f"__{_name}__", _operator(f"__{_name}__", _name in _IN_PLACE))


def _wrap(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        check_dtype(value)
        return GuardedArray(np.asarray(value))  # a device has no scalars
    if isinstance(value, tuple | list):
        items = [_wrap(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, GuardedArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise GuardError("a NumPy array was handed to a device function")
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(item) for item in value)
    return value


def _wrap_function(name: str, function: Any, *this: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        given = tuple(_unwrap(arg) for arg in args)
        named = {key: _unwrap(arg) for key, arg in kwargs.items()}
        check_call(name, function, (*this, *given), named)
        result = function(*given, **named)
        check_spectrum(name, given, named, result)
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
            return _door(value)
        if isinstance(value, ModuleType):
            return GuardedNamespace(value, full)
        if isinstance(value, type) or not callable(value):
            return value
        return _wrap_function(full, value)


def _door(function: Any) -> Any:
    def call(data: Any, *args: Any, **kwargs: Any) -> Any:
        host = data._host if isinstance(data, GuardedArray) else data
        result = function(host, *args, **kwargs)
        check_cast(host, result.dtype)
        return _wrap(result)

    return call


class GuardedBackend(Backend):
    """Its arrays come back by their own method, as CuPy's do."""

    def to_numpy(self, array: Any) -> Any:
        return array.get() if isinstance(array, GuardedArray) else array


def guarded_backend() -> Backend:
    """Return a CPU backend whose arrays refuse NumPy, as CuPy's do."""
    modules = GuardedNamespace(np, "xp"), GuardedNamespace(scipy.fft, "fft")
    return GuardedBackend("cpu", *modules, GuardedNamespace(scipy.ndimage, "ndimage"))
