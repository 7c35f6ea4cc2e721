"""Tile positions and overlaps as CSV, and Fiji's TileConfiguration.txt."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.result_file import result_file_errors, write_result

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Names = NDArray[np.str_]

#: Columns of integers and of names; the others are floats.
_INTEGERS = {"row", "col", "island", "accepted"}
_NAMES = {"tile", "tile_a", "tile_b"}


@dataclass(frozen=True)
class Positions:
    """Where n tiles lie.

    Attributes
    ----------
    tile : ndarray of str, shape (n,)
        Name of each tile in the tiles table.
    row, col : ndarray of int64, shape (n,)
        Rows and columns of the nominal positions.
    y_px, x_px : ndarray of float64, shape (n,)
        First pixel of each tile in the mosaic; the smallest of each is 0, with fractions.
    sigma_px : ndarray of float64, shape (n,)
        Standard error per axis relative to island 0.
    island : ndarray of int64, shape (n,)
        Group of tiles connected by overlaps, 0 the largest.
    """

    tile: Names
    row: Indices
    col: Indices
    y_px: Floats
    x_px: Floats
    sigma_px: Floats
    island: Indices

    def places(self) -> dict[str, tuple[float, float]]:
        """Return (y, x) in px of each tile by its name."""
        corners = zip(self.y_px.tolist(), self.x_px.tolist(), strict=True)
        return dict(zip(self.tile.tolist(), corners, strict=True))


@dataclass(frozen=True)
class Edges:
    """Overlaps of m pairs of tiles.

    Attributes
    ----------
    tile_a, tile_b : ndarray of str, shape (m,)
        Names of tiles a and b.
    dy_px, dx_px : ndarray of float64, shape (m,)
        Position of b minus position of a, as measured.
    score : ndarray of float64, shape (m,)
        NCC of the filtered overlap.
    accepted : ndarray of bool, shape (m,)
        Whether the measurement was used.
    residual_px : ndarray of float64, shape (m,)
        Length of measured minus solved displacement.
    log10_chance : ndarray of float64, shape (m,)
        Decimal logarithm of the probability that the displacement is false.
    """

    tile_a: Names
    tile_b: Names
    dy_px: Floats
    dx_px: Floats
    score: Floats
    accepted: NDArray[np.bool_]
    residual_px: Floats
    log10_chance: Floats


def write_table(path: Path, tables: Mapping[str, Positions] | Mapping[str, Edges]) -> None:
    """Write a line for each tile or overlap of each sample of a scan.

    Pixels have 4 digits, the solution has no more.
    """
    kind = Positions if isinstance(next(iter(tables.values())), Positions) else Edges
    names = [field.name for field in fields(kind)]
    lines = [",".join(["sample", *names])]
    for sample, table in tables.items():
        for row in zip(*(getattr(table, name).tolist() for name in names), strict=True):
            # + 0.0 turns -0.0 into 0.0, so that equal results are equal bytes.
            cells = (
                f"{v + 0.0:.4f}"
                if isinstance(v, float)
                else v
                if isinstance(v, str)
                else str(int(v))
                for v in row
            )
            lines.append(",".join([sample, *cells]))
    write_result(path, "\n".join(lines) + "\n")


def read_positions(path: Path, sample: str | None = None) -> Positions:
    """Read what :func:`write_table` wrote of a sample; None is all of a table of one sample.

    Raises
    ------
    ResultFileError
        A column is missing, a value is no number, or no tile is listed.
    """
    with result_file_errors(path, "table of positions"):
        table = _read_csv(path, Positions, sample)
        if sample is not None and not len(table["tile"]):
            raise ValueError(f"no tile of sample {sample}")
    return Positions(**table)


def read_edges(path: Path, sample: str | None = None) -> Edges:
    """Read what :func:`write_table` wrote of a sample; None is all of a table of one sample.

    Raises
    ------
    ResultFileError
        A column is missing, or a value is no number.
    """
    with result_file_errors(path, "table of overlaps"):
        table = _read_csv(path, Edges, sample)
    return Edges(**table | {"accepted": table["accepted"].astype(np.bool_)})


def write_tile_configuration(path: Path, names: Sequence[str], yx_px: Floats) -> None:
    """Write positions (n, 2) in Fiji's format, which has x before y."""
    lines = ["# Define the number of dimensions we are working on", "dim = 2", ""]
    lines.append("# Define the image coordinates")
    for name, (y, x) in zip(names, np.asarray(yx_px).tolist(), strict=True):
        lines.append(f"{name}; ; ({x:.4f}, {y:.4f})")
    write_result(path, "\n".join(lines) + "\n")


def _read_csv(
    path: Path, kind: type[Positions | Edges], sample: str | None
) -> dict[str, NDArray[Any]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if sample in (None, row["sample"])]
    table: dict[str, NDArray[Any]] = {}
    for name in (field.name for field in fields(kind)):
        of = np.str_ if name in _NAMES else np.int64 if name in _INTEGERS else np.float64
        table[name] = np.array([row[name] for row in rows], np.str_).astype(of)
    return table
