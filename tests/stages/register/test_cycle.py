from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.slides import Motion, Slide, counts
from tests.support.tissue_pair import Pair, make_pair
from tilewright.io.results.mosaic import create_mosaic
from tilewright.io.results.reading import ResultFileError
from tilewright.io.results.transform import read_transform
from tilewright.kernels.backend import Backend
from tilewright.kernels.register.warp import Transform
from tilewright.report.metric_table import METRICS
from tilewright.stages.register import cycle as stage
from tilewright.stages.register.cycle import MismatchError, register
from tilewright.stages.register.plane_views import Plane

Image = NDArray[np.uint16]


def run(
    backend: Backend,
    folder: Path,
    reference: Plane | NDArray[Any] | Path,
    moving: Plane | NDArray[Any] | Path,
    **options: Any,
) -> Transform:
    defaults = {
        "block_px": 96,
        "max_shift_px": None,
        "max_rotation_deg": 3.0,
        "allow_unregistered": False,
    }
    return register(
        reference,
        moving,
        folder / "t.npz",
        folder / "t.json",
        backend=backend,
        **defaults | options,
    )


def grid(pair: Pair, margin_px: int = 60) -> NDArray[np.float64]:
    """Return reference positions that the moving image shows."""
    y, x = np.mgrid[0 : pair.reference.shape[0] : 16, 0 : pair.reference.shape[1] : 16]
    points = np.stack([y.ravel(), x.ravel()], 1).astype(np.float64)
    seen = pair.truth(points)
    limit = np.array(pair.moving.shape) - margin_px
    return points[((seen > margin_px) & (seen < limit)).all(axis=1)]


class Cores(Motion):
    """A microarray whose cores, 800 px apart, moved by 2 px each."""

    def points(self, yx: NDArray[np.float64]) -> NDArray[np.float64]:
        own = np.random.default_rng(5).normal(0, 2, (6, 6, 2))
        row, column = (yx // 800).astype(int).T
        return np.asarray(super().points(yx) + own[row, column])


def of_islands(yx: NDArray[np.float64]) -> NDArray[np.bool_]:
    centres = np.random.default_rng(3).random((12, 2)) * 4096
    away = np.hypot(*(yx[:, None] - centres).T).min(axis=0)
    return np.asarray(away < np.quantile(away, 0.15))


def of_cores(yx: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(np.hypot(*(yx % 800 - 400).T) < 300)


@pytest.mark.parametrize(
    ("motion", "kept"),
    [
        (Motion(4096, (90.0, -70.0), 0.3, 30.0), of_islands),
        (Cores(4096, (60.0, -50.0), 0.3, 4.0), of_cores),
    ],
)
def test_islands_that_lie_otherwise_than_most_tissue_are_registered(
    cpu: Backend,
    tmp_path: Path,
    motion: Motion,
    kept: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
) -> None:
    """Searched for from one constant, some were 20 and 7 px off while the quality said pass."""
    slide = Slide(4096, 3)
    slide.yx = slide.yx[kept(slide.yx)]
    still, moved = (
        counts(np.random.default_rng(k), slide.moved(one).draw(0, 0, (4096, 4096)))
        for k, one in enumerate((Motion(4096), motion))
    )
    transform = run(cpu, tmp_path, still, moved)
    truth = motion.points(slide.yx)
    seen = ((truth > 100) & (truth < 3996) & (slide.yx > 100) & (slide.yx < 3996)).all(axis=1)
    assert np.hypot(*(transform.points(slide.yx[seen]) - truth[seen]).T).max() < 0.4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rotation_shift_and_elastic_deformation(cpu: Backend, tmp_path: Path, seed: int) -> None:
    pair = make_pair(seed)
    transform = run(cpu, tmp_path, pair.reference, pair.moving)
    points = grid(pair)
    errors = pair.errors(transform.points(points), points)
    assert np.median(errors) < 0.1
    assert np.percentile(errors, 95) < 0.25
    assert errors.max() < 0.8
    quality: Any = transform.quality
    assert quality["registered"] is True
    assert quality["ncc_after"] > 0.85
    assert quality["ncc_after"] > 2 * quality["ncc_chance"]
    # The residual of an independent pass is no smaller than the error, nor far from it.
    assert quality["residual_median_px"] < 0.25
    assert abs(quality["rotation_deg"] - 1.2) < 0.11


def lose_tissue(image: Image, seed: int) -> Image:
    """Tear a ragged half of the tissue off, leaving noise, and saturate spots."""
    rng = np.random.default_rng(seed)
    out = image.copy()
    edge = 400 + (40 * np.sin(np.arange(image.shape[0]) / 40)).astype(int)
    lost = np.arange(image.shape[1]) > edge[:, None]
    out[lost] = (rng.poisson(20, lost.sum()) * 4 + 100).astype(np.uint16)
    for y, x in rng.integers(20, 380, (12, 2)):
        out[y - 4 : y + 5, x - 4 : x + 5] = 65535
    return out


@pytest.mark.parametrize("seed", [3, 4])
def test_lost_tissue_and_saturated_spots(cpu: Backend, tmp_path: Path, seed: int) -> None:
    pair = make_pair(seed, shift_px=(-12.0, 20.0))
    transform = run(cpu, tmp_path, pair.reference, lose_tissue(pair.moving, seed))
    points = grid(pair)
    errors = pair.errors(transform.points(points), points)
    kept = pair.truth(points)[:, 1] < 330
    assert np.median(errors[kept]) < 0.12
    assert np.percentile(errors[kept], 95) < 0.4
    # Nothing holds the field where the tissue is lost, but it does not tear.
    assert errors.max() < 12
    jumps = np.abs(np.diff(transform.field, axis=2)).max()
    assert jumps < 1.5


def test_images_of_different_size_and_large_shift(cpu: Backend, tmp_path: Path) -> None:
    pair = make_pair(5, size=(620, 700), moving_size=(800, 560), shift_px=(230.0, -150.0))
    transform = run(cpu, tmp_path, pair.reference, pair.moving)
    points = grid(pair)
    assert len(points) > 300
    errors = pair.errors(transform.points(points), points)
    assert np.median(errors) < 0.12
    assert np.percentile(errors, 95) < 0.4


def test_same_image_stays_in_place(cpu: Backend, tmp_path: Path) -> None:
    image = make_pair(6, size=(500, 500)).reference
    transform = run(cpu, tmp_path, image, image)
    points = np.mgrid[0:500:50, 0:500:50].reshape(2, -1).T.astype(np.float64)
    assert np.abs(transform.points(points) - points).max() < 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_other_tissue_is_refused(cpu: Backend, tmp_path: Path, seed: int) -> None:
    reference, other = make_pair(seed).reference, make_pair(seed + 50).moving
    with pytest.raises(MismatchError, match=r"contradicting overlays up to .* blocks .* needed"):
        run(cpu, tmp_path, reference, other)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("design", "warns"),
    [
        ({}, False),
        ({"angle_deg": 2.5}, False),
        ({"elastic_px": 5.0}, False),  # up to 12 px, smooth over 500 px
        ({"gain": 0.01}, False),
        ({"elastic_px": 6.0, "wave_rad": 0.07}, True),  # changes within 100 px
        ({"gain": 0.004}, True),  # 2 to 6 photo-electrons over 20 of background
    ],
)
def test_local_error_warns_where_the_field_is_wrong(
    cpu: Backend, tmp_path: Path, design: dict[str, float], warns: bool
) -> None:
    pair = make_pair(7, **design)  # type: ignore[arg-type]
    transform = run(cpu, tmp_path, pair.reference, pair.moving)
    points = grid(pair)
    error = np.percentile(pair.errors(transform.points(points), points), 90)
    found = float(transform.quality["local_error_px"])  # type: ignore[arg-type]
    assert (METRICS["local_error_px"].threshold.judge(found) != "pass") == warns
    assert found > error / 5


def test_an_inverted_stain_is_refused_with_fitting_advice(cpu: Backend, tmp_path: Path) -> None:
    pair = make_pair(5)
    inverted = np.clip(4000 - pair.moving.astype(int), 0, None).astype(np.uint16)
    with pytest.raises(MismatchError, match="negative of the other"):
        run(cpu, tmp_path, pair.reference, inverted)
    other = make_pair(6)
    with pytest.raises(MismatchError, match="check that both show the same tissue"):
        run(cpu, tmp_path, pair.reference, other.moving)


def test_blurred_cycle_is_registered(cpu: Backend, tmp_path: Path) -> None:
    pair = make_pair(4)
    blurred = ndimage.gaussian_filter(pair.moving.astype(np.float32), 4)
    noisy = np.random.default_rng(0).poisson(blurred).astype(np.uint16)
    transform = run(cpu, tmp_path, pair.reference, noisy)
    points = np.mgrid[60:700:40, 60:760:40].reshape(2, -1).T.astype(np.float64)
    assert np.median(pair.errors(transform.points(points), points)) < 0.5


def test_agreement_by_chance_is_refused(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform whose blocks agree no better than blocks of other places is not kept."""
    pair = make_pair(4, size=(500, 520))
    honest = stage.assess

    def by_chance(*args: Any) -> dict[str, object]:
        return honest(*args) | {"ncc_after": 0.213, "ncc_chance": 0.218}

    monkeypatch.setattr(stage, "assess", by_chance)
    with pytest.raises(MismatchError, match=r"agree with NCC 0\.21, .* 0\.22 by chance"):
        run(cpu, tmp_path, pair.reference, pair.moving)
    assert not list(tmp_path.iterdir())


def blank(kind: str, shape: tuple[int, int]) -> Image:
    if kind == "constant":
        return np.full(shape, 100, np.uint16)
    noise = np.random.default_rng(0).poisson(20, shape) * 4 + 100
    return noise.astype(np.uint16)


@pytest.mark.parametrize("kind", ["constant", "noise"])
@pytest.mark.parametrize("swap", [False, True])
def test_blank_image_is_refused(cpu: Backend, tmp_path: Path, kind: str, swap: bool) -> None:
    images = [make_pair(0, size=(500, 520)).reference, blank(kind, (500, 520))]
    with pytest.raises(MismatchError):
        run(cpu, tmp_path, *(images[::-1] if swap else images))


def test_unregistered_by_declaration(cpu: Backend, tmp_path: Path) -> None:
    reference = make_pair(0, size=(500, 520)).reference
    run(cpu, tmp_path, reference, blank("noise", (480, 500)), allow_unregistered=True)
    transform = read_transform(tmp_path / "t.npz")
    assert transform.is_identity
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["registered"] is False
    assert "do not match" in written["reason"]
    assert written["affine"] == [[1, 0, 0], [0, 1, 0]]


def test_an_image_smaller_than_a_block_is_refused(cpu: Backend, tmp_path: Path) -> None:
    image = make_pair(0, size=(200, 200)).reference
    with pytest.raises(ValueError, match="smaller than a block"):
        run(cpu, tmp_path, image, image[:50])


@dataclass
class Watched:
    """A plane that keeps the sizes of what is read from it."""

    array: Image
    sizes: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.array.shape[1]

    def read(self, y: slice, x: slice) -> Image:
        part = self.array[y, x]
        self.sizes.append(part.size)
        return part


def test_large_images_are_read_in_parts(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Overviews of at most 512 px here, so that 1000 px make a large image.
    monkeypatch.setattr("tilewright.stages.register.plane_views._OVERVIEW_PX", 256)
    monkeypatch.setattr("tilewright.stages.register.plane_views._STRIP_PX", 128)
    monkeypatch.setattr("tilewright.stages.register.block_passes._CELL_PX", 96)
    pair = make_pair(7, size=(1000, 1000))
    images = Watched(pair.reference), Watched(pair.moving)
    transform = run(cpu, tmp_path, *(Plane(i.shape, i.read) for i in images))
    points = grid(pair)
    assert np.median(pair.errors(transform.points(points), points)) < 0.1
    for watched in images:
        assert max(watched.sizes) < 0.25 * watched.array.size


def test_mosaics_and_equal_bytes(cpu: Backend, guarded: Backend, tmp_path: Path) -> None:
    pair = make_pair(8, size=(420, 440))
    paths = []
    for name, image in (("ref", pair.reference), ("mov", pair.moving)):
        paths.append(tmp_path / f"{name}.zarr")
        with create_mosaic(
            paths[-1], (1, *image.shape), np.uint16, 256, (1.0, 0.5, 0.5), name
        ) as mosaic:
            mosaic.write(0, 0, 0, image)
    written = []
    arrays = [pair.reference, pair.moving]
    for k, backend in enumerate((cpu, cpu, guarded)):
        reference, moving = arrays if backend is guarded else paths
        folder = tmp_path / str(k)
        run(backend, folder, reference, moving)
        written.append([(folder / name).read_bytes() for name in ("t.npz", "t.json")])
    assert written[0] == written[1] == written[2]
    transform = read_transform(tmp_path / "0" / "t.npz")
    again = json.loads(written[0][1])
    assert dict(transform.quality).items() <= again.items()
    with np.load(tmp_path / "0" / "t.npz") as data:
        assert data["affine"].shape == (2, 3)
        assert data["field"].shape[1:] == data["confidence"].shape


def test_broken_transform_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(b"PK\x03\x04 half")
    with pytest.raises(ResultFileError, match=r"t\.npz is no transform"):
        read_transform(path)


@pytest.mark.gpu
def test_gpu_finds_the_same_positions(cpu: Backend, gpu: Backend, tmp_path: Path) -> None:
    pair = make_pair(9)
    points = grid(pair)
    found = [
        run(backend, tmp_path, pair.reference, pair.moving).points(points) for backend in (cpu, gpu)
    ]
    assert np.abs(found[0] - found[1]).max() < 1e-3
