"""Calls that CuPy takes and answers otherwise than NumPy; a kernel that makes one is refused.

From "Differences between CuPy and NumPy" in CuPy's user guide, and from its sources where that page
is silent: indices, casts, sums by atomics and transforms whose input is no spectrum of real pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.fft

#: Of the largest value of a spectrum: rounding of float32 transforms leaves 1e-6.
_HERMITIAN = 1e-5
#: Sums of whole numbers below 2**53 do not depend on their order.
_EXACT = 2.0**53


class GuardError(TypeError):
    """A device would not take this, or would answer otherwise."""


def check_dtype(array: Any) -> None:
    """Refuse arrays of what is no number, or wider than float64: CuPy has none."""
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 8 * (
        1 + (array.dtype.kind == "c")
    ):
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
    if name == "xp.bincount":
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        if weights is not None and not np.array_equal(
            np.clip(np.rint(weights), -_EXACT, _EXACT), weights
        ):
            raise GuardError("bincount adds weights in any order: whole numbers give the same sum")
    if name == "ndimage.map_coordinates" and kwargs.get("order", 3) > 1:
        check_positions(args[0], args[1])
    if name.endswith("sort") and kwargs.get("kind") not in (None, "stable"):
        raise GuardError(f"{name}: CuPy sorts stably only")


def check_positions(image: Any, positions: Any) -> None:
    """Refuse positions whose pixel is another one in the precision of the image.

    CuPy 14 takes the pixel before a position in the image's precision, and the fraction in that of
    the positions: where these disagree, the value is that of the next pixel.
    """
    precision = np.promote_types(np.asarray(image).dtype, np.float32)
    if (np.floor(positions.astype(precision)) != np.floor(positions)).any():
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
