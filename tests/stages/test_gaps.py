import numpy as np
from scipy import ndimage

from tilewright.stages.tile_windows import gap_mask

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
