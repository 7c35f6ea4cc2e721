"""Small mosaics of phantom tissue, and one stage of quality asked about files."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.phantom.make import Phantom, PhantomDesign
from tilewright.quality.evaluate import QcRecord, evaluate_stage, read_qc

PEDESTAL = 100.0
Plane = NDArray[np.float64]


class Section(NamedTuple):
    """Nuclei in electrons, no noise: as the microscope sees them (z, y, x), and in focus (y, x)."""

    stack: Plane
    truth: Plane


@functools.cache
def section() -> Section:
    design = PhantomDesign(
        seed=5, cycles=1, channels=2, rows=2, cols=2, planes=5, tile_px=288, empty_tile=False,
        saturated_spots=0, tissue_share=0.97,
    )  # fmt: skip
    nuclei = next(iter(Phantom(design).specimens()))
    at = np.indices(design.canvas, dtype=np.float32)
    planes = [ndimage.map_coordinates(p, at, order=3, prefilter=False) for p in nuclei.planes]
    light = np.maximum(np.stack(planes), 0).astype(np.float64) + 10
    return Section(light, nuclei.in_focus().astype(np.float64))


def expose(light: Plane, seed: int = 0, pedestal: float = PEDESTAL) -> NDArray[np.uint16]:
    """Return counts with Poisson and read noise over the pedestal."""
    rng = np.random.default_rng(seed)
    electrons = rng.poisson(np.maximum(light, 0)) + rng.normal(0, 2.5, light.shape)
    return np.clip(np.rint(electrons * 8 + pedestal), 0, 65535).astype(np.uint16)


def judged(stage: str, folder: Path, **files: Any) -> QcRecord:
    """Ask a stage, and look at its picture."""
    outputs = folder / "qc.json", folder / "qc.png"
    evaluate_stage(stage, files, *outputs, sample="s", cycle=1, channels=[("1", "DAPI")])
    code = outputs[1].read_bytes()
    # A date or the software's version in the file would make every run another.
    assert b"Software" not in code
    assert b"tIME" not in code
    picture = np.asarray(imagecodecs.png_decode(code))
    assert picture.ndim == 3
    assert picture.std() > 5
    quality = read_qc(outputs[0])
    assert quality.caption
    return quality


def verdicts(quality: QcRecord) -> dict[str, str]:
    return {item.metric: item.verdict for item in quality.items}


def values(quality: QcRecord) -> dict[str, float | None]:
    return {item.metric: item.value for item in quality.items}


def details(quality: QcRecord) -> dict[str, str]:
    return {item.metric: item.detail for item in quality.items}
