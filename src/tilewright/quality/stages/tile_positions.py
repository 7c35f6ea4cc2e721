"""Quality of tile positions: which overlaps agreed, and which tiles may be misplaced."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from tilewright.io.inputs.plane_table import read_manifest
from tilewright.io.results.illumination import read_numbers
from tilewright.io.results.positions import Edges, Positions, read_edges, read_positions
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import BLUE, GREY, RED, new_figure, plain, save_png
from tilewright.quality.results import ImageLocation, QcContext
from tilewright.runtime.text import few

#: Standard error, px, and disagreement of a tile's overlaps, px, from which it is doubtful.
_DOUBT_SIGMA_PX, _DOUBT_RESIDUAL_PX = 1.0, 1.5
#: An overlap so surely right that was rejected contradicts the others, log10 of its chance.
_SURE = -7.0


CAPTION = (
    "Tiles of cycle {cycle} where they were placed; lines are overlaps: blue matched, the "
    "thicker the larger the residual, dotted red not matched. Grey squares are tiles that "
    "nothing ties to the main island."
)


def tile_names(tiles: Iterable[str], most: int = 6) -> str:
    """Return tiles in words, at most so many by name."""
    names = list(tiles)
    return f"{'tiles' if len(names) > 1 else 'tile'} {few(names, most)}" if names else ""


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the tile positions of one cycle: ``positions``, ``edges`` and ``numbers``.

    Tiles that the ``manifest`` excludes count too.
    """
    positions = read_positions(Path(files["positions"]), context.sample)
    edges = read_edges(Path(files["edges"]), context.sample)
    accepted = np.asarray(edges.accepted, bool)
    # Of equal islands the first is the main one.
    names, counts = np.unique(positions.island, return_counts=True)
    main = np.asarray(positions.island == names[int(np.argmax(counts))])
    a, b = ends = _ends(positions, edges)
    # Between measured displacements and the positions, in px.
    dy = edges.dy_px - (positions.y_px[b] - positions.y_px[a])
    dx = edges.dx_px - (positions.x_px[b] - positions.x_px[a])
    residual = np.asarray(np.hypot(dy, dx), np.float64)
    channels = read_numbers(files["numbers"])
    bare = ~main
    for numbers in channels:
        bare &= np.isin(positions.tile, numbers["samples"][context.sample]["bare"])
    kinds = {
        "nothing ties": ~main & ~bare,
        "uncertain or in disagreement:": _uncertain(positions, ends, accepted, residual, main),
        "contradicted by sure matches:": _contradicted(edges, ends, residual, len(main)),
    }
    doubt = np.any(list(kinds.values()), axis=0)
    where = [
        f"{what} {tile_names(positions.tile[tiles], 20)}"
        for what, tiles in kinds.items()
        if tiles.any()
    ]
    if bare.any():
        where.append(f"on glass, without structure: {tile_names(positions.tile[bare], 20)}")
    # Of those that the table does not use, where no other lies.
    gaps, tiles = read_manifest(files["manifest"]).excluded, len(main)
    items = [
        context.evaluate("doubtful_tiles", float(doubt.mean()), "; ".join(where)),
        context.evaluate("tiles_left_out", len(gaps) / (len(gaps) + tiles), tile_names(gaps)),
    ]
    numbers = {
        "tiles": tiles,
        "edges": len(accepted),
        "accepted_edges": int(accepted.sum()),
        "islands": len(names),
        "median_residual_px": float(np.median(residual[accepted])) if accepted.any() else None,
        "places": [asdict(location) for location in _locations(positions, doubt)],
    }
    return StageQc(items, numbers, (positions, edges, main))


def _ends(positions: Positions, edges: Edges) -> NDArray[np.int64]:
    """Return the numbers (2, m) of both tiles of each overlap."""
    number = {tile: k for k, tile in enumerate(positions.tile.tolist())}
    ends = (edges.tile_a.tolist(), edges.tile_b.tolist())
    return np.array([[number[tile] for tile in tiles] for tiles in ends], np.int64).reshape(2, -1)


def _locations(positions: Positions, chosen: NDArray[np.bool_]) -> list[ImageLocation]:
    """Return the centres of the chosen tiles: a tile is about as large as the stage's step."""
    axes = ((positions.y_px, positions.row), (positions.x_px, positions.col))
    y, x = (px[chosen] + np.ptp(px) / max(int(np.ptp(k)), 1) / 2 for px, k in axes)
    return [ImageLocation("doubtful_tiles", *at) for at in zip(y.tolist(), x.tolist(), strict=True)]


def _uncertain(
    positions: Positions,
    ends: NDArray[np.int64],
    accepted: NDArray[np.bool_],
    residual: NDArray[np.float64],
    main: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return the tiles of the main island with a large error, or whose overlaps disagree."""
    doubt = main & (np.count_nonzero(main) > 1) & (positions.sigma_px > _DOUBT_SIGMA_PX)
    for tile in range(len(main)):
        own = residual[(ends == tile).any(axis=0) & accepted]
        doubt[tile] |= bool(own.size and np.median(own) > _DOUBT_RESIDUAL_PX)
    return np.asarray(doubt)


def _contradicted(
    edges: Edges, ends: NDArray[np.int64], residual: NDArray[np.float64], tiles: int
) -> NDArray[np.bool_]:
    """Return the tiles of overlaps that match beyond doubt and were rejected all the same."""
    wrong = (edges.log10_chance <= _SURE) & ~np.asarray(edges.accepted, bool)
    return np.isin(np.arange(tiles), ends[:, wrong & (residual > _DOUBT_RESIDUAL_PX)])


def draw(views: Sequence[tuple[Positions, Edges, NDArray[np.bool_]]], path: Path) -> None:
    """Draw the tiles of a cycle and their overlaps."""
    ((positions, edges, main),) = views
    extent = [np.ptp(positions.y_px) + 1, np.ptp(positions.x_px) + 1]
    width = 8.0
    figure = new_figure(width, float(np.clip(width * extent[0] / extent[1] + 0.6, 2.5, 11)))
    axes = figure.subplots()
    _draw_overlaps(axes, positions, edges)
    size = float(np.clip(9000 / max(len(main), 12), 20, 260))
    colours = np.where(main, BLUE, GREY)
    axes.scatter(positions.x_px, positions.y_px, s=size, marker="s", c=colours.tolist(), zorder=3)
    if len(main) <= 120:
        for name, (y, x) in positions.places().items():
            axes.text(x, y, name, c="white", size=6, ha="center", va="center", zorder=4)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.margins(0.08)
    plain(axes, "", "x, px")
    axes.set_ylabel("y, px", fontsize=8)
    save_png(figure, path)


def _draw_overlaps(axes: Axes, positions: Positions, edges: Edges) -> None:
    lines = np.stack([positions.x_px, positions.y_px], 1)[_ends(positions, edges).T]
    for good in (False, True):
        chosen = np.flatnonzero(np.asarray(edges.accepted, bool) == good)
        residual = np.nan_to_num(np.abs(edges.residual_px[chosen])) if good else 0 * chosen
        axes.add_collection(
            LineCollection(
                list(lines[chosen]),
                colors=BLUE if good else RED,
                linestyles="-" if good else ":",
                linewidths=np.clip(1.0 + 3 * residual, 1.0, 7.0) if good else 1.4,
                zorder=2 if good else 1,
            )
        )
