"""Subtraction of backgrounds on disk: an ``.npz`` for quality control, a ``.json`` to read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.npz import read_npz, write_npz
from tilewright.io.results.result_file import json_value, result_file_errors, write_json


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
    emptied : float
        Share of the pixels with light that have none left.
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
    emptied: float
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
