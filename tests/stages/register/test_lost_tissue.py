from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.tissue_pair import Pair, make_pair
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.register.warp import Transform
from tilewright.stages.register import block_passes, lost_tissue
from tilewright.stages.register.block_passes import Pass, measure_blocks
from tilewright.stages.register.lost_tissue import FACTOR, HALO_PX, LostTissue, LostTissueSearch
from tilewright.stages.register.plane_views import open_views

CPU = cpu_backend(workers=2)


def find(pair: Pair, moving: NDArray[np.uint16], affine: Any = None) -> LostTissue:
    """Compare under the exact affine part; the elastic one is at most 2 px."""
    affine = pair.affine if affine is None else affine
    views = open_views(pair.reference, moving)
    search = LostTissueSearch(CPU, views[0].size(FACTOR))
    pass_ = Pass(FACTOR, 24, offset=12, halo_px=HALO_PX)
    transform = replace(Transform.identity(), affine=affine)
    measure_blocks(CPU, *views, transform, pass_, "test", observe=search.observe)
    found = search.result()
    assert found.share is not None
    return found


def dark(shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(1).poisson(20, shape) * 4 + 100


def cut(pair: Pair, holes_px: list[tuple[int, int, int]]) -> tuple[NDArray[np.uint16], float]:
    """Take discs (y, x, radius) out of the moving image; return it and the share of tissue."""
    out = pair.moving.copy()
    y, x = np.indices(out.shape)
    gone = np.zeros(out.shape, bool)
    for row, column, radius in holes_px:
        gone |= (y - row) ** 2 + (x - column) ** 2 < radius**2
    out[gone] = dark(out[gone].shape)
    tissue = tissue_of(pair.moving)
    return out, float((gone & tissue).sum() / tissue.sum())


def tissue_near(mask: NDArray[np.bool_], y: float, x: float) -> bool:
    """Return whether a mask holds a pixel within 30 px."""
    rows, columns = (slice(max(int(v) - 30, 0), int(v) + 31) for v in (y, x))
    return bool(mask[rows, columns].any())


def tissue_of(image: NDArray[np.uint16]) -> NDArray[np.bool_]:
    light = ndimage.gaussian_filter(image.astype(float), 5)
    return np.asarray(light > np.percentile(light, 40))


@pytest.mark.parametrize("seed", [11, 12])
def test_holes_are_counted_with_their_place(seed: int) -> None:
    pair = make_pair(seed)
    assert (find(pair, pair.moving).share or 0) < 0.002
    moving, share = cut(pair, [(300, 300, 60), (500, 600, 25), (150, 620, 25), (600, 200, 25)])
    found = find(pair, moving)
    assert found.share == pytest.approx(share, rel=0.3)
    (place,) = pair.truth(np.array([found.lost_px]))
    assert np.hypot(*(place - (300, 300))) < 60


@pytest.mark.parametrize("off_px", [4.0, 6.0, 8.0])
@pytest.mark.parametrize("everywhere", [False, True])
def test_misregistered_tissue_is_not_lost(off_px: float, everywhere: bool) -> None:
    """Of a cycle that is 8 px off in the middle 3 % was told to be lost, all 6 px off 24 %."""
    pair = make_pair(17, gain=0.1)
    y, x = np.indices(pair.moving.shape, dtype=float)
    bump = np.exp(-((y - 380) ** 2 + (x - 400) ** 2) / 180**2)
    by_px = off_px * (np.ones_like(y) if everywhere else bump)
    at = [y + 0.8 * by_px, x + 0.6 * by_px]
    moved = ndimage.map_coordinates(pair.moving.astype(float), at, order=3, mode="nearest")
    found = find(pair, moved.clip(0, 65535).astype(np.uint16))
    assert (found.share or 0) < 0.01


def test_where_a_fold_lies_nothing_is_lost() -> None:
    """A strip is folded onto its neighbour, whose tissue is drawn aside besides."""
    pair = make_pair(18, shift_px=(0.0, 0.0), angle_deg=0.0)
    strip, tissue = 90, tissue_of(pair.moving)
    y, x = np.indices(pair.moving.shape, dtype=float)
    aside = 12 * np.exp(-(((x - 2 * strip) / 150) ** 2))
    at = [y + 0.7 * aside, x + 0.7 * aside]
    light = ndimage.map_coordinates(pair.moving.astype(float), at, order=3, mode="nearest")
    light[:, strip : 2 * strip] += light[:, :strip][:, ::-1] - 180
    light[:, :strip] = dark(light[:, :strip].shape)
    found = find(pair, light.clip(0, 65535).astype(np.uint16))
    assert found.share == pytest.approx(tissue[:, :strip].sum() / tissue.sum(), rel=0.3)
    assert found.lost_px is not None
    assert found.lost_px[1] < strip


def test_what_is_left_tells_what_is_usual() -> None:
    pair = make_pair(11, shift_px=(0.0, 0.0))
    moving = pair.moving.copy()
    moving[:, 200:] = dark(moving[:, 200:].shape)
    assert (find(pair, moving).share or 0) > 0.6


@pytest.mark.parametrize("by_px", [0.0, 37.4])
def test_what_the_cycle_did_not_image_is_told_apart(by_px: float) -> None:
    """The images end, or tiles do, at two sides; the cycle is the reference itself, moved."""
    pair = make_pair(16)
    whole = pair.reference
    affine = np.array([[1.0, 0, -by_px], [0, 1, 0]])
    moved = ndimage.shift(whole.astype(np.float32), (-by_px, 0), order=3, mode="nearest")
    moving = np.clip(np.rint(moved), 1, 65535).astype(np.uint16)[:, :-90]
    moving[:, :80] = 0
    tissue = tissue_of(whole)
    y, x = np.indices(whole.shape)
    outside = tissue & ((x < 80) | (x >= whole.shape[1] - 90) | (y < by_px))
    found = find(pair, moving, affine)
    assert (found.share or 0) < 0.002
    assert found.outside == pytest.approx(outside.sum() / tissue.sum(), rel=0.15)
    assert found.outside_px is not None
    assert tissue_near(outside, *found.outside_px)
    # Of a rim of 12 px the border cuts all cells.
    assert find(pair, whole[:, :-12], np.eye(2, 3)).outside == 0
    nothing = find(pair, whole, np.eye(2, 3))
    assert (nothing.outside, nothing.outside_px) == (0, None)


def test_cells_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair(15)
    moving, _ = cut(pair, [(300, 300, 60)])
    whole = find(pair, moving)
    monkeypatch.setattr(block_passes, "_CELL_PX", 100)
    assert find(pair, moving) == whole


def test_no_tissue_is_unknown() -> None:
    nothing = np.zeros((8, 8), np.float32)
    assert lost_tissue.lost_places(nothing, nothing, nothing) is None
    assert lost_tissue.lost_places(nothing + 1, nothing, nothing) is None
