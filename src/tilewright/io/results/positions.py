"""Tile positions and overlaps as CSV, and Fiji's TileConfiguration.txt."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.reading import result_file_errors
from tilewright.runtime.files import write_text_atomic

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

#: Columns of integers; the others are floats.
_INTEGERS = {"row", "col", "island", "row_a", "col_a", "row_b", "col_b", "accepted"}


@dataclass(frozen=True)
class Positions:
    """Where n tiles lie, ordered by (row, col).

    Attributes
    ----------
    row, col : ndarray of int64, shape (n,)
        Place of each tile as laid out on the stage.
    y_px, x_px : ndarray of float64, shape (n,)
        First pixel of each tile in the mosaic; the smallest of each is 0, fractions kept.
    sigma_px : ndarray of float64, shape (n,)
        Standard error per axis relative to island 0.
    island : ndarray of int64, shape (n,)
        Group of tiles connected by overlaps, 0 the largest.
    """

    row: Indices
    col: Indices
    y_px: Floats
    x_px: Floats
    sigma_px: Floats
    island: Indices

    def places(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Return (y, x) in px of each tile by (row, col)."""
        columns = (self.row, self.col, self.y_px, self.x_px)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {(row, col): (y, x) for row, col, y, x in rows}


@dataclass(frozen=True)
class Edges:
    """Overlaps of m pairs of tiles.

    Attributes
    ----------
    row_a, col_a, row_b, col_b : ndarray of int64, shape (m,)
        Tiles a and b.
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

    row_a: Indices
    col_a: Indices
    row_b: Indices
    col_b: Indices
    dy_px: Floats
    dx_px: Floats
    score: Floats
    accepted: NDArray[np.bool_]
    residual_px: Floats
    log10_chance: Floats


def write_table(path: Path, table: Positions | Edges) -> None:
    """Write a line for each tile or overlap; px with 4 digits, the solution has no more."""
    names = [field.name for field in fields(table)]
    lines = [",".join(names)]
    for row in zip(*(getattr(table, name).tolist() for name in names), strict=True):
        # + 0.0 turns -0.0 into 0.0, so that equal results are equal bytes.
        cells = (f"{v + 0.0:.4f}" if isinstance(v, float) else str(int(v)) for v in row)
        lines.append(",".join(cells))
    write_text_atomic(path, "\n".join(lines) + "\n")


def read_positions(path: Path) -> Positions:
    """Read what :func:`write_table` wrote, ordered by (row, col).

    Raises
    ------
    ResultFileError
        A column is missing, a value is no finite number, or a tile is listed twice.
    """
    with result_file_errors(path, "table of positions"):
        table = _read_csv(path, Positions)
        row, col = table["row"], table["col"]
        if len(set(zip(row.tolist(), col.tolist(), strict=True))) != len(row):
            raise ValueError("duplicate tile")
    order = np.lexsort((col, row))
    return Positions(**{name: values[order] for name, values in table.items()})


def read_edges(path: Path) -> Edges:
    """Read what :func:`write_table` wrote.

    Raises
    ------
    ResultFileError
        A column is missing or a value is no finite number.
    """
    with result_file_errors(path, "table of overlaps"):
        table = _read_csv(path, Edges)
    return Edges(**table | {"accepted": table["accepted"].astype(np.bool_)})


def write_tile_configuration(path: Path, names: Sequence[str], yx_px: Floats) -> None:
    """Write positions (n, 2) in Fiji's format, which has x before y."""
    lines = ["# Define the number of dimensions we are working on", "dim = 2", ""]
    lines.append("# Define the image coordinates")
    for name, (y, x) in zip(names, np.asarray(yx_px).tolist(), strict=True):
        lines.append(f"{name}; ; ({x:.4f}, {y:.4f})")
    write_text_atomic(path, "\n".join(lines) + "\n")


def _read_csv(path: Path, kind: type[Positions | Edges]) -> dict[str, NDArray[Any]]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        columns, rows = reader.fieldnames or (), list(reader)
    table = {}
    for name in (field.name for field in fields(kind)):
        if name not in columns:
            raise ValueError(f"no column {name!r}")
        integer = name in _INTEGERS
        values = list[float]()
        for line, text in enumerate((row[name] for row in rows), 2):
            try:
                values.append(int(text) if integer else float(text))
            except (TypeError, ValueError):
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                expected = "an integer" if integer else "a finite number"
                raise ValueError(f"line {line}: {name} is {text!r}, which is not {expected}")
        table[name] = np.array(values, np.int64 if integer else np.float64)
    return table
