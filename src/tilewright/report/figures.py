"""Pictures of the report: deterministic PNGs, thumbnails of large mosaics, overlays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic
from tilewright.runtime.files import whole_or_nothing

#: Okabe–Ito colours: told apart by colour-blind readers.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8a8f98"
#: Pixels per inch; with it a figure of 10 inches is as wide as the report's column.
DPI = 110


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a white figure drawn by Agg, apart from any global state."""
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; same figure, same bytes."""
    with whole_or_nothing(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def display_range(
    image: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> tuple[float, float]:
    """Return black and white levels: 1st and 99.7th percentile of the finite, valid pixels."""
    good = np.isfinite(image) if valid is None else np.isfinite(image) & valid
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
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)
    return drawn


def scale_bar(axes: Axes, pixel_um: float, width_px: int) -> None:
    """Draw a bar of a round length, about a fifth of the image, in its lower left."""
    wish = 0.2 * width_px * pixel_um
    power = 10.0 ** np.floor(np.log10(wish))
    length_um = max(step * power for step in (1, 2, 5) if step * power <= wish)
    length = length_um / pixel_um / width_px
    bar = Line2D(
        [0.03, 0.03 + length], [0.045, 0.045], color="white", lw=3, transform=axes.transAxes
    )
    axes.add_artist(bar)  # an artist, for a line of the axes would change their limits
    axes.annotate(
        f"{length_um:g} µm",
        (0.03, 0.045),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color="white",
        fontsize=7,
    )


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


def thumbnail(mosaic: Mosaic, z: int, max_px: int = 700) -> tuple[NDArray[np.float32], int]:
    """Return a plane shrunk by averaging, and the whole factor; one chunk row in memory.

    The last rows and columns that do not fill a pixel of the thumbnail are left out.
    """
    factor = max(1, -(-max(mosaic.shape[1:]) // max_px))
    rows, cols = (max(n // factor, 1) for n in mosaic.shape[1:])
    small = np.empty((rows, cols), np.float32)
    step = max(mosaic.chunk_px // factor, 1)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        strip = mosaic.read(z, slice(first * factor, last * factor), slice(0, cols * factor))
        blocks = strip.reshape(last - first, -1, cols, strip.shape[1] // cols)
        small[first:last] = blocks.mean(axis=(1, 3), dtype=np.float32)
    return small, factor
