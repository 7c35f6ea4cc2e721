"""Images for the HTML page: the registered image in colour, channels in grey, as data URIs."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tilewright.io.ome_zarr import Image, open_image
from tilewright.report.figures import display_range, save_png

#: Nuclei blue, then colours that stay apart when added.
_COLOURS = ((70, 110, 255), (0, 230, 90), (255, 60, 60), (255, 210, 0), (255, 70, 230))
#: A composite of more markers than this is a blur of colours.
MAX_COMPOSITE = len(_COLOURS)
_MAX_PX = 1600


@dataclass(frozen=True)
class Picture:
    """A picture ready for an ``img`` element: data URI and size in px."""

    data: str
    width: int
    height: int


def embed(pixels: NDArray[np.uint8]) -> Picture:
    """Encode grey (y, x) or RGB (y, x, 3) as WebP in a data URI."""
    colour = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    code = imagecodecs.webp_encode(np.ascontiguousarray(colour), level=84, lossless=False)
    data = "data:image/webp;base64," + base64.b64encode(code).decode("ascii")
    return Picture(data, pixels.shape[1], pixels.shape[0])


def embed_png(path: Path) -> Picture:
    """Read a figure and encode it as :func:`embed` does: a fifth of the PNG's size."""
    pixels = np.asarray(imagecodecs.png_decode(path.read_bytes()))
    return embed(np.ascontiguousarray(pixels[..., :3]))


def embed_figure(figure: Figure) -> Picture:
    """Draw a figure and encode it as :func:`embed_png` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        save_png(figure, path)
        return embed_png(path)


def _level(image: Image) -> NDArray[Any]:
    """Return the largest level (c, y, x) that fits the page, or the smallest there is."""
    fitting = [level for level in image.levels if max(level.shape[1:]) <= _MAX_PX]
    level = fitting[0] if fitting else image.levels[-1]
    pixels = np.asarray(level[:])
    step = max(1, -(-max(pixels.shape[1:]) // _MAX_PX))
    return pixels[:, ::step, ::step]


def _scaled(plane: NDArray[Any]) -> NDArray[np.float32]:
    """Scale a channel to 0…1 for the eye: background black, brightest 0.3 % white."""
    low, high = display_range(plane)
    unit = np.clip((plane.astype(np.float32) - low) / (high - low), 0, 1)
    return np.asarray(unit ** np.float32(0.8), np.float32)


@dataclass(frozen=True)
class Rendering:
    """The registered image of a sample as pictures.

    ``key`` lists (marker, CSS colour) of the composite; ``channels`` a picture per channel.
    """

    composite: Picture
    key: list[tuple[str, str]]
    channels: list[Picture]
    names: list[str]


def render(
    path: Path, nuclei: int = 0, leave_out: Collection[int] = (), channel_px: int = 420
) -> Rendering:
    """Render an OME-Zarr image from its smallest sufficient level.

    The composite takes the channel number ``nuclei`` and up to four more with the strongest
    contrast, the channel numbers in ``leave_out`` excepted.
    """
    image = open_image(path)
    planes = [_scaled(plane) for plane in _level(image)]
    others = [k for k in range(len(planes)) if k != nuclei and k not in leave_out]
    others.sort(key=lambda k: (-round(float(planes[k].std()), 3), k))
    chosen = [nuclei, *sorted(others[: MAX_COMPOSITE - 1])]
    colours = np.array(_COLOURS, np.float32)[: len(chosen)] / 255
    total = sum(planes[k][..., None] * colour for k, colour in zip(chosen, colours, strict=True))
    composite = np.clip(np.asarray(total), 0, 1)
    step = max(1, -(-max(planes[0].shape) // channel_px))
    return Rendering(
        embed(np.rint(255 * composite).astype(np.uint8)),
        [
            (image.channel_names[k], "#%02x%02x%02x" % _COLOURS[n])  # noqa: UP031
            for n, k in enumerate(chosen)
        ],
        [embed(np.rint(255 * plane[::step, ::step]).astype(np.uint8)) for plane in planes],
        list(image.channel_names),
    )
