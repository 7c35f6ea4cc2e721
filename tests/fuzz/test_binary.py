"""Damaged headers of binary files: read, or refused in words of ours, soon."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.fuzz.damage import INTEGERS, Reader, Words, check
from tests.fuzz.test_text import initiate
from tests.init.raw_folders import two_fields
from tests.support.microscope_files import write_ndtiff
from tilewright.errors import BrokenTiffError, RawDataError, TilewrightError
from tilewright.io.formats import read_images
from tilewright.io.formats.stitched import read_image
from tilewright.io.inputs.psf_file import read_psf
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.tiff.headers import headers_of

Make = Callable[[Path], Reader]


def tiff(**how: Any) -> bytes:
    stream = io.BytesIO()
    pixels = np.arange(2 * 12 * 16, dtype=np.uint16).reshape(2, 12, 16)
    tifffile.imwrite(stream, pixels, photometric="minisblack", **how)
    return stream.getvalue()


HOW: list[dict[str, Any]] = [
    {}, {"bigtiff": True, "metadata": None}, {"byteorder": ">", "rowsperstrip": 5}, {"ome": True},
    {"compression": "zlib", "tile": (16, 16)}, {"imagej": True}, {"software": "PerkinElmer-QPI"},
]  # fmt: skip
TIFFS = [tiff(**how) for how in HOW]


def of_tiffs(read: Callable[[Path], object], errors: type[Exception], named: str = "") -> Make:
    def make(folder: Path) -> Reader:
        path = folder / "a_1.tif"

        def use(data: bytes) -> None:
            path.write_bytes(data)
            read(path)

        return Reader(TIFFS, use, errors, named, 150, INTEGERS)

    return make


def ndtiff(folder: Path, name: str) -> Reader:
    write_ndtiff(folder, 1, two_fields())
    (path,) = folder.rglob(name)

    def use(data: bytes) -> None:
        path.write_bytes(data)
        read_images("ndtiff", folder)

    return Reader([path.read_bytes()], use, RawDataError, "NDTiff", 50, INTEGERS)


def folder_of_tiffs(folder: Path) -> Reader:
    (folder / "raw").mkdir()
    make = of_tiffs(lambda path: initiate(path.parent), TilewrightError)
    return make(folder / "raw")._replace(examples=30)


def ends(path: Path) -> None:
    assert all(page.end <= path.stat().st_size for page in headers_of(path))


READERS: dict[str, Make] = {
    "headers": of_tiffs(ends, BrokenTiffError),
    "raw headers": of_tiffs(lambda path: read_headers({str(path): 2}), BrokenTiffError),
    "stitched": of_tiffs(lambda path: read_image(str(path)), RawDataError, "a_1.tif"),
    "psf": of_tiffs(read_psf, RawDataError, "a_1.tif"),
    "tiff folder": folder_of_tiffs,
    "ndtiff index": lambda folder: ndtiff(folder, "NDTiff.index"),
    "ndtiff stack": lambda folder: ndtiff(folder, "*.tif"),
}
NO_BITS = (b"\x02\x01\x03\0\x01\0\0\0\x10", b"\x02\x01\x03\0\x01\0\0\0\0")
BEYOND = [(b"", b"II+\0\x08\0\0\0" + bytes(7) + end) for end in (b"\x40", b"\x80")]
#: What took the place of words of a sample, or of all of it, when a reader did otherwise.
FOUND: dict[str, list[Words]] = {
    "headers": BEYOND,
    "raw headers": BEYOND,
    "stitched": [NO_BITS],
    "psf": [NO_BITS],
    "tiff folder": [(b"", b"MM\0"), (b"", b"II*\0\x08\0\0\0"), NO_BITS],
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_header_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(READERS[name](tmp_path), FOUND.get(name, ()), lambda: "".join(capsys.readouterr()))
