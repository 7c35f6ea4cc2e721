"""Tile positions and overlaps as CSV, and Fiji's TileConfiguration.txt."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.files import write_whole

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_POSITION_COLUMNS = ("row", "col", "y_px", "x_px", "sigma_px", "island")
_EDGE_COLUMNS = (
    *("row_a", "col_a", "row_b", "col_b", "dy_px", "dx_px"),
    *("score", "accepted", "residual_px", "log10_chance"),
)


class PositionFileError(ValueError):
    """A file of positions cannot be used; the message names it and the fix."""


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
        Group of tiles that overlaps tie together, 0 the largest.
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


def write_positions(path: Path, positions: Positions) -> None:
    """Write ``row,col,y_px,x_px,sigma_px,island``; px with 4 digits, the solution has no more."""
    p = positions
    columns = (p.row, p.col, p.y_px, p.x_px, p.sigma_px, p.island)
    _write_csv(path, _POSITION_COLUMNS, zip(*(c.tolist() for c in columns), strict=True))


def read_positions(path: Path) -> Positions:
    """Read what :func:`write_positions` wrote, ordered by (row, col).

    Raises
    ------
    PositionFileError
        A column is missing, a value is no finite number, or a tile is listed twice.
    """
    table = _read_csv(path, _POSITION_COLUMNS)
    row, col = _integers(path, table, "row"), _integers(path, table, "col")
    if len(set(zip(row.tolist(), col.tolist(), strict=True))) != len(row):
        raise PositionFileError(f"{path} lists a tile twice; keep one line per row and col")
    order = np.lexsort((col, row))
    y, x, sigma = (_floats(path, table, name)[order] for name in ("y_px", "x_px", "sigma_px"))
    return Positions(row[order], col[order], y, x, sigma, _integers(path, table, "island")[order])


def write_edges(path: Path, edges: Edges) -> None:
    """Write ``row_a,col_a,row_b,col_b,dy_px,dx_px,score,accepted,residual_px,log10_chance``."""
    e = edges
    columns = (
        *(e.row_a, e.col_a, e.row_b, e.col_b, e.dy_px, e.dx_px, e.score),
        *(e.accepted.astype(np.int64), e.residual_px, e.log10_chance),
    )
    _write_csv(path, _EDGE_COLUMNS, zip(*(c.tolist() for c in columns), strict=True))


def read_edges(path: Path) -> Edges:
    """Read what :func:`write_edges` wrote.

    Raises
    ------
    PositionFileError
        A column is missing or a value is no finite number.
    """
    table = _read_csv(path, _EDGE_COLUMNS)
    row_a, col_a, row_b, col_b = (_integers(path, table, name) for name in _EDGE_COLUMNS[:4])
    dy, dx, score = (_floats(path, table, name) for name in _EDGE_COLUMNS[4:7])
    accepted = _integers(path, table, "accepted").astype(np.bool_)
    residual, chance = (_floats(path, table, name) for name in _EDGE_COLUMNS[8:])
    return Edges(row_a, col_a, row_b, col_b, dy, dx, score, accepted, residual, chance)


def write_tile_configuration(path: Path, names: Sequence[str], yx_px: Floats) -> None:
    """Write positions (n, 2) in Fiji's format, which has x before y."""
    lines = ["# Define the number of dimensions we are working on", "dim = 2", ""]
    lines.append("# Define the image coordinates")
    for name, (y, x) in zip(names, np.asarray(yx_px).tolist(), strict=True):
        lines.append(f"{name}; ; ({x:.4f}, {y:.4f})")
    write_whole(path, "\n".join(lines) + "\n")


def _write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[float]]) -> None:
    lines = [",".join(header)]
    for row in rows:
        # + 0.0 turns -0.0 into 0.0, so that equal results are equal bytes.
        lines.append(",".join(f"{v + 0.0:.4f}" if isinstance(v, float) else str(v) for v in row))
    write_whole(path, "\n".join(lines) + "\n")


def _read_csv(path: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise PositionFileError(f"{path} has no column {missing[0]!r}; write it again")
        rows = list(reader)
    return {name: [row[name] or "" for row in rows] for name in columns}


def _floats(path: Path, table: dict[str, list[str]], name: str) -> Floats:
    try:
        values = np.array([float(text) for text in table[name]], np.float64)
    except ValueError as error:
        raise PositionFileError(f"{path}: column {name!r} holds no number ({error})") from error
    if not np.isfinite(values).all():
        raise PositionFileError(f"{path}: column {name!r} holds a value that is not finite")
    return values


def _integers(path: Path, table: dict[str, list[str]], name: str) -> Indices:
    values = _floats(path, table, name)
    if (values != np.rint(values)).any():
        raise PositionFileError(f"{path}: column {name!r} holds a number that is not whole")
    return values.astype(np.int64)
