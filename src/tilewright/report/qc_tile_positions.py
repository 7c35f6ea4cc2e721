"""Quality of tile positions: which overlaps agreed, and which tiles may stand wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from tilewright.io.positions import Edges, Positions, read_edges, read_positions
from tilewright.report.figures import BLUE, GREY, RED, new_figure, save_png
from tilewright.report.quality import Files, Findings
from tilewright.report.verdict import Item, Limits, Subject, judge

#: Standard error, px, and disagreement of a tile's overlaps, px, from which it is doubtful.
_DOUBT_SIGMA_PX, _DOUBT_RESIDUAL_PX = 1.0, 1.5
#: An overlap so surely right that was given up contradicts the others, log10 of its chance.
_SURE = -7.0


CAPTION = (
    "Tiles of cycle {cycle} where they were placed; lines are overlaps: blue matched, the "
    "thicker the larger the residual, dotted red not matched. Grey squares are tiles that "
    "nothing ties to the main island."
)


def findings(subject: Subject, files: Files, limits: Limits) -> Findings:
    """Judge the tile positions of one cycle by ``positions`` and ``edges``."""
    positions, edges = read_positions(Path(files["positions"])), read_edges(Path(files["edges"]))
    main, residual = _main_island(positions), _residuals(positions, edges)
    items = [
        _matched(edges, subject, limits),
        _agreed(edges, residual, subject, limits),
        _untied(positions, main, subject, limits),
        _precise(positions, main, subject, limits),
        _doubtful(positions, edges, residual, main, subject, limits),
        _contradicting(edges, residual, subject, limits),
    ]
    kept = residual[np.asarray(edges.accepted, bool)]
    numbers = {
        "tiles": len(positions.row),
        "edges": len(edges.accepted),
        "islands": len(np.unique(positions.island)),
        "median_residual_px": float(np.median(kept)) if kept.size else None,
    }
    return Findings(items, numbers, (positions, edges, main))


def _matched(edges: Edges, subject: Subject, limits: Limits) -> Item:
    accepted = np.asarray(edges.accepted, bool)
    share = float(accepted.mean()) if accepted.size else float("nan")
    counted = f"{int(accepted.sum())} of {accepted.size}"
    detail = counted if accepted.size else "there is a single tile"
    return judge(subject, "accepted_edges", share, limits, detail=detail)


def _residuals(positions: Positions, edges: Edges) -> NDArray[np.float64]:
    """Return the distance (m,), px, between measured displacements and the positions."""
    number = _numbers(positions)
    a = [number[place] for place in zip(edges.row_a.tolist(), edges.col_a.tolist(), strict=True)]
    b = [number[place] for place in zip(edges.row_b.tolist(), edges.col_b.tolist(), strict=True)]
    dy = edges.dy_px - (positions.y_px[b] - positions.y_px[a])
    dx = edges.dx_px - (positions.x_px[b] - positions.x_px[a])
    return np.asarray(np.hypot(dy, dx), np.float64)


def _numbers(positions: Positions) -> dict[tuple[int, int], int]:
    places = zip(positions.row.tolist(), positions.col.tolist(), strict=True)
    return {place: number for number, place in enumerate(places)}


def _agreed(edges: Edges, residual: NDArray[np.float64], subject: Subject, limits: Limits) -> Item:
    accepted = np.asarray(edges.accepted, bool)
    if not accepted.any():
        return judge(subject, "edge_residual_px", None, limits, detail="no overlap was accepted")
    k = np.flatnonzero(accepted)[int(np.argmax(np.round(residual[accepted], 6)))]
    p95 = float(np.percentile(residual[accepted], 95))
    return judge(subject, "edge_residual_px", p95, limits, detail=f"worst {_between(edges, k)}")


def _between(edges: Edges, k: int) -> str:
    return (
        f"between row {edges.row_a[k]} column {edges.col_a[k]} and row "
        f"{edges.row_b[k]} column {edges.col_b[k]}"
    )


def _named(positions: Positions, chosen: NDArray[np.bool_]) -> str:
    """Return every chosen tile in words, neighbours of a row together."""
    parts = []
    for row in np.unique(positions.row[chosen]).tolist():
        cols = np.sort(positions.col[chosen & (positions.row == row)])
        runs = np.split(cols, np.flatnonzero(np.diff(cols) > 1) + 1)
        names = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        parts.append(f"row {row} column{'s' * (len(cols) > 1)} {', '.join(names)}")
    return "; ".join(parts)


def _untied(
    positions: Positions, main: NDArray[np.bool_], subject: Subject, limits: Limits
) -> Item:
    detail = _named(positions, ~main)
    return judge(subject, "untied_tiles", float((~main).mean()), limits, detail=detail)


def _doubtful(
    positions: Positions,
    edges: Edges,
    residual: NDArray[np.float64],
    main: NDArray[np.bool_],
    subject: Subject,
    limits: Limits,
) -> Item:
    """Judge the tiles of the main island that may stand where their cells are not."""
    doubt = main & (np.count_nonzero(main) > 1) & (positions.sigma_px > _DOUBT_SIGMA_PX)
    number = _numbers(positions)
    accepted = np.asarray(edges.accepted, bool)
    own: dict[int, list[float]] = {}
    for k in np.flatnonzero(accepted).tolist():
        for place in ((edges.row_a[k], edges.col_a[k]), (edges.row_b[k], edges.col_b[k])):
            own.setdefault(number[int(place[0]), int(place[1])], []).append(float(residual[k]))
    for tile, lengths in own.items():
        doubt[tile] |= bool(np.median(lengths) > _DOUBT_RESIDUAL_PX)
    share = float(doubt.mean())
    return judge(subject, "doubtful_tiles", share, limits, detail=_named(positions, doubt))


def _contradicting(
    edges: Edges, residual: NDArray[np.float64], subject: Subject, limits: Limits
) -> Item:
    """Judge the overlaps that match beyond doubt and were given up all the same."""
    sure = edges.log10_chance <= _SURE
    wrong = np.flatnonzero(sure & ~np.asarray(edges.accepted, bool) & (residual > 2.0))
    detail = "; ".join(_between(edges, k) for k in wrong[:6])
    share = len(wrong) / max(int(sure.sum()), 1)
    return judge(subject, "contradicting_overlaps", share, limits, detail=detail)


def _precise(
    positions: Positions, main: NDArray[np.bool_], subject: Subject, limits: Limits
) -> Item:
    sigma = positions.sigma_px[main]
    sigma = sigma[np.isfinite(sigma)]
    tied = main.sum() > 1
    p95 = float(np.percentile(sigma, 95)) if sigma.size and tied else None
    detail = "" if tied else "no tile is tied to another"
    return judge(subject, "position_sigma_px", p95, limits, detail=detail)


def _main_island(positions: Positions) -> NDArray[np.bool_]:
    """Return which tiles belong to the largest island (of equal ones the first)."""
    names, counts = np.unique(positions.island, return_counts=True)
    return np.asarray(positions.island == names[int(np.argmax(counts))])


def draw(views: Sequence[tuple[Positions, Edges, NDArray[np.bool_]]], path: Path) -> None:
    """Draw the tiles of a cycle and their overlaps."""
    ((positions, edges, main),) = views
    at = {
        (int(r), int(c)): (float(x), float(y))
        for r, c, y, x in zip(
            positions.row, positions.col, positions.y_px, positions.x_px, strict=True
        )
    }
    extent = [np.ptp(positions.y_px) + 1, np.ptp(positions.x_px) + 1]
    width = 8.0
    figure = new_figure(width, float(np.clip(width * extent[0] / extent[1] + 0.6, 2.5, 11)))
    axes = figure.subplots()
    _draw_overlaps(axes, edges, at)
    size = float(np.clip(9000 / max(len(main), 12), 20, 260))
    colours = np.where(main, BLUE, GREY)
    axes.scatter(positions.x_px, positions.y_px, s=size, marker="s", c=colours.tolist(), zorder=3)
    if len(main) <= 120:
        for (row, col), (x, y) in at.items():
            axes.annotate(
                f"{row},{col}",
                (x, y),
                color="white",
                fontsize=6,
                ha="center",
                va="center",
                zorder=4,
            )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.margins(0.08)
    axes.set_xlabel("x, px", fontsize=8)
    axes.set_ylabel("y, px", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    save_png(figure, path)


def _draw_overlaps(
    axes: Axes, edges: Edges, at: Mapping[tuple[int, int], tuple[float, float]]
) -> None:
    """Draw a line for each overlap between tiles at (x, y)."""
    for good in (False, True):
        chosen = np.flatnonzero(np.asarray(edges.accepted, bool) == good)
        lines = [
            (
                at[int(edges.row_a[k]), int(edges.col_a[k])],
                at[int(edges.row_b[k]), int(edges.col_b[k])],
            )
            for k in chosen
        ]
        residual = np.nan_to_num(np.abs(edges.residual_px[chosen])) if good else 0 * chosen
        axes.add_collection(
            LineCollection(
                lines,
                colors=BLUE if good else RED,
                linestyles="-" if good else ":",
                linewidths=np.clip(1.0 + 3 * residual, 1.0, 7.0) if good else 1.4,
                zorder=2 if good else 1,
            )
        )
