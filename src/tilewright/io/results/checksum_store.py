"""The folder of an OME-Zarr image, of which each file is read as it was written or not at all.

Zarr takes a chunk that is not there for empty, and its codecs have no checksum that viewers read:
lz4 decodes changed bytes to other pixels. Here a list of checksums lies next to the chunks.
"""

import asyncio
import zlib
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from tilewright.errors import ResultFileError
from tilewright.io.results.result_file import (
    file_crc32,
    read_checksums,
    remedy,
    unreadable,
    write_checksums,
)

#: The list, in the folder of the image; viewers pass over it.
CHECKSUMS = "checksums.sfv"


class ChecksumStore(LocalStore):
    """A folder of Zarr with the CRC-32 of each of its files.

    Parameters
    ----------
    root : Path
        The folder.
    crc32 : dict of str to int, optional
        Path below the folder to its CRC-32; by default those of the folder's list.

    Raises
    ------
    ResultFileError
        The list is damaged; on reading, a file is absent or differs from what was written.
    FileNotFoundError
        There is no list.
    """

    def __init__(
        self, root: Path, *, read_only: bool = False, crc32: dict[str, int] | None = None
    ) -> None:
        super().__init__(root, read_only=read_only)
        self.crc32 = read_checksums(root / CHECKSUMS) if crc32 is None else crc32

    def with_read_only(self, read_only: bool = False) -> "ChecksumStore":
        """Return the same store for reading, or for writing too."""
        return type(self)(self.root, read_only=read_only, crc32=self.crc32)

    def write_list(self) -> None:
        """Write the list of checksums, when all else is written."""
        write_checksums(self.root / CHECKSUMS, self.crc32)

    def crc32_below(self, folder: str = "") -> dict[str, int]:
        """Return the CRC-32 of all files below a folder of it, after a look at each.

        Raises
        ------
        ResultFileError
            One is absent, or differs from what was written.
        """
        begin = f"{folder}/" if folder else ""
        found = {}
        for key in self.crc32:
            if key.startswith(begin):
                path = self.root / key
                found[key] = self._compare(key, file_crc32(path) if path.is_file() else None)
        return found

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a file, or None where none was written."""
        if key not in self.crc32:
            return None
        content = await asyncio.to_thread(self._read, key)
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a file, or None where none was written."""
        if key not in self.crc32:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(self._read(key))

    def _read(self, key: str) -> bytes:
        try:
            content = (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._compare(key, None)
            raise
        except OSError as error:
            raise unreadable(self.root / key, error) from error
        self._compare(key, zlib.crc32(content))
        return content

    def _compare(self, key: str, crc: int | None) -> int:
        if crc is None or self.crc32[key] != crc:
            problem = "is missing" if crc is None else "is not what was written"
            raise ResultFileError(f"{self.root / key} {problem}; {remedy(self.root)}")
        return crc

    async def set(self, key: str, value: Any) -> None:
        """Write a file and note its checksum."""
        await super().set(key, value)
        self.crc32[key] = await asyncio.to_thread(zlib.crc32, value.as_buffer_like())

    def set_sync(self, key: str, value: Any) -> None:
        """Write a file and note its checksum."""
        super().set_sync(key, value)
        self.crc32[key] = zlib.crc32(value.as_buffer_like())
