from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.illumination_truth import relative_rmse, vignette
from tilewright.kernels.backend import Backend
from tilewright.kernels.illumination.basic import fit_basic, sorted_stack


def tiles(seed: int, *, n: int = 120, size: int = 64, dark: float = 0.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    specimen = np.exp(ndimage.gaussian_filter(rng.standard_normal((n, size, size)), (0, 2, 2)) * 4)
    light = rng.poisson(specimen * 300 * vignette(size)) + dark
    return light.astype(np.float32)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("dark", "bar"), [(0.0, 0.07), (150.0, 0.09)])
def test_flat_is_recovered(cpu: Backend, seed: int, dark: float, bar: float) -> None:
    found = fit_basic(cpu, tiles(seed, dark=dark)[None], fit_dark=dark > 0)
    assert relative_rmse(found.flat[0], vignette(64)) < bar
    assert relative_rmse(np.ones((64, 64)), vignette(64)) > 0.12


def test_dark_field_takes_up_an_offset(cpu: Backend) -> None:
    images = tiles(1, dark=400.0)[None]
    with_dark, without = (fit_basic(cpu, images, fit_dark=flag) for flag in (True, False))
    truth = vignette(64)
    assert relative_rmse(with_dark.flat[0], truth) < 0.55 * relative_rmse(without.flat[0], truth)
    assert 300.0 < float(with_dark.dark.mean()) < 500.0
    assert not without.dark.any()


def test_batch_items_are_fitted_on_their_own(cpu: Backend) -> None:
    first, second = tiles(1), tiles(2) * 7
    both = fit_basic(cpu, np.stack([first, second]))
    for k, images in enumerate((first, second)):
        alone = fit_basic(cpu, images[None])
        np.testing.assert_allclose(both.flat[k], alone.flat[0], atol=2e-5)
        np.testing.assert_allclose(both.dark[k], alone.dark[0], atol=2e-2)


def test_order_of_images_does_not_matter(cpu: Backend) -> None:
    images = tiles(3)
    shuffled = images[np.random.default_rng(0).permutation(len(images))]
    np.testing.assert_array_equal(
        fit_basic(cpu, images[None]).flat, fit_basic(cpu, shuffled[None]).flat
    )


@pytest.mark.parametrize("level", [0.0, 500.0])
def test_equal_images_give_a_flat_of_one(cpu: Backend, level: float) -> None:
    found = fit_basic(cpu, np.full((1, 9, 16, 16), level, dtype=np.float32))
    assert np.isfinite(found.flat).all()
    assert np.isfinite(found.dark).all()
    if level:
        np.testing.assert_allclose(found.flat, 1.0, atol=1e-5)


def test_ranks_are_averaged_to_the_bound(cpu: Backend) -> None:
    images = np.random.default_rng(0).permutation(100).reshape(1, 100, 1, 1).astype(np.float32)
    ranked = sorted_stack(cpu, images, 7)
    assert ranked.shape == (1, 7, 1, 1)
    assert (np.diff(ranked[0, :, 0, 0]) > 0).all()
    assert ranked[0, 0, 0, 0] == pytest.approx(np.arange(14).mean())
    assert sorted_stack(cpu, images, 200).shape == (1, 100, 1, 1)


def fit_host(backend: Backend) -> tuple[Any, Any]:
    found = fit_basic(backend, tiles(1, n=24, size=32, dark=90.0)[None])
    return backend.to_numpy(found.flat), backend.to_numpy(found.dark)


def test_guarded_equals_cpu(cpu: Backend, guarded: Backend) -> None:
    for one, other in zip(fit_host(cpu), fit_host(guarded), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.gpu
def test_gpu_equals_cpu(cpu: Backend, gpu: Backend) -> None:
    for (one, other), scale in zip(
        zip(fit_host(cpu), fit_host(gpu), strict=True), (1.0, 90.0), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-3 * scale)
