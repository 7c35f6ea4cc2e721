"""Quality of tile positions: which overlaps agreed, how well, and what nothing ties down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from tilewright.io.positions import Edges, Positions, read_edges, read_positions
from tilewright.report.figures import BLUE, GREY, RED, new_figure, save_png
from tilewright.report.quality_file import Quality, write_quality
from tilewright.report.verdict import Item, Subject, Threshold, judge, resolve_thresholds

Limits = Mapping[str, Threshold]


def qc_tile_positions(
    positions_csv: str | Path,
    edges_csv: str | Path,
    output_json: Path,
    output_png: Path,
    *,
    sample: str,
    cycle: int,
    thresholds: Mapping[str, Mapping[str, Any]],
) -> None:
    """Judge the tile positions of one cycle.

    Parameters
    ----------
    positions_csv, edges_csv : path
        What ``tile_positions`` wrote.
    output_json, output_png : Path
        Verdicts and picture.
    sample : str
    cycle : int
    thresholds : mapping
        ``qc.thresholds`` of the config.
    """
    limits = resolve_thresholds(thresholds)
    positions, edges = read_positions(Path(positions_csv)), read_edges(Path(edges_csv))
    main, subject = _main_island(positions), Subject(sample, cycle, "tile_positions")
    items = [_matched(edges, subject, limits), _agreed(edges, subject, limits)]
    items += [_untied(positions, main, subject, limits), _precise(positions, main, subject, limits)]
    residual = np.abs(edges.residual_px[np.asarray(edges.accepted, bool)])
    numbers = {
        "tiles": len(positions.row),
        "edges": len(edges.accepted),
        "islands": len(np.unique(positions.island)),
        "median_residual_px": float(np.median(residual)) if residual.size else None,
    }
    caption = (
        f"Tiles of cycle {cycle} where they were placed; lines are overlaps: blue matched, the "
        "thicker the larger the residual, dotted red not matched. Grey squares are tiles that "
        "nothing ties to the main island."
    )
    _draw(positions, edges, main, output_png)
    write_quality(
        output_json, Quality(sample, cycle, "tile_positions", tuple(items), numbers, caption)
    )


def _matched(edges: Edges, subject: Subject, limits: Limits) -> Item:
    accepted = np.asarray(edges.accepted, bool)
    share = float(accepted.mean()) if accepted.size else float("nan")
    counted = f"{int(accepted.sum())} of {accepted.size}"
    detail = counted if accepted.size else "there is a single tile"
    return judge(subject, "accepted_edges", share, limits, detail=detail)


def _agreed(edges: Edges, subject: Subject, limits: Limits) -> Item:
    accepted = np.asarray(edges.accepted, bool)
    residual = np.abs(edges.residual_px[accepted])
    if not residual.size:
        return judge(subject, "edge_residual_px", None, limits, detail="no overlap was accepted")
    k = np.flatnonzero(accepted)[int(np.argmax(np.round(residual, 6)))]
    worst = (
        f"worst between row {edges.row_a[k]} column {edges.col_a[k]} and row "
        f"{edges.row_b[k]} column {edges.col_b[k]}"
    )
    p95 = float(np.percentile(residual, 95))
    return judge(subject, "edge_residual_px", p95, limits, detail=worst)


def _untied(
    positions: Positions, main: NDArray[np.bool_], subject: Subject, limits: Limits
) -> Item:
    lone = [
        f"row {r} column {c}"
        for r, c in zip(positions.row[~main], positions.col[~main], strict=True)
    ]
    detail = ", ".join(lone[:4]) + (f" and {len(lone) - 4} more" if len(lone) > 4 else "")
    return judge(subject, "untied_tiles", float((~main).mean()), limits, detail=detail)


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


def _draw(positions: Positions, edges: Edges, main: NDArray[np.bool_], output_png: Path) -> None:
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
    save_png(figure, output_png)
