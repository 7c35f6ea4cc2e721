"""Transforms and subtractions of backgrounds on disk.

Both are an ``.npz`` with the arrays, and a ``.json`` with numbers to read.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tilewright.io.results.result_file import (
    json_value,
    result_file_errors,
    result_path,
    write_json,
)
from tilewright.kernels.register.warp import Transform


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays that ``numpy.load`` reads without pickle, atomically."""
    with (
        result_path(path) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in arrays.items():
            # An entry opened by its name is dated 1980, so that equal arrays give equal bytes.
            with archive.open(f"{name}.npy", "w") as file:
                npy.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read what :func:`write_npz` wrote; call it within ``result_file_errors``."""
    # Opened here, because numpy leaves the file open when it is not a zip.
    with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


_ARRAYS = ("affine", "field", "origin_px", "block_px", "confidence")


def write_transform(transform: Transform, npz_path: str | Path, json_path: str | Path) -> None:
    """Write a transform; the same transform gives the same bytes.

    Parameters
    ----------
    npz_path : Path
        Arrays of :class:`~tilewright.kernels.register.warp.Transform`, readable by ``numpy.load``;
        ``quality`` in it is the JSON text.
    json_path : Path
        The quality numbers and the affine part.
    """
    text = json.dumps(dict(transform.quality), sort_keys=True, allow_nan=False)
    arrays = {name: np.asarray(getattr(transform, name)) for name in _ARRAYS}
    arrays["quality"] = np.frombuffer(text.encode(), np.uint8)
    summary = dict(transform.quality) | {"affine": transform.affine.tolist()}
    write_json(Path(json_path), summary, indent=2, sort_keys=True)
    write_npz(Path(npz_path), arrays)


def read_transform(npz_path: str | Path) -> Transform:
    """Read a transform written by :func:`write_transform`.

    Raises
    ------
    ResultFileError
        The file is not a transform.
    """
    with result_file_errors(npz_path, "transform"):
        data = read_npz(npz_path)
        values: dict[str, Any] = {name: data[name] for name in _ARRAYS}
        quality = json.loads(data["quality"].tobytes())
    values["block_px"] = float(values["block_px"])
    return Transform(**values, quality=quality)


@dataclass(frozen=True)
class Subtraction:
    """Subtraction of a background from one channel of the image.

    Attributes
    ----------
    cycle, channel, marker
        The channel.
    background : str
        Marker whose image was subtracted.
    method : {"exposure", "regression"}
        Source of the factor.
    factor : float
        Factor by which the background was multiplied.
    oversubtracted : float
        Share of the subtracted light that the channel did not hold; ``nan``: none was subtracted.
    before, light : float32 (y, x)
        Overviews of the registered channel and background before.
    """

    cycle: int
    channel: str
    marker: str
    background: str
    method: str
    factor: float
    oversubtracted: float
    before: NDArray[np.float32]
    light: NDArray[np.float32]

    @property
    def expected(self) -> NDArray[np.float32]:
        """The overview after subtraction."""
        return np.maximum(self.before - np.float32(self.factor) * self.light, 0)


def write_subtractions(
    subtractions: Sequence[Subtraction], npz_path: Path, json_path: Path
) -> None:
    """Write both files atomically; the same input gives the same bytes."""
    # All but the overviews, which are the last two.
    names = [field.name for field in fields(Subtraction)][:-2]
    rows = [json_value({name: getattr(one, name) for name in names}) for one in subtractions]
    write_json(json_path, rows)
    arrays: dict[str, NDArray[Any]] = {}
    for subtraction, row in zip(subtractions, rows, strict=True):
        at = f"{subtraction.cycle}/{subtraction.channel}"
        arrays[f"{at}/before"], arrays[f"{at}/light"] = subtraction.before, subtraction.light
        text = json.dumps({**row, "factor": subtraction.factor}, allow_nan=False)
        arrays[f"{at}/numbers"] = np.frombuffer(text.encode(), np.uint8)
    write_npz(npz_path, arrays)


def read_subtraction(npz_path: Path, cycle: int, channel: str) -> Subtraction | None:
    """Return the subtraction from a channel, None where nothing was subtracted.

    Raises
    ------
    ResultFileError
        The file is not of :func:`write_subtractions`.
    """
    at = f"{cycle}/{channel}"
    with result_file_errors(npz_path, "record of what was subtracted"):
        data = read_npz(npz_path)
        if f"{at}/numbers" not in data:
            return None
        numbers = json.loads(data[f"{at}/numbers"].tobytes())
        if numbers["oversubtracted"] is None:
            numbers["oversubtracted"] = float("nan")
        return Subtraction(**numbers, before=data[f"{at}/before"], light=data[f"{at}/light"])
