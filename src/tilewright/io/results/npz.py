"""Named arrays in one ``.npz`` file: the same arrays give the same bytes."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tilewright.io.results.result_file import result_path


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays that ``numpy.load`` reads without pickle, atomically."""
    with (
        result_path(path) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in arrays.items():
            # An entry opened by its name is dated 1980, so that equal arrays give equal bytes.
            with archive.open(f"{name}.npy", "w") as file:
                npy.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read what :func:`write_npz` wrote; call it within ``result_file_errors``."""
    # Opened here, because numpy leaves the file open when it is not a zip.
    with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}
