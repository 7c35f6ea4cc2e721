"""Files of results: written whole with a checksum, and read with one error for all damage.

Next to a file ``qc.json`` lies ``.qc.json.sfv``, and in the folder of an OME-Zarr image
``checksums.sfv``: lines of a name and its CRC-32, as programs for SFV files read them.
"""

import contextlib
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ResultFileError
from tilewright.io.formats.common import DAMAGE_ERRORS
from tilewright.runtime.files import atomic_path, write_text, write_text_atomic

_BLOCK_BYTES = 1 << 24
_HEAD = "; CRC-32 of the lines below: "


def remedy(path: str | Path) -> str:
    """Return how a damaged file or folder is made again.

    Where all that is made of it is there, only a run with it as its target does so.
    """
    named = "this path, as the key `results` begins it,"
    return f"delete {path} and run snakemake with {named} as the target, then as before"


def unreadable(path: str | Path, error: OSError) -> ResultFileError:
    """Return the error of a file that the system cannot read: errors of disks name none."""
    fix = "make it readable" if isinstance(error, PermissionError) else "look after its disk"
    return ResultFileError(f"{path} cannot be read ({error.strerror}); {fix}")


def checksum_path(path: Path) -> Path:
    """Return where the checksum of a file lies."""
    return path.with_name(f".{path.name}.sfv")


@contextlib.contextmanager
def result_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling that replaces a file, and add its checksum; see `atomic_path`."""
    with atomic_path(path, shared=shared) as partial:
        yield partial
        crc = file_crc32(partial)
        # A crash between the two renames leaves a file without a checksum, not with a wrong one.
        checksum_path(path).unlink(missing_ok=True)
    write_checksums(checksum_path(path), {path.name: crc})


def write_result(path: Path, text: str) -> None:
    """Write a text with its checksum, as :func:`write_text_atomic` does."""
    with result_path(path, shared=True) as partial:
        write_text(partial, text)


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file; 2 to 3.7 GB/s where the disk is as fast.

    Raises
    ------
    ResultFileError
        It cannot be read.
    """
    crc = 0
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                crc = zlib.crc32(block, crc)
    except OSError as error:
        raise unreadable(path, error) from error
    return crc


def write_checksums(path: Path, crc32: Mapping[str, int]) -> None:
    """Write an SFV file, in the order of the names; a comment has the checksum of its lines."""
    lines = "".join(f"{name} {crc32[name]:08x}\n" for name in sorted(crc32))
    write_text_atomic(path, f"{_HEAD}{zlib.crc32(lines.encode()):08x}\n{lines}")


def read_checksums(path: Path) -> dict[str, int]:
    """Return the CRC-32 of each file that an SFV file lists.

    Raises
    ------
    ResultFileError
        It is damaged, or cannot be read.
    """
    try:
        head, _, lines = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    if head != f"{_HEAD}{zlib.crc32(lines):08x}".encode():
        name = path.name.removeprefix(".").removesuffix(".sfv")
        owner = path.with_name(name) if path.name[0] == "." else path.parent
        raise ResultFileError(f"{path} is not what was written; {remedy(owner)}")
    rows = (line.rpartition(" ") for line in lines.decode().splitlines())
    return {name: int(crc, 16) for name, _, crc in rows}


def compare_checksum(path: Path) -> bool:
    """Compare a file with its checksum; return whether it has one.

    Raises
    ------
    ResultFileError
        It is not what was written.
    """
    try:
        known = read_checksums(checksum_path(path))
    except FileNotFoundError:
        return False
    if not path.exists():
        raise ResultFileError(
            f"{path} is missing; run snakemake with this path as the target, or delete "
            f"{checksum_path(path)} where no file is needed"
        )
    if known.get(path.name) != file_crc32(path):
        raise ResultFileError(f"{path} is not what was written; {remedy(path)}")
    return True


@contextlib.contextmanager
def result_file_errors(path: str | Path, what: str) -> Iterator[None]:
    """Compare a file with its checksum, and raise what unexpected content causes with its name.

    Parameters
    ----------
    what : str
        What the file should be; follows "is no".

    Raises
    ------
    ResultFileError
        Its content is not as expected, or cannot be read.
    """
    compare_checksum(Path(path))
    try:
        yield
    except ResultFileError:
        raise
    except (*DAMAGE_ERRORS, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            if error.filename is not None:
                raise  # absent or not readable: its content is unknown
            raise unreadable(path, error) from error
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ResultFileError(f"{path} is no {what} ({reason}); {remedy(path)}") from error


def json_value(value: Any) -> Any:
    """Return JSON values: numbers rounded to six digits, NaN and infinity as null.

    >>> json_value({"shift_px": [1 / 3, float("nan")], 2: True})
    {'shift_px': [0.333333, None], '2': True}
    """
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_value(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def write_json(path: Path, content: Any, *, indent: int = 1, sort_keys: bool = False) -> None:
    """Write plain values as JSON with its checksum.

    Raises
    ------
    ValueError
        A number is NaN or infinite.
    """
    text = json.dumps(content, indent=indent, sort_keys=sort_keys, allow_nan=False)
    write_result(path, f"{text}\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds."""
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content
