from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span

PEDESTAL = 100.0


def scene(y: Any, x: Any) -> Any:
    """A specimen in closed form, without detail finer than 9 pixels."""
    return 8000 + 3000 * np.sin(y / 3.1 + 0.2) * np.cos(x / 2.7) + 2000 * np.sin((x + y) / 1.5 / 9)


def vignette(size: int) -> Any:
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    flat = np.exp(-0.4 * (y - 0.1) ** 2 - 0.5 * x**2)
    return (flat / flat.mean()).astype(np.float32)


def take(size: int, places: Any, flat: Any = 1.0, dark: Any = PEDESTAL) -> list[Any]:
    grid = np.mgrid[:size, :size].astype(float)
    return [
        np.rint(scene(grid[0] + y, grid[1] + x) * flat + dark).astype(np.uint16) for y, x in places
    ]


def spans_of(tiles: list[Any], places: Any) -> list[Any]:
    return [tuple(map(tile_span, place, tiles[0].shape)) for place in places]


def run(
    backend: Backend, tiles: list[Any], places: Any, *,
    flat: Any = 1, dark: Any = None, pedestal: float = PEDESTAL, feather_px: float = 12,
) -> tuple[Any, int, int]:  # fmt: skip
    """Return the fused region and how many of its pixels were clipped, at 0 and at the top."""
    spans = spans_of(tiles, places)
    dark = pedestal if dark is None else dark
    flat, dark = (np.broadcast_to(np.float32(v), tiles[0].shape) for v in (flat, dark))
    shape = max(y.stop for y, _ in spans), max(x.stop for _, x in spans)
    correction = make_correction(backend, flat, dark, pedestal)
    region, low, high = fuse(
        backend, tiles, spans, correction, (0, 0), shape, feather_px=feather_px
    )
    return backend.to_numpy(region), low, high


def covered(tiles: list[Any], places: Any, shape: tuple[int, int]) -> Any:
    out = np.zeros(shape, bool)
    for y, x in spans_of(tiles, places):
        out[y.start : y.stop, x.start : x.stop] = True
    return out


def error(fused: Any) -> Any:
    """Return how far a region is from the scene, but at its ragged border without outer taps."""
    y, x = np.mgrid[: fused.shape[0], : fused.shape[1]]
    return np.abs(fused - PEDESTAL - scene(y, x))[8:-8, 8:-8]


def jittered(seed: int) -> Any:
    places = np.mgrid[:3, :3].reshape(2, -1).T * 52.0
    places = places + np.random.default_rng(seed).uniform(-3, 3, places.shape)
    return places - places.min(0)


def test_integer_positions_keep_counts_exactly(cpu: Backend) -> None:
    image = np.random.default_rng(0).integers(0, 65536, (200, 230)).astype(np.uint16)
    places = [(0, 0), (0, 110), (3, 70), (80, 0), (77, 110)]
    tiles = [image[y : y + 120, x : x + 120] for y, x in places]
    fused, *clipped = run(cpu, tiles, places)
    wanted = np.where(covered(tiles, places, image.shape), image, 100)[: fused.shape[0]]
    np.testing.assert_array_equal(fused, wanted)
    assert clipped == [0, 0]
    image = (image % 256).astype(np.uint8)
    fused, _, _ = run(cpu, [image[:, :130], image[:, 100:]], [(0, 0), (0, 100)], pedestal=5)
    assert fused.dtype == np.uint8
    np.testing.assert_array_equal(fused, image)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_subpixel_positions_meet_the_scene(cpu: Backend, seed: int) -> None:
    places = jittered(seed)
    away = error(run(cpu, take(64, places), places)[0])
    assert away.max() < 30
    assert away.mean() < 6


@pytest.mark.parametrize("seed", [0, 1])
def test_illumination_is_undone(cpu: Backend, seed: int) -> None:
    places, flat = np.rint(jittered(seed)), vignette(64)
    dark = np.random.default_rng(seed).uniform(90, 110, (64, 64)).astype(np.float32)
    fused, _, _ = run(cpu, take(64, places, flat, dark), places, flat=flat, dark=dark)
    # Half a count of the camera's rounding, over the darkest corner of the flat-field.
    assert error(fused).max() <= 0.5 / flat.min() + 0.51


@settings(max_examples=25)
@given(
    places=st.lists(st.tuples(st.floats(0, 40), st.floats(0, 40)), min_size=1, max_size=5),
    feather_px=st.floats(0, 40),
)
def test_a_flat_scene_stays_flat(places: Any, feather_px: float) -> None:
    tiles = [np.full((24, 30), 5000, np.uint16)] * len(places)
    fused, *clipped = run(cpu_backend(), tiles, places, feather_px=feather_px)
    wanted = np.where(covered(tiles, places, fused.shape), 5000, 100)
    np.testing.assert_array_equal(fused, wanted)
    assert clipped == [0, 0]


def test_overlaps_fade_linearly_and_corners_blend_all_four(cpu: Backend) -> None:
    tiles = [np.full((40, 40), value, np.uint16) for value in (1000, 2000, 3000, 4000)]
    fused, _, _ = run(cpu, tiles[:2], [(0, 0), (0, 30)], feather_px=10)
    fade = 1000 + 1000 * np.clip(np.arange(-29, 41) / 11, 0, 1)
    np.testing.assert_array_equal(fused, np.broadcast_to(np.rint(fade), (40, 70)))
    fused, _, _ = run(cpu, tiles, [(0, 0), (0, 30), (30, 0), (30, 30)], feather_px=10)
    assert abs(fused[34:36, 34:36].mean() - 2500) <= 1
    assert np.abs(np.diff(fused[30:40].astype(int), axis=0)).max() <= 190
    assert np.abs(np.diff(fused[:, 30:40].astype(int), axis=1)).max() <= 100
