"""The constants of the in-focus plane, and what a change of one costs.

``tissue`` and ``haze`` are the mean PSNR (dB, after an affine fit) of the stage's planes of
:mod:`benchmarks.scenes.edf`, ``reach`` is the mean distance in px from bright debris from which on
a plane is right, ``low`` the darkest ring, as ``python -m benchmarks.bright_debris`` measures them.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bright_debris import _effects, _stack
from benchmarks.multiplane_wiener import psnr
from benchmarks.scenes import edf as edf_scenes
from benchmarks.scenes.edf import DESIGNS, Scene
from tilewright.io.results.mosaic import create_mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.stages.edf.plane import edf_plane

ROOT = Path(__file__).resolve().parents[1]
#: Scores, and the scenes of each: designs of made tissue with a seed, and debris scenes.
SCENES = {
    "tissue": ("wavy", "thick", "flat", "dim", "beyond", "five"),
    "haze": ("hazy_thick", "hazy_dim", "dense"),
    "debris": ("bright",),
}
SEED = 11


def _constants() -> list[tuple[str, str]]:
    with (ROOT / "docs/constants-edf.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [(row["module"], row["name"]) for row in rows if row["kind"] in ("figures", "chosen")]


CONSTANTS = _constants()


def evaluate() -> dict[str, float]:
    """Return the scores of the scenes that ``SCENES`` of the environment names, else of all."""
    named = os.environ.get("SCENES", "").split()
    peer = os.environ.get("PEER_PYTHON", sys.executable)
    scores: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(os.environ.get("WORK", temporary))
        for score, scenes in SCENES.items():
            chosen = [scene for scene in scenes if not named or scene in named]
            if chosen and score == "debris":
                scores |= _debris(chosen, peer, work)
            elif chosen:
                scores[score] = float(np.mean([_tissue(scene, peer, work) for scene in chosen]))
    return scores


def _tissue(design: str, peer: str, work: Path) -> float:
    """Return the PSNR of the stage's plane of a made stack."""
    path = work / f"{design}_{SEED}.npz"
    if not path.is_file():
        command = [peer, str(edf_scenes.__file__), str(path), design, str(SEED)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with np.load(path) as data:
        stack, truth, offset = data["img"], data["gt"], float(data["bg"])
    return psnr(_plane(stack, DESIGNS[design], offset), truth)[0]


def _debris(scenes: list[str], peer: str, work: Path) -> dict[str, float]:
    """Return how far from debris the stage's plane is right, and its darkest ring."""
    found = [
        wiener
        for scene in scenes
        for _, (_, wiener) in _effects(_stack(peer, work, scene, SEED), work, scene, SEED)
    ]
    reach, low = (np.array([getattr(e, key) for e in found]) for key in ("reach", "low"))
    return {"reach": float(reach.mean()), "low": float(np.nanmin(low))}


def _plane(stack: NDArray[np.uint16], scene: Scene, offset: float) -> NDArray[np.float32]:
    """Return the plane that the stage makes of a stack."""
    optics = {
        "numerical_aperture": scene.aperture,
        "emission_nm": 1000 * scene.wavelength,
        "immersion_refractive_index": scene.immersion,
        "sample_refractive_index": scene.sample,
    }
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "stack.zarr"), Path(folder, "plane.zarr")
        voxel = (scene.step, scene.pixel, scene.pixel)
        attributes: dict[str, Any] = {"pedestal_counts": int(offset)}
        shape = (stack.shape[0], stack.shape[1], stack.shape[2])
        with create_mosaic(
            source, shape, stack.dtype, shape[1], voxel, attributes=attributes
        ) as writer:
            for z, plane in enumerate(stack):
                writer.write(z, 0, 0, plane)
        edf_plane(
            source,
            output,
            Path(folder, "height.tif"),
            backend=cpu_backend(1),
            method="multiplane_wiener",
            optics=optics,
        )
        image: NDArray[np.float32] = open_mosaic(output).read(0).astype(np.float32)
        return image
