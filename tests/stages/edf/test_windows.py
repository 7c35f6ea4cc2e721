"""Windows of a mosaic: what was not imaged, and what lies beyond the border."""

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from tests.stages.edf.edf_runs import store
from tilewright.io.results.mosaic import open_mosaic
from tilewright.kernels.edf.wiener_finish import mirrored
from tilewright.stages.edf.stack_survey import gap_mask
from tilewright.stages.edf.wiener_plan import read_window

PEDESTAL = 400


def test_a_patch_at_the_pedestal_in_every_plane_was_not_imaged() -> None:
    stack = np.random.default_rng(1).normal(PEDESTAL, 2, (4, 60, 70)).astype(np.uint16)
    stack[:, :9] = stack[:, 20:25, 30:35] = stack[:, 40:44, 30:60] = PEDESTAL
    flat = (stack == PEDESTAL).all(axis=0)
    patch = np.ones((5, 5), np.bool_)
    core = ndimage.binary_erosion(flat, patch, border_value=1)
    expected = ndimage.binary_dilation(core, patch)
    assert 9 * 70 + 25 <= expected.sum() < flat.sum()
    np.testing.assert_array_equal(gap_mask(stack, PEDESTAL), expected)
    np.testing.assert_array_equal(gap_mask(iter(stack), PEDESTAL), expected)
    assert not gap_mask(stack[:, 44:], PEDESTAL).any()
    # Without a pedestal only nothing at all was not imaged.
    dark = np.zeros((3, 8, 8), np.uint16)
    assert gap_mask(dark, 0).all()
    dark[2, 3, 3] = 1
    assert not gap_mask(dark, 0).any()


@pytest.mark.parametrize("start", [(0, 0), (-30, 10), (20, -70), (-64, -64), (25, 40)])
def test_a_window_goes_on_as_the_mirror_image(tmp_path: Path, start: tuple[int, int]) -> None:
    stack = np.random.default_rng(2).integers(500, 900, (2, 72, 56)).astype(np.uint16)
    mosaic = open_mosaic(store(tmp_path / "m.zarr", stack, 32, {"pedestal_counts": PEDESTAL}))
    found, seen = read_window(mosaic, np.ones(2, np.bool_), PEDESTAL, start, (160, 168))
    y, x = mirrored(start[0], start[0] + 160, 72), mirrored(start[1], start[1] + 168, 56)
    np.testing.assert_array_equal(found, stack[:, y][:, :, x])
    assert seen.all()
