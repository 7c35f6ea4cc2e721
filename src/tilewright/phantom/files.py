"""Raw files of a phantom, as a CODEX microscope writes them."""

import json
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.phantom.design import PhantomDesign


def tile_number(design: PhantomDesign, tile: int) -> int:
    """Return the number, from 1, under which the stage visited a tile.

    ``tile`` counts by (row, col); the stage goes there and back (snake by rows).

    >>> [tile_number(PhantomDesign(seed=0, rows=2, cols=3), t) for t in range(6)]
    [1, 2, 3, 6, 5, 4]
    """
    row, col = divmod(tile, design.cols)
    return row * design.cols + (design.cols - 1 - col if row % 2 else col) + 1


def tile_path(
    raw: Path, design: PhantomDesign, cycle: int, channel: int, tile: int, z: int
) -> Path:
    """Return the file of one plane; cycle and channel from 1, tile and z from 0."""
    number = tile_number(design, tile)
    return raw / f"Cyc{cycle}_reg1" / f"1_{number:05}_Z{z + 1:03}_CH{channel}.tif"


def write_tile(
    raw: Path, design: PhantomDesign, cycle: int, channel: int, tile: int, stack: NDArray[np.uint16]
) -> None:
    """Write one tile (z, y, x), a file per plane."""
    for z, plane in enumerate(stack):
        path = tile_path(raw, design, cycle, channel, tile, z)
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(path, plane, metadata=None, software="")


def write_metadata(raw: Path, design: PhantomDesign) -> None:
    """Write ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``."""
    d = design
    raw.mkdir(parents=True, exist_ok=True)
    wavelengths = [round(d.optics(c + 1).wavelength_um * 1000) for c in range(d.channels)]
    experiment = {
        "name": f"phantom-{d.seed}",
        "numCycles": d.cycles,
        "numChannels": d.channels,
        "numZPlanes": d.planes,
        "regionWidth": d.cols,
        "regionHeight": d.rows,
        "tileOverlapX": d.overlap,
        "tilingMode": "snake",
        "referenceCycle": 1,
        "referenceChannel": 1,
        "objectiveType": "air",
        "aperture": d.aperture,
        "xyResolution": d.pixel_um * 1000,
        "zPitch": d.z_step_um * 1000,
        "wavelengths": wavelengths,
        "channelNames": {"channelNamesArray": [n for names in d.markers() for n in names]},
    }
    text = json.dumps(experiment, indent=2) + "\n"
    (raw / "experiment.json").write_text(text, encoding="utf-8")
    names = [name for cycle in d.markers() for name in cycle]
    (raw / "channelnames.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    lines = ["Cycle," + ",".join(f"CH{c + 1}" for c in range(d.channels))]
    for cycle in range(1, d.cycles + 1):
        times = [f"{d.exposure_ms(cycle, c + 1):g}" for c in range(d.channels)]
        lines.append(f"{cycle}," + ",".join(times))
    (raw / "exposure_times.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
