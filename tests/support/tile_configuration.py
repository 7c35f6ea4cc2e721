"""Reading of Fiji's tile configurations that the workflow writes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.reading import ResultFileError

Floats = NDArray[np.float64]
_FIJI_LINE = re.compile(r"^(?P<name>[^;]+);[^;]*;\s*\((?P<numbers>[^)]*)\)\s*$")


def read_tile_configuration(path: Path) -> tuple[list[str], Floats]:
    """Read Fiji's ``TileConfiguration.txt``.

    Returns
    -------
    names : list of str
        Image of each tile, in the file's order.
    yx_px : ndarray of float64, shape (n, 2)
        Positions (y, x); a third dimension is left out.

    Raises
    ------
    ResultFileError
        A line is neither a comment, nor ``key = value``, nor ``image; ; (x, y)``.
    """
    names, places = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#") or ("=" in text and ";" not in text):
            continue
        match = _FIJI_LINE.match(text)
        try:
            numbers = [float(part) for part in match["numbers"].split(",")] if match else []
        except ValueError:
            numbers = []
        if match is None or len(numbers) not in (2, 3) or not np.isfinite(numbers).all():
            raise ResultFileError(
                f"{path}, line {number}: expected 'image; ; (x, y)', found {text!r}"
            )
        names.append(match["name"].strip())
        places.append((numbers[1], numbers[0]))
    return names, np.asarray(places, np.float64).reshape(-1, 2)
