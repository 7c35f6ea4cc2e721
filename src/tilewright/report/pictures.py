"""Pictures of the report page: WebP in data URIs, and renderings of the final image."""

import base64
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import PIL.Image
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from tilewright.io.results.ome_zarr import Image, open_image
from tilewright.quality.figures import display_range

#: Nuclei blue, then colours that can be told from each other when added.
COLOURS = ((70, 110, 255), (0, 230, 90), (255, 60, 60), (255, 210, 0), (255, 70, 230))
#: A composite of more markers than this is a blur of colours.
MAX_COMPOSITE = len(COLOURS)


@dataclass(frozen=True)
class Picture:
    """A picture ready for an ``img`` element: data URI and size in px."""

    data: str
    width: int
    height: int


def embed(pixels: NDArray[Any], level: int = 84) -> Picture:
    """Encode grey (y, x) or RGB (y, x, 3) as WebP of a quality of 0 to 100 in a data URI.

    Pixels are uint8, or floats from 0 to 1.
    """
    counts = pixels if pixels.dtype == np.uint8 else np.rint(255 * pixels).astype(np.uint8)
    colour = counts if counts.ndim == 3 else np.repeat(counts[..., None], 3, axis=2)
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
        embed(composite),
        [(image.channel_names[k], to_hex(c)) for k, c in zip(chosen, colours, strict=True)],
        [embed(plane[::step, ::step]) for plane in planes],
    )
