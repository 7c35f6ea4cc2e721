"""Files of a phantom: CODEX raw folder, and the truth beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.phantom.design import PhantomDesign

if TYPE_CHECKING:
    from tilewright.phantom.make import Phantom

#: Distance in px between samples of the stored displacement fields.
FIELD_STEP_PX = 16


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
    raw: Path,
    design: PhantomDesign,
    cycle: int,
    channel: int,
    tile: int,
    stack: NDArray[np.uint16],
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
    step = round(d.step_px)
    experiment = {
        "name": f"phantom-{d.seed}",
        "codex_instrument": "tilewright phantom",
        "microscope": "simulated widefield",
        "bitDepth": 16,
        "numCycles": d.cycles,
        "numChannels": d.channels,
        "numZPlanes": d.planes,
        "regIdx": [1],
        "region_names": ["phantom"],
        "regionWidth": d.cols,
        "regionHeight": d.rows,
        "tileWidth": step,
        "tileHeight": step,
        "tileOverlapX": d.overlap,
        "tileOverlapY": d.overlap,
        "tilingMode": "snake",
        "referenceCycle": 1,
        "referenceChannel": 1,
        "objectiveType": "air",
        "aperture": d.aperture,
        "magnification": 20,
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


def write_truth(
    folder: Path, phantom: Phantom, projections: Mapping[tuple[int, int], NDArray[np.float32]]
) -> None:
    """Write ``truth.npz`` (arrays) and ``truth.json`` (design, markers, canvas, maps).

    Arrays, cycles and channels from 0, are

    - ``nominal_px`` (n, 2) and ``true_px`` (cycles, n, 2), float64: (y, x) of tiles ordered by
      (row, col). True positions are canvas pixels in the frame of their cycle.
    - ``flat``, float32 (channels, y, x): flat-field of mean 1.
    - ``dark_counts``, ``hot_counts``, float32 (y, x): offset with dark-field; what hot pixels add.
    - ``height_um``, float32 (y, x): z of the sheet's middle on the reference canvas; plane k of n
      lies at ``(k - (n - 1) / 2) * z_step_um``.
    - ``tissue``, uint8 (y, x): 1 where tissue is, reference canvas.
    - ``kept``, uint8 (cycles, y, x): 0 where a cycle lost tissue, reference canvas.
    - ``displacement_px``, float32 (cycles, 2, y // 16, x // 16): reference minus cycle
      coordinates (y, x), sampled every 16 px of the cycle's frame; ``maps`` are the same, exact.
    - ``projection_<k>``, float32 (y, x): z-integrated in-focus specimen in counts above the
      offset, reference canvas, without vignetting, loss and noise. ``projections`` of the JSON
      tells k of each "cycle,channel", from 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    d = phantom.design
    y = np.arange(0, d.canvas[0], FIELD_STEP_PX, dtype=np.float64)[:, None]
    x = np.arange(0, d.canvas[1], FIELD_STEP_PX, dtype=np.float64)[None, :]
    grid = np.stack(np.broadcast_arrays(y, x))
    fields = [np.stack(m.to_reference(y, x)) - grid for m in phantom.maps]
    # A specimen seen in several cycles is stored once.
    distinct = {id(image): image for image in projections.values()}
    order = {key: k for k, key in enumerate(distinct)}
    arrays: dict[str, Any] = {
        "nominal_px": phantom.nominal_px,
        "true_px": phantom.true_px,
        "flat": np.stack(phantom.flats),
        "dark_counts": phantom.camera.dark_counts,
        "hot_counts": phantom.camera.hot_counts,
        "height_um": phantom.tissue.height_um,
        "tissue": (phantom.tissue.mask > 0.5).astype(np.uint8),
        "kept": np.stack([kept > 0.5 for kept in phantom.kept]).astype(np.uint8),
        "displacement_px": np.stack(fields).astype(np.float32),
    }
    for key, image in distinct.items():
        arrays[f"projection_{order[key]}"] = image * np.float32(d.gain_counts)
    np.savez(folder / "truth.npz", **arrays)
    facts = {
        "design": asdict(d),
        "markers": d.markers(),
        "canvas_px": list(d.canvas),
        "maps": [asdict(m) for m in phantom.maps],
        "projections": {f"{c},{k}": order[id(image)] for (c, k), image in projections.items()},
    }
    text = json.dumps(facts, indent=1) + "\n"
    (folder / "truth.json").write_text(text, encoding="utf-8")
