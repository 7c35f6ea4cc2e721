"""Both files of the final image hold the same, and one that does not is named."""

from pathlib import Path

import numpy as np
import pytest
import zarr

from tilewright.io.results.checksum_store import ChecksumStore
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import create_image, open_image
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.stages.image import evaluate_files


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
