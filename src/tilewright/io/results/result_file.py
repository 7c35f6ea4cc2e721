"""Files of results: written whole with a checksum, and read with one error for all damage.

Next to a file ``qc.json`` lies ``.qc.json.sfv``, and in the folder of an OME-Zarr image
``checksums.sfv``: lines of a name and its CRC-32, as programs for SFV files read them. What has
none, of an earlier version, is read unchecked.
"""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ResultFileError
from tilewright.io.formats.common import DAMAGE_ERRORS
from tilewright.runtime.files import atomic_path, write_text, write_text_atomic

#: What makes a damaged file or folder again; no rule runs whose outputs are there.
REMEDY = "delete it and run the same snakemake command again"
_BLOCK_BYTES = 1 << 24
_HEAD = "; CRC-32 of the lines below: "


def checksum_path(path: Path) -> Path:
    """Return where the checksum of a file lies."""
    return path.with_name(f".{path.name}.sfv")


@contextlib.contextmanager
def result_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling that replaces a file, and add its checksum; see `atomic_path`."""
    with atomic_path(path, shared=shared) as partial:
        yield partial
        crc = file_crc32(partial)
        # An end of the machine between the two renames leaves a file without a checksum.
        checksum_path(path).unlink(missing_ok=True)
    write_checksums(checksum_path(path), {path.name: crc})


def write_result(path: Path, text: str) -> None:
    """Write a text with its checksum, as :func:`write_text_atomic` does."""
    with result_path(path, shared=True) as partial:
        write_text(partial, text)


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file; 3.7 GB/s, and less than a thousandth of the time of a rule."""
    crc = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


def write_checksums(path: Path, crc32: Mapping[str, int]) -> None:
    """Write an SFV file, in the order of the names; its first line is a comment, of the others."""
    lines = "".join(f"{name} {crc32[name]:08x}\n" for name in sorted(crc32))
    write_text_atomic(path, f"{_HEAD}{zlib.crc32(lines.encode()):08x}\n{lines}")


def read_checksums(path: Path) -> dict[str, int]:
    """Return the CRC-32 of each file that an SFV file lists.

    Raises
    ------
    ResultFileError
        It is damaged.
    """
    head, _, lines = path.read_bytes().partition(b"\n")
    if head != f"{_HEAD}{zlib.crc32(lines):08x}".encode():
        raise ResultFileError(
            f"{path} is damaged: it is not what was written; delete it and what it has the "
            "checksums of, and run the same snakemake command again"
        )
    rows = (line.rpartition(" ") for line in lines.decode().splitlines())
    return {name: int(crc, 16) for name, _, crc in rows}


def check_file(path: Path) -> None:
    """Compare a file with its checksum, if it has one.

    Raises
    ------
    ResultFileError
        It is not what was written.
    """
    record = checksum_path(path)
    if not record.is_file():
        return
    if not path.exists():
        raise ResultFileError(f"{path} is missing; run the same snakemake command again")
    if read_checksums(record).get(path.name) != file_crc32(path):
        raise ResultFileError(f"{path} is damaged: it is not what was written; {REMEDY}")


@contextlib.contextmanager
def result_file_errors(path: str | Path, what: str, *, checked: bool = True) -> Iterator[None]:
    """Raise what unexpected content causes as ResultFileError that names the file.

    Parameters
    ----------
    what : str
        What the file should be; follows "is no".
    checked : bool
        Whether its checksum is compared first.

    Raises
    ------
    ResultFileError
        Its content is not as expected.
    """
    if checked:
        check_file(Path(path))
    try:
        yield
    except ResultFileError:
        raise
    except (*DAMAGE_ERRORS, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # absent or not readable: its content is unknown
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ResultFileError(f"{path} is no {what} ({reason}); {REMEDY}") from error


def checked_rows(rows: Iterable[Any], of: str, keys: Sequence[str]) -> list[Any]:
    """Return the rows of a file, which must all have ``keys``; ``of`` names what they belong to.

    Raises
    ------
    ValueError
        A row lacks a key; the message names both.
    """
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        for key in keys:
            if key not in row:
                raise ValueError(f"row {number} of {of} has no '{key}'")
    return rows


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds."""
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content
