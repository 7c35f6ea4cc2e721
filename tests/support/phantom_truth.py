"""The truth of a phantom, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.positions import read_positions
from tilewright.phantom.camera import CycleMap
from tilewright.phantom.design import PhantomDesign


@dataclass(frozen=True)
class PhantomTruth:
    """What is true of a phantom on disk, as ``write_truth`` says; cycles and channels from 1."""

    design: PhantomDesign
    nominal_px: NDArray[np.float64]
    true_px: NDArray[np.float64]
    flat: NDArray[np.float32]
    dark_counts: NDArray[np.float32]
    hot_counts: NDArray[np.float32]
    height_um: NDArray[np.float32]
    tissue: NDArray[np.uint8]
    kept: NDArray[np.uint8]
    displacement_px: NDArray[np.float32]
    maps: list[CycleMap]
    projections: dict[tuple[int, int], NDArray[np.float32]]


def mosaic_offset(sample: Path, truth: PhantomTruth, cycle: int) -> NDArray[np.float64]:
    """Return where the first pixel (y, x) of a cycle's mosaic lies on the phantom's canvas."""
    found = read_positions(sample / f"tile_positions/cycle{cycle}/positions.csv")
    placed = np.stack([found.y_px, found.x_px], axis=1)
    tied = found.island == 0
    offset: NDArray[np.float64] = (truth.true_px[cycle - 1] - placed)[tied].mean(axis=0)
    return offset


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def read_truth(folder: Path) -> PhantomTruth:
    """Read what ``phantom.make.write_truth`` wrote into ``folder``."""
    facts = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    with np.load(folder / "truth.npz") as arrays:
        named = {key: arrays[key] for key in arrays.files}
    images = {key: value for key, value in named.items() if key.startswith("projection_")}
    projections = {}
    for key, number in facts["projections"].items():
        cycle, channel = (int(part) for part in key.split(","))
        projections[cycle, channel] = images[f"projection_{number}"]
    return PhantomTruth(
        design=PhantomDesign(**{k: _tuples(v) for k, v in facts["design"].items()}),
        maps=[CycleMap(**{k: _tuples(v) for k, v in m.items()}) for m in facts["maps"]],
        projections=projections,
        **{key: value for key, value in named.items() if key not in images},
    )
