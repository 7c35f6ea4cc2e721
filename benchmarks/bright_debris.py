"""What bright debris does to their surroundings in the in-focus plane.

``python -m benchmarks.bright_debris --peer-python PATH [--scenes S …] [--seeds N …] [--work
FOLDER]`` with the interpreter of an environment with numpy, scipy and psfmodels, which makes the
stacks (:mod:`benchmarks.scenes.bright_debris`). The stage projects each stack with and without its
debris, by ``multiplane_wiener`` and by ``focus_weighted``; each method is compared with its own
plane without debris. Rings of 2 px around each place, from where the raw plane in which the debris
is sharp has less than 20 % more light of it than the local signal: *low* and *high* are the worst
medians over those without debris (rings of 100 counts and more), *zeros* the share of pixels within
40 px that are newly 0, *reach* the distance out to which half of the pixels differ by more than 5 %
(of at least 20 counts).
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenes.bright_debris import SCENES
from tilewright.io.results.mosaic import create_mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.stages.edf import Method
from tilewright.stages.edf.plane import edf_plane

ROOT = Path(__file__).resolve().parents[1]
LOW, HIGH, ZEROS = 0.85, 1.25, 0.002
_RING_PX, _FAR_PX = 2, 90
_METHODS: tuple[Method, Method] = ("focus_weighted", "multiplane_wiener")
Image = NDArray[np.float64]


class Effect(NamedTuple):
    """What a place's debris does to a plane."""

    low: float
    high: float
    zeros: float
    reach: int


def main() -> None:
    """Run the scenes and print a line for each place, then what holds for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--scenes", nargs="*", default=[*SCENES])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--work", type=Path, help="folder that keeps stacks and planes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(exist_ok=True)
        rows = []
        print(f"{'scene':10}{'place':>6}{'peak':>9}{'radius':>7}{'plane':>6}{'debris':>7}", end="")
        print(f"{'low':>14}{'high':>14}{'zeros %':>14}{'reach px':>12}   (soft, wiener)")
        for scene in options.scenes:
            for seed in options.seeds:
                stack = _stack(options.peer_python, work, scene, seed)
                for name, effects in _effects(stack, work, scene, seed):
                    rows.append(effects)
                    soft, wiener = effects
                    cells = "".join(
                        f"{a:7.2f}{b:7.2f}" for a, b in zip(soft[:2], wiener[:2], strict=True)
                    )
                    print(
                        f"{name}{cells}{100 * soft.zeros:7.2f}{100 * wiener.zeros:7.2f}"
                        f"{soft.reach:6d}{wiener.reach:6d}",
                        flush=True,
                    )
    for which, name in enumerate(_METHODS):
        told = [row[which] for row in rows]
        low, high = (np.array([getattr(e, key) for e in told]) for key in ("low", "high"))
        zeros = np.array([e.zeros for e in told])
        print(
            f"{name}: {len(told)} places, low {np.nanmin(low):.2f} ({np.sum(low < LOW)} below "
            f"{LOW}), high {np.nanmax(high):.2f} ({np.sum(high > HIGH)} above {HIGH}), zeros "
            f"{100 * zeros.max():.2f} % ({np.sum(zeros > ZEROS)} above {100 * ZEROS} %), reach "
            f"{np.mean([e.reach for e in told]):.1f} px"
        )


def _stack(peer: str, work: Path, scene: str, seed: int) -> dict[str, Any]:
    path = work / f"{scene}_{seed}.npz"
    if not path.is_file():
        command = [peer, "-m", "benchmarks.scenes.bright_debris", str(path), scene, str(seed)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    with np.load(path) as data:
        return {key: data[key] for key in data}


def _effects(
    stack: dict[str, Any], work: Path, scene: str, seed: int
) -> Iterator[tuple[str, tuple[Effect, Effect]]]:
    """Yield each place, described, and what the two methods make of it."""
    planes: dict[tuple[str, str], Image] = {}
    for kind in ("clean", "img"):
        for method in _METHODS:
            kept = work / f"{scene}_{seed}_{kind}_{method}.npy"
            if method == "focus_weighted" and kept.is_file():
                planes[kind, method] = np.load(kept)
            else:
                planes[kind, method] = _plane(stack[kind], scene, method, stack["bg"])
                np.save(kept, planes[kind, method])
    places = stack["places"]
    yy, xx = np.indices(stack["img"].shape[1:])
    away = np.array([np.hypot(yy - y, xx - x) for y, x in places[:, :2]])
    nearest = places[away.argmin(axis=0), 2]
    distance = away.min(axis=0)
    for place in np.unique(places[:, 2]):
        own = places[places[:, 2] == place]
        here = (nearest == place) & (distance < _FAR_PX)
        ring = (distance[here] / _RING_PX).astype(int)
        light = stack["light"][int(own[0, 3])][here]
        effects = tuple(
            _effect(ring, light, planes["clean", m][here], planes["img", m][here]) for m in _METHODS
        )
        name = f"{scene:8}{seed:2d}{int(place):6d}{own[0, 4]:9.0f}{own[0, 5]:7.1f}"
        yield f"{name}{int(own[0, 3]):6d}{len(own):7d}", (effects[0], effects[1])


def _plane(stack: NDArray[np.uint16], scene: str, method: Method, pedestal: Any) -> Image:
    told = SCENES[scene]
    optics = {
        "numerical_aperture": told.aperture,
        "emission_nm": 1000 * told.wavelength,
        "immersion_refractive_index": told.immersion,
        "sample_refractive_index": told.sample,
    }
    voxel = (told.step, told.pixel, told.pixel)
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "stack.zarr"), Path(folder, "plane.zarr")
        attributes = {"pedestal_counts": int(pedestal)}
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
            method=method,
            optics=optics,
        )
        found = open_mosaic(output)
        return np.asarray(found.read(0), float)


def _effect(ring: NDArray[Any], light: Image, clean: Image, image: Image) -> Effect:
    """Compare pixels of rings with those of the plane without debris."""
    count = int(ring.max()) + 1
    at = [ring == r for r in range(count)]
    before, after, debris = (
        np.array([np.median(v[m]) if m.any() else np.nan for m in at])
        for v in (clean, image, light)
    )
    contaminated = np.flatnonzero(debris >= 0.2 * np.maximum(before, 1))
    first = int(contaminated.max()) + 1 if contaminated.size else 0
    judged = np.arange(count) >= first
    ratio = (after / np.maximum(before, 1))[judged & (before >= 100)]
    near = (ring >= first) & (ring < 40 // _RING_PX)
    zeros = float(np.mean(image[near] == 0) - np.mean(clean[near] == 0)) if near.any() else 0.0
    wrong = np.abs(image - clean) > 0.05 * np.maximum(clean, 20)
    share = np.array([wrong[m].mean() if m.any() else 0 for m in at])
    right = np.flatnonzero(share < 0.5)
    reach = int(right[0]) * _RING_PX if right.size else _FAR_PX
    low, high = (float(f(ratio)) if ratio.size else np.nan for f in (np.min, np.max))
    return Effect(low, high, zeros, reach)


if __name__ == "__main__":
    main()
