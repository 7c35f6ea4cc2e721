"""Header of one raw file, and whether its pixels can be a camera's counts."""

from typing import NamedTuple

#: Pixel types that are raw camera counts, and one that is with a scale.
PIXEL_TYPES, SCALED_TYPE = ("uint8", "uint16"), "float32"
#: None, LZW, deflate (two numbers) and PackBits; others depend on the codecs installed.
_USUAL_COMPRESSION = (1, 5, 8, 32773, 32946)
_PHOTOMETRIC = {0: "a negative, with white as 0", 3: "numbers of a palette's colours"}


class RawHeader(NamedTuple):
    """Header of one raw file; ``problem`` is why it cannot be used, "" if it can.

    ``pages`` counts all pages of the file, also those that nobody uses.
    """

    size_bytes: int
    mtime_ns: int
    height_px: int = 0
    width_px: int = 0
    dtype: str = ""
    pages: int = 0
    problem: str = ""


def pixel_problem(
    samples: int, photometric: int, compression: int, dtype: str, types: tuple[str, ...]
) -> str:
    """Return why pixels cannot be used as counts, in words that follow the file's name.

    ``samples``, ``photometric`` and ``compression`` are the values of the TIFF tags 277, 262 and
    259; ``types`` the accepted pixel types.
    """
    if samples != 1:
        return (
            f"is a colour image ({samples} samples per pixel), as of brightfield slides; channels "
            "of counts are read only, one page each"
        )
    if photometric != 1:
        return (
            f"does not hold counts with black as 0 but {_PHOTOMETRIC.get(photometric, 'colours')} "
            f"(TIFF tag 262 is {photometric}); save it as greyscale"
        )
    if compression not in _USUAL_COMPRESSION:
        import tifffile

        if compression not in tifffile.TIFF.DECOMPRESSORS:
            return (
                f"is compressed in a way that cannot be read (TIFF tag 259 is {compression}); "
                "save it uncompressed or with deflate"
            )
    if dtype not in types:
        return f"has pixels of type {dtype}; counts are {' or '.join(PIXEL_TYPES)}"
    return ""
