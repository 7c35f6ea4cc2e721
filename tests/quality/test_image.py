"""Both files of the final image hold the same, and one that does not is named."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from scipy import ndimage

from tilewright.io.results.checksum_store import ChecksumStore
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import Image, create_image, open_image
from tilewright.kernels.metrics import focus_score
from tilewright.kernels.register.warp import Transform
from tilewright.quality.dark_rings import REACH_PX, RING_PX
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.stages.image import _detail, _rings, evaluate_files


@pytest.mark.parametrize("names", [["DAPI"], ["DAPI", "CD3"]])
def test_files_that_hold_the_same_pass(tmp_path: Path, names: list[str]) -> None:
    shape = (len(names), 600, 700)
    stored, tiff = tmp_path / "i.zarr", tmp_path / "i.ome.tif"
    with create_image(stored, shape[1:], np.uint16, 256, (0.5, 0.5), names, name="i") as writer:
        writer.write(0, 0, 0, np.random.default_rng(0).integers(0, 60000, shape, np.uint16))
    write_ome_tiff(stored, tiff, tile_px=256)
    last = len(names) - 1
    context = QcContext("s", 1, "image", resolve_thresholds({}), "1", names[last])
    assert evaluate_files(context, open_image(stored), tiff, last).verdict == "pass"
    store = ChecksumStore(stored)
    zarr.open_array(store, path="0")[last, :256, :256] = 7
    store.write_list()
    assert evaluate_files(context, open_image(stored), tiff, last).verdict == "fail"


@pytest.mark.parametrize(
    ("corner", "part"),
    [((-500, 300), 0), ((300, 1030), 0), ((-200, 300), 0), ((-100, 300), 156), ((300, 868), 156)],
)
def test_what_lies_outside_the_frame_is_left_out(corner: tuple[int, int], part: int) -> None:
    """A cycle's sharp block outside the image was compared with the blurred rim instead."""
    scene = np.random.default_rng(0).normal(size=(1, 1024, 1024))
    shown = 5000 + 60000 * ndimage.gaussian_filter(scene, (0, 8, 8))
    sharp = 5000 + 20000 * ndimage.gaussian_filter(scene, (0, 2, 2))
    y, x = (slice(max(c, 0), max(c + 256, 0)) for c in corner)
    shown[:, y, x] = sharp[:, y, x]
    image = Image(Path("i.zarr"), (shown.astype(np.uint16),), ("CD3",), ("FFFFFF",), (0.5, 0.5))
    affine = np.column_stack([np.eye(2), (600.0, 600.0)])
    transform = replace(Transform.identity(), affine=affine)
    stitched: Any = SimpleNamespace(
        side=np.int64(256),
        blocks=np.array([corner]) + 600,
        focus=np.array([focus_score(sharp[0, 300:556, 300:556])]),
        objects=np.array([[1030, 300], [-5, 300]]) + 600,
        rings=np.zeros((2, 4, REACH_PX // RING_PX)),
    )
    context = QcContext("s", 2, "image", resolve_thresholds({}), "1", "CD3")
    item = _detail(context, image, 0, stitched, transform)
    assert (item.value is None) == (part == 0)
    assert part == 0 or item.verdict == "pass"
    assert item.detail == ("" if part else "nothing in the frame is in focus")
    assert _rings(context, image, 0, stitched, transform)[1] == []
