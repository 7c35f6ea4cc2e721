from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.kernels.backend import Backend
from tilewright.kernels.register import warp as warping
from tilewright.kernels.register.warp import Transform, source_region

SHAPE = (150, 170)


def a_transform(seed: int, amplitude_px: float = 3.0, angle_deg: float = 2.0) -> Transform:
    rng = np.random.default_rng(seed)
    a = np.deg2rad(angle_deg)
    affine = np.array([[np.cos(a), -np.sin(a), 6.3], [np.sin(a), np.cos(a), -4.7]])
    field = rng.uniform(-amplitude_px, amplitude_px, (2, 5, 6)).astype(np.float32)
    return Transform(affine, field, np.array([-4.5, -3.5]), 36.0, np.ones((5, 6), np.float32))


def an_image(seed: int) -> NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, 65536, SHAPE, np.uint16)


def warp_in_chunks(
    backend: Backend, image: NDArray[np.uint16], transform: Transform, chunk_px: int
) -> NDArray[np.uint16]:
    out = np.full(SHAPE, 7, np.uint16)
    for y, x in product(range(0, SHAPE[0], chunk_px), range(0, SHAPE[1], chunk_px)):
        region = (slice(y, min(y + chunk_px, SHAPE[0])), slice(x, min(x + chunk_px, SHAPE[1])))
        source = source_region(transform, region, SHAPE)
        out[region] = 0 if source is None else warping.warp(
            backend, image[source], (source[0].start, source[1].start), SHAPE, transform, region
        )  # fmt: skip
    return out


def test_smooth_function_is_sampled_where_the_transform_says(cpu: Backend) -> None:
    def function(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 20000 + 8000 * np.sin(y / 3.1) * np.cos(x / 2.7 + 0.5)

    image = function(*np.indices(SHAPE, np.float64)).round().astype(np.uint16)
    transform = a_transform(3)
    region = (slice(40, 110), slice(40, 120))
    out = warping.warp(cpu, image, (0, 0), SHAPE, transform, region)
    points = transform.points(np.mgrid[region].reshape(2, -1).T.astype(np.float64))
    # Spline error at a period of 17 px is below 5 of 8000 counts; linear would leave 270.
    assert np.abs(out.reshape(-1) - function(*points.T)).max() < 12


def test_whole_pixel_shift_moves_counts_exactly_and_leaves_zero_outside(cpu: Backend) -> None:
    image = an_image(5)
    affine = np.array([[1.0, 0.0, -10.0], [0.0, 1.0, 20.0]])
    transform = replace(Transform.identity(), affine=affine)
    assert Transform.identity().is_identity
    assert not transform.is_identity
    assert not a_transform(0).is_identity
    out = warp_in_chunks(cpu, image, transform, 64)
    # The truncated prefilter costs up to one count at steps of 65535.
    moved = image[: SHAPE[0] - 10, 20:].astype(int)
    assert np.abs(out[10:, : SHAPE[1] - 20].astype(int) - moved).max() <= 1
    assert not out[:10].any()
    assert not out[:, SHAPE[1] - 20 :].any()


@given(
    st.integers(0, 1000),
    st.floats(0, 30),
    st.floats(-30, 30),
    *[st.tuples(st.integers(0, 120), st.integers(1, 60))] * 2,
)
@settings(max_examples=60)
def test_source_region_holds_every_position(
    seed: int, amplitude_px: float, angle_deg: float, y: tuple[int, int], x: tuple[int, int]
) -> None:
    transform = a_transform(seed, amplitude_px, angle_deg)
    region = (slice(y[0], sum(y)), slice(x[0], sum(x)))
    points = transform.points(np.mgrid[region].reshape(2, -1).T.astype(np.float64))
    inside = points[((points >= -0.5) & (points <= np.array(SHAPE) - 0.5)).all(axis=1)]
    source = source_region(transform, region, SHAPE)
    if source is None:
        assert len(inside) == 0
        return
    for part, size, places in zip(source, SHAPE, inside.T, strict=True):
        assert 0 <= part.start < part.stop <= size
        if len(places):
            # Two more pixels for the taps, unless the image ends.
            assert places.min() - 2 >= part.start or part.start == 0
            assert places.max() + 2 <= part.stop - 1 or part.stop == size
