"""Figures of quality control: deterministic PNGs, thumbnails of large mosaics, overlays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar
from numpy.typing import NDArray
from skimage.measure import block_reduce

from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.result_file import result_path

#: Pixels per inch; with it a figure of 10 inches is as wide as the report's column.
DPI = 110
#: Of Okabe and Ito: colour-blind readers can tell them from each other.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8a8f98"
#: Longest side of the picture of a mosaic, and side of a crop: some twenty cells, and two fit the
#: page side by side with their text.
THUMBNAIL_PX, CROP_PX = 700, 256


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a white figure drawn by Agg, without any global state."""
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; same figure, same bytes."""
    with result_path(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def display_range(image: NDArray[Any]) -> tuple[float, float]:
    """Return black and white levels: 1st and 99.7th percentile of the finite pixels."""
    good = np.isfinite(image)
    if not good.any():
        return 0.0, 1.0
    low, high = np.percentile(image[good], (1, 99.7))
    return float(low), float(high if high > low else low + 1)


def show(
    axes: Axes,
    image: NDArray[Any],
    title: str = "",
    limits: tuple[float, float] | None = None,
    cmap: str = "gray",
) -> Any:
    """Draw one image without ticks; returns matplotlib's image for a colour bar."""
    low, high = limits or display_range(image)
    drawn = axes.imshow(image, cmap=cmap, vmin=low, vmax=high, interpolation="antialiased")
    axes.set_title(title, fontsize=9, loc="left")
    bare(axes)
    return drawn


def bare(axes: Axes) -> None:
    """Take ticks and frame off."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)


def plain(axes: Axes, title: str, label: str) -> None:
    """Give a plot its title, the label of x, small ticks, and no frame on two sides."""
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def scale_bar(axes: Axes, pixel_um: float, width_px: int) -> None:
    """Draw a bar of a round length, about a fifth of the image, in its lower left."""
    wish = 0.2 * width_px * pixel_um
    power = 10.0 ** np.floor(np.log10(wish))
    length_um = max(step * power for step in (1, 2, 5) if step * power <= wish)
    bar = AnchoredSizeBar(
        axes.transData,
        length_um / pixel_um,
        f"{length_um:g} µm",
        "lower left",
        color="white",
        frameon=False,
        label_top=True,
        borderpad=0.8,
        size_vertical=width_px / 90,
        fontproperties=FontProperties(size=7),
    )
    for artist in bar.findobj(lambda one: isinstance(one, Rectangle | Text)):
        artist.set_path_effects([patheffects.withStroke(linewidth=2, foreground="black")])
    axes.add_artist(bar)


def small_multiples(
    count: int, columns: int, width_in: float, height_in: float
) -> tuple[Figure, list[Axes]]:
    """Return a new figure, and its axes for so many pictures of one size, by rows."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = new_figure(min(10, width_in * columns), max(height_in * rows, 1.5))
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def window(shape: Sequence[int], centre: tuple[float, float]) -> tuple[slice, slice]:
    """Return the window of ``CROP_PX`` around a pixel (y, x), moved inside the image."""
    starts = [
        int(np.clip(round(at - CROP_PX / 2), 0, max(n - CROP_PX, 0)))
        for n, at in zip(shape, centre, strict=True)
    ]
    rows, columns = (slice(at, min(at + CROP_PX, n)) for at, n in zip(starts, shape, strict=True))
    return rows, columns


def overlay(
    reference: NDArray[Any],
    moving: NDArray[Any],
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
) -> NDArray[np.float32]:
    """Return (y, x, 3): reference in magenta, moving in green; where they agree it is white.

    Magenta and green instead of red and green, which colour-blind readers cannot tell apart.
    """
    planes = []
    for k, image in enumerate((reference, moving)):
        low, high = limits[k] if limits else display_range(image)
        planes.append(np.clip((image.astype(np.float32) - low) / (high - low), 0, 1))
    return np.stack([planes[0], planes[1], planes[0]], axis=-1)


def thumbnail(
    mosaic: Mosaic, z: int, max_px: int = THUMBNAIL_PX
) -> tuple[NDArray[np.float32], int]:
    """Return a plane shrunk by averaging, and the whole factor; one chunk row in memory.

    The last rows and columns that do not fill a pixel of the thumbnail are left out.
    """
    factor = max(1, -(-max(mosaic.shape[1:]) // max_px))
    shape = mosaic.shape[1:]
    return shrunk(lambda y, x: mosaic.read(z, y, x), shape, factor, mosaic.chunk_px), factor


def shrunk(
    read: Callable[[slice, slice], NDArray[Any]], shape: Sequence[int], factor: int, chunk_px: int
) -> NDArray[np.float32]:
    """Return a plane (y, x) that is read by region, a whole factor smaller."""
    rows, cols = (max(n // factor, 1) for n in shape)
    small = np.empty((rows, cols), np.float32)
    step = max(chunk_px // factor, 1)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        strip = read(slice(first * factor, last * factor), slice(0, cols * factor))
        block = (strip.shape[0] // (last - first), strip.shape[1] // cols)
        small[first:last] = block_reduce(strip, block, np.mean, func_kwargs={"dtype": np.float32})
    return small
