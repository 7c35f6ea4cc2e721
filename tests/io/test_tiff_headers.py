import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tilewright.errors import BrokenTiffError
from tilewright.init.metadata import read_metadata
from tilewright.init.recognise import recognise
from tilewright.io.tiff.headers import read_page_headers


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
        pages = read_page_headers(stream)
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
            read_page_headers(stream)


def chain(pages: int) -> tuple[bytearray, list[int]]:
    """Return a TIFF, and where the offset of the page after each page lies."""
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        for _ in range(pages):
            writer.write(np.ones((16, 16), np.uint16), contiguous=False, metadata=None)
    stream.seek(0)
    with tifffile.TiffFile(stream) as tiff:
        return bytearray(stream.getvalue()), [
            page.offset + 2 + 12 * len(page.tags) for page in tiff.pages
        ]


@pytest.mark.parametrize("back", [0, 120, 149])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_loop_of_pages_ends(back: int, damaged: bool) -> None:
    """Also one that tifffile itself would follow for ever, where a page of it is damaged, too."""
    content, after = chain(150)
    offset = struct.unpack_from("<I", content, after[back - 1])[0] if back else 8
    struct.pack_into("<I", content, after[-1], offset)
    if damaged:
        start = struct.unpack_from("<I", content, after[99])[0] + 2
        for entry in range(start, after[100], 12):
            struct.pack_into("<I", content, entry + 4, 0)
    with pytest.raises(BrokenTiffError, match=r"a loop|lies beyond|without size|damaged"):
        read_page_headers(io.BytesIO(content))


@pytest.mark.parametrize(
    ("unit", "code", "um"),
    [
        *(("um", 1, 0.5), ("\\u00B5m", 1, 0.5), ("nm", 1, 0.0005), ("inch", 2, 12_700)),
        *(("pixel", 1, None), ("pixel", 3, None), ("pixels", 2, None)),
    ],
)  # fmt: skip
def test_units_of_imagej(tmp_path: Path, unit: str, code: int, um: float | None) -> None:
    """What is in pixels is in no unit of length, whatever the resolution tags say."""
    for tile in range(4):
        tifffile.imwrite(
            tmp_path / f"t_{tile}.tif", np.ones((2, 64, 64), np.uint16), imagej=True,
            resolution=(2, 2), resolutionunit=code,
            metadata={"axes": "ZYX", "unit": unit, "spacing": 3.0},
        )  # fmt: skip
    known = read_metadata(recognise(tmp_path))
    um = um if um and um < 20 else None  # no microscope's
    assert (known.pixel_um, known.z_step_um) == (um, um and pytest.approx(6 * um))
