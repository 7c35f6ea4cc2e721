from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tilewright.errors import BrokenTiffError
from tilewright.io.tiff.page_headers import read_page_headers


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"compression": "zlib"},
        {"tile": (16, 16)},
        {"bigtiff": True},
        {"byteorder": ">"},
        {"rowsperstrip": 5},
        {"ome": True},
        {"imagej": True},
    ],
)
def test_headers_agree_with_tifffile_and_every_cut_shows(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    path = tmp_path / "a.tif"
    rng = np.random.default_rng(1)
    stack = rng.integers(0, 4000, (3, 40, 50)).astype(np.uint16)
    tifffile.imwrite(path, stack, photometric="minisblack", **how)
    content = path.read_bytes()
    with path.open("rb") as stream:
        pages = read_page_headers(stream, len(content))
    with tifffile.TiffFile(path) as tiff:
        ends = [
            max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)))
            for page in tiff.pages
        ]
        last = max(*ends, *(page.offset for page in tiff.pages))
        compression = int(tiff.pages[0].compression)
    assert pages == [(40, 50, "uint16", 1, 1, compression, end) for end in ends]
    for size in range(0, last, 97):
        path.write_bytes(content[:size])
        with path.open("rb") as stream, pytest.raises(BrokenTiffError):
            read_page_headers(stream, size)
