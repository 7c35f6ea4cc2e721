"""Libraries of those who take our images on, run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest


class Consumer(NamedTuple):
    """A library that reads our images, and the test that has it read them.

    ``version`` is that with which the test last passed; ``elsewhere`` says that it has an
    environment of its own, since it wants an older Zarr or Node.js.
    """

    name: str
    version: str
    opened: str
    test: str
    note: str = ""
    elsewhere: bool = False


#: The table of ``docs/export.md``.
CONSUMERS = (
    Consumer("ome-types", "0.7", "OME-TIFF", "test_ome_types"),
    Consumer(
        "bioio, bioio-ome-tiff", "3.6, 1.4", "OME-TIFF", "test_bioio",
        "reads the full resolution alone of any OME-TIFF",
    ),
    Consumer(
        "bioio, bioio-ome-zarr", "3.6, 3.8.1", "OME-Zarr", "test_bioio",
        "`.ome_metadata` raises a `ValidationError` on `contrast_method` where there are more than "
        "four channels; all else is right, `standard_metadata` too",
    ),
    Consumer("ome-zarr-py", "0.15", "OME-Zarr", "test_ome_zarr_py"),
    Consumer(
        "napari with napari-ome-zarr", "0.9.2, 0.10", "OME-Zarr", "test_napari",
        "tried without a window; shows the first four channels at first; name the plugin",
    ),
    Consumer(
        "napari with napari-tiff", "0.9.2, 0.1.6", "OME-TIFF", "test_napari",
        "name the plugin, or napari shows one grey layer without names and scale",
    ),
    Consumer(
        "sopa `ome_tif`", "2.2.11", "OME-TIFF", "test_sopa",
        "makes a pyramid of its own and works in pixels",
    ),
    Consumer(
        "palom", "2026.4.1", "OME-TIFF", "test_palom",
        "reads no names, and takes the width of a pixel for its height", elsewhere=True,
    ),
    Consumer(
        "Viv `@vivjs/loaders`", "0.21", "OME-TIFF with `offsets.json`, OME-Zarr, over HTTP",
        "test_viv", "leaves out the last of an odd number of rows of a coarse level of an OME-TIFF",
        elsewhere=True,
    ),
    Consumer(
        "Vitessce", "3.8.4", "OME-TIFF, OME-Zarr 0.4", "test_vitessce",
        "its Python package hands files to Viv", elsewhere=True,
    ),
    Consumer(
        "spatialdata", "0.7.3", "`--to spatialdata`, 0.4 and 0.5",
        "test_spatialdata_reads_pixels_names_and_scale",
    ),
    Consumer(
        "spatialdata-io `mcmicro`", "0.7.1", "`--to mcmicro`",
        "test_the_reader_of_mcmicro_folders_reads_ours", "names and shape",
    ),
)  # fmt: skip

#: Python that has what needs another Zarr than ours, and Viv: `make test LONG=1` installs both.
OTHER_PYTHON = Path(sys.prefix) / "consumers/bin/python"
VIV = Path(sys.prefix) / "consumers/node_modules"


def said_by(library: str, code: str, *args: str, **environment: str) -> str:
    """Return what Python code prints that uses a library, which may warn as it likes."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test LONG=1 installs it")
    return _said([sys.executable, "-W", "ignore", "-c", code, *args], environment)


def said_elsewhere(library: str, code: str, *args: str) -> str:
    """Return the same of a library that does not install beside tilewright."""
    python = str(OTHER_PYTHON)
    found = OTHER_PYTHON.exists() and not subprocess.run(
        [python, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec({library!r}))"],
        check=False,
    ).returncode  # fmt: skip
    if not found:
        pytest.skip(
            f"{library} needs zarr 2; make test LONG=1 installs it in {OTHER_PYTHON.parent}"
        )
    return _said([python, "-W", "ignore", "-c", code, *args], {})


def said_by_viv(script: Path, *args: str) -> str:
    """Return what a script of Node.js prints that finds Viv by its first argument."""
    if not (VIV / "@vivjs/loaders").exists():
        pytest.skip(f"@vivjs/loaders is not in {VIV}; make test LONG=1 installs it")
    return _said(["node", str(script), str(VIV), *args], {})


def _said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
