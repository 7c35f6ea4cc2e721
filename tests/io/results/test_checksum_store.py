"""Images on disk have checksums of all their files, also of those that they share."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from tilewright.errors import ResultFileError
from tilewright.io.results.checksum_store import CHECKSUMS, ChecksumStore
from tilewright.io.results.ome_zarr import create_image, join_images, open_image
from tilewright.io.results.zarr_store import OmeZarrVersion


@pytest.mark.parametrize("version", get_args(OmeZarrVersion))
def test_a_joined_image_has_the_checksums_of_its_parts(
    tmp_path: Path, version: OmeZarrVersion
) -> None:
    pixels = np.random.default_rng(0).integers(0, 9000, (12, 70, 130)).astype(np.uint16)
    names = [f"M{k}" for k in range(12)]  # the folder of channel 1 begins the name of that of 10
    with create_image(
        tmp_path / "a.zarr",
        (70, 130),
        np.uint16,
        64,
        (0.5, 0.5),
        names,
        name="a",
        ome_zarr_version=version,
    ) as writer:
        for k, plane in enumerate(pixels):
            writer.write(k, 0, 0, plane)
    join_images([tmp_path / "a.zarr"] * 2, tmp_path / "b.zarr")
    assert (np.asarray(open_image(tmp_path / "b.zarr").levels[0])[12:] == pixels).all()
    for image in (tmp_path / "a.zarr", tmp_path / "b.zarr"):
        files = {str(path.relative_to(image)) for path in image.rglob("*") if path.is_file()}
        checked = ChecksumStore(image, read_only=True).crc32_below()
        assert {*checked, CHECKSUMS} == files
    chunk = next(p for p in (tmp_path / "a.zarr").rglob("*") if p.is_file() and p.suffix == "")
    chunk.unlink()
    with pytest.raises(
        ResultFileError, match=rf"{chunk} is missing; delete {tmp_path / 'a.zarr'} and run"
    ):
        join_images([tmp_path / "a.zarr"], tmp_path / "b.zarr")
    assert (np.asarray(open_image(tmp_path / "b.zarr").levels[0])[12:] == pixels).all()
