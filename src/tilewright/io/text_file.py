"""Files of text that others wrote: read whole, if they are files of a size that such texts have."""

import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from tilewright.errors import RawDataError, TilewrightError


def read_content(
    path: str | Path, most_mb: int, error: type[TilewrightError] = RawDataError
) -> bytes:
    """Return the content of a regular file of at most so many MB, 2^20 bytes each.

    Raises
    ------
    TilewrightError
        Of the kind ``error``: the file cannot be read, is a pipe or device, or is larger.
    """
    try:
        status = Path(path).stat()
        regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if regular and status.st_size <= most_mb * 2**20:
            return Path(path).read_bytes()
    except (OSError, ValueError) as problem:  # a name with NUL is a ValueError
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"{path} cannot be read: {reason}") from None
    what = f"it has {status.st_size >> 20} MB, and at most {most_mb} are read"
    raise error(f"{path} cannot be read: {what if regular else 'it is a pipe or device'}")


def read_text(
    path: str | Path,
    most_mb: int,
    error: type[TilewrightError] = RawDataError,
    *,
    utf16: bool = True,
) -> str:
    """Return a text in UTF-8, or in UTF-16 by its mark or the zeros of its first letter.

    Raises
    ------
    TilewrightError
        As :func:`read_content`, or the text is in another encoding.
    """
    content = read_content(path, most_mb, error)
    marked = content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE)
    by_zeros = ("utf-8-sig", "utf-16-be", "utf-16-le")[content[:2].find(b"\0") + 1]
    encoding = "utf-8-sig" if not utf16 else "utf-16" if marked else by_zeros
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        known = "UTF-8 or UTF-16" if utf16 else "UTF-8"
        raise error(
            f"{path}, line {line}: the text is not {known}; save it with that encoding"
        ) from None
