"""What the final image is compared with of a stitched stack, stored beyond the stack itself."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.npz import read_npz
from tilewright.io.results.result_file import result_file_errors
from tilewright.quality.dark_rings import REACH_PX, RING_PX, around, bright_objects, raw
from tilewright.quality.figures import thumbnail
from tilewright.quality.sampling import FocusScan

#: Longest side of the overview.
SMALL_PX = 512
#: Planes of the stack whose mean is the overview: light hardly depends on the plane.
_PLANES = 3
#: Blocks whose detail is compared.
_BLOCKS = 6


@dataclass(frozen=True)
class StitchedView:
    """One channel's stack in short; all are arrays, scalars too."""

    light: NDArray[np.float32]
    factor: NDArray[np.int64]
    """float32 (y, x): mean of some planes, ``factor`` times smaller; zero light is 0."""
    blocks: NDArray[np.int64]
    """int64 (blocks, 2): origins (y, x) of the most textured blocks, in px of the stack."""
    side: NDArray[np.int64]
    """Their size in px."""
    focus: NDArray[np.float64]
    """float64 (blocks,): band-ratio focus of each in its sharpest plane; NaN without signal."""
    objects: NDArray[np.int64]
    """int64 (objects, 2): brightest pixels of the brightest objects of the sharpest plane."""
    rings: NDArray[np.float64]
    """float64 (objects, 4, rings): the darkest plane's medians around each, of
    :func:`~tilewright.quality.dark_rings.ring_medians`.
    """


def view_of(mosaic: Mosaic, scan: FocusScan) -> StitchedView:
    """Return the view of a stack whose focus was scanned."""
    planes = np.unique(np.linspace(0, mosaic.shape[0] - 1, _PLANES).round().astype(int))
    smalls = [thumbnail(mosaic, int(z), SMALL_PX) for z in planes]
    light = np.mean([small for small, _ in smalls], axis=0)
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    light -= np.float32(pedestal)
    scores = scan.scores[:_BLOCKS]
    focus = np.nanmax(np.nan_to_num(scores, nan=-np.inf), axis=1)
    focus[np.isinf(focus)] = np.nan
    objects = bright_objects(mosaic, scan.best_plane)
    rings = [
        raw(mosaic, at, mosaic.read(scan.best_plane, *around(at)[0]).astype(np.float64) - pedestal)
        for at in objects
    ]
    return StitchedView(
        np.asarray(light, np.float32),
        np.asarray(smalls[0][1], np.int64),
        np.asarray(scan.blocks[:_BLOCKS], np.int64).reshape(-1, 2),
        np.asarray(scan.side, np.int64),
        focus,
        np.asarray(objects, np.int64).reshape(-1, 2),
        np.asarray(rings, np.float64).reshape(-1, 4, REACH_PX // RING_PX),
    )


def arrays(view: StitchedView, token: str) -> dict[str, NDArray[Any]]:
    """Return a view as arrays, under names that hold the channel's token."""
    return {f"{token}/{item.name}": getattr(view, item.name) for item in fields(view)}


def read_view(path: Path, token: str) -> StitchedView:
    """Read one channel's view from a file of :func:`arrays`.

    Raises
    ------
    ResultFileError
        The file does not hold it.
    """
    with result_file_errors(path, f"view of channel {token}"):
        stored = read_npz(path)
        return StitchedView(**{f.name: stored[f"{token}/{f.name}"] for f in fields(StitchedView)})
