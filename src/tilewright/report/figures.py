"""Pictures of the report: deterministic PNGs, thumbnails of large mosaics, overlays, renderings."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import PIL.Image
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from skimage.measure import block_reduce

from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.ome_zarr import Image, open_image
from tilewright.runtime.files import atomic_path

#: Pixels per inch; with it a figure of 10 inches is as wide as the report's column.
DPI = 110
#: Longest side of the picture of a mosaic.
THUMBNAIL_PX = 700
#: Nuclei blue, then colours that stay apart when added.
COLOURS = ((70, 110, 255), (0, 230, 90), (255, 60, 60), (255, 210, 0), (255, 70, 230))
#: A composite of more markers than this is a blur of colours.
MAX_COMPOSITE = len(COLOURS)


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a white figure drawn by Agg, apart from any global state."""
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; same figure, same bytes."""
    with atomic_path(path) as partial:
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
    length = length_um / pixel_um / width_px
    rim = [patheffects.withStroke(linewidth=4.5, foreground="black")]
    bar = Line2D([0.03, 0.03 + length], [0.045, 0.045], color="white", lw=3)
    bar.set(transform=axes.transAxes, path_effects=rim)
    axes.add_artist(bar)  # an artist, for a line of the axes would change their limits
    axes.annotate(
        f"{length_um:g} µm",
        (0.03, 0.045),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color="white",
        fontsize=7,
        path_effects=[patheffects.withStroke(linewidth=2, foreground="black")],
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
    read: Callable[[slice, slice], NDArray[Any]],
    shape: Sequence[int],
    factor: int,
    chunk_px: int,
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


@dataclass(frozen=True)
class Picture:
    """A picture ready for an ``img`` element: data URI and size in px."""

    data: str
    width: int
    height: int


def embed(pixels: NDArray[np.uint8], level: int = 84) -> Picture:
    """Encode grey (y, x) or RGB (y, x, 3) as WebP of a quality of 0 to 100 in a data URI."""
    colour = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    code = imagecodecs.webp_encode(np.ascontiguousarray(colour), level=level, lossless=False)
    data = "data:image/webp;base64," + base64.b64encode(code).decode("ascii")
    return Picture(data, pixels.shape[1], pixels.shape[0])


def embed_png(png: bytes, area_px: float = np.inf) -> Picture:
    """Encode a figure's PNG as :func:`embed` does, shrunk to an area if it is larger."""
    pixels = np.asarray(imagecodecs.png_decode(png))[..., :3]
    shrink = math.sqrt(area_px / (pixels.shape[0] * pixels.shape[1]))
    if shrink >= 1:
        return embed(pixels)
    size = max(round(pixels.shape[1] * shrink), 1), max(round(pixels.shape[0] * shrink), 1)
    small = PIL.Image.fromarray(pixels).resize(size, PIL.Image.Resampling.LANCZOS)
    return embed(np.asarray(small), level=70)


def _level(image: Image, max_px: int) -> NDArray[Any]:
    """Return the largest level (c, y, x) that fits the page, or the smallest there is."""
    fitting = [level for level in image.levels if max(level.shape[1:]) <= max_px]
    level = fitting[0] if fitting else image.levels[-1]
    pixels = np.asarray(level[:])
    step = max(1, -(-max(pixels.shape[1:]) // max_px))
    return pixels[:, ::step, ::step]


def scaled(plane: NDArray[Any]) -> NDArray[np.float32]:
    """Scale a channel (y, x) to 0…1 for the eye: background black, brightest 0.3 % white."""
    low, high = display_range(plane)
    unit = np.clip((plane.astype(np.float32) - low) / (high - low), 0, 1)
    return np.asarray(unit ** np.float32(0.8), np.float32)


def composite_channels(
    spreads: Sequence[float], nuclei: int, leave_out: Collection[int] = ()
) -> list[int]:
    """Return the channel numbers of the composite, ``COLOURS`` being their colours in order.

    They are ``nuclei`` and up to four others with the largest spread (standard deviation of the
    scaled channel), in the order of the image; those in ``leave_out`` excepted.
    """
    others = [k for k in range(len(spreads)) if k != nuclei and k not in leave_out]
    others.sort(key=lambda k: (-round(spreads[k], 3), k))
    return [nuclei, *sorted(others[: MAX_COMPOSITE - 1])]


@dataclass(frozen=True)
class Rendering:
    """The registered image of a sample as pictures.

    ``key`` lists (marker, CSS colour) of the composite; ``channels`` a picture per channel.
    """

    composite: Picture
    key: list[tuple[str, str]]
    channels: list[Picture]


def render(
    path: Path,
    nuclei: int = 0,
    leave_out: Collection[int] = (),
    channel_px: int = 420,
    composite_px: int = 1600,
) -> Rendering:
    """Render an OME-Zarr image from its smallest sufficient level.

    The composite takes the channel number ``nuclei`` and up to four more with the strongest
    contrast, the channel numbers in ``leave_out`` excepted. No side of a picture is longer than
    ``channel_px``, or ``composite_px``.
    """
    image = open_image(path)
    planes = [scaled(plane) for plane in _level(image, composite_px)]
    chosen = composite_channels([float(plane.std()) for plane in planes], nuclei, leave_out)
    colours = np.array(COLOURS, np.float32)[: len(chosen)] / 255
    total = sum(planes[k][..., None] * colour for k, colour in zip(chosen, colours, strict=True))
    composite = np.clip(np.asarray(total), 0, 1)
    step = max(1, -(-max(planes[0].shape) // channel_px))
    return Rendering(
        embed(np.rint(255 * composite).astype(np.uint8)),
        [(image.channel_names[k], to_hex(c)) for k, c in zip(chosen, colours, strict=True)],
        [embed(np.rint(255 * plane[::step, ::step]).astype(np.uint8)) for plane in planes],
    )
