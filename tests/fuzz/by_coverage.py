"""Runs readers of headers on bytes that atheris finds by coverage, for some time."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tilewright"]):
    from tilewright.errors import TilewrightError
    from tilewright.io.formats import ndtiff
    from tilewright.io.tiff.headers import PIXEL_TYPES, pixel_problem, read_page_headers


def read_tiff(data: bytes) -> None:
    for page in read_page_headers(io.BytesIO(data)):
        pixel_problem(page.samples, page.photometric, page.compression, page.dtype, PIXEL_TYPES)


def read_ndtiff(index: Path) -> Callable[[bytes], None]:
    import tifffile

    atheris.instrument_func(tifffile.read_ndtiff_index)

    def read(data: bytes) -> None:
        index.write_bytes(data)
        ndtiff.read_images(str(index.parent))

    return read


def main(seeds: str, index: str, seconds: str) -> None:
    """Read changed seeds: as an index of NDTiff where one is named, else as TIFF."""
    read = read_ndtiff(Path(index)) if index else read_tiff

    def once(data: bytes) -> None:
        with contextlib.suppress(TilewrightError):
            read(data)

    limits = (f"-max_total_time={seconds}", "-timeout=2", "-rss_limit_mb=1500", "-max_len=4096")
    atheris.Setup([sys.argv[0], seeds, f"-artifact_prefix={seeds}/../", *limits], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
