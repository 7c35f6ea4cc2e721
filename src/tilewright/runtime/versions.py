"""Which versions made a folder of results."""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import append_json


def made_by_another(path: Path) -> str:
    """Say so where the results are another version's; nothing for none, or for this one.

    Parameters
    ----------
    path : Path
        The record of versions in the folder of results: a line for each that began to write there.
    """
    if not path.is_file():
        return ""
    last = str(json.loads(path.read_text("utf-8").splitlines()[-1])["version"])
    if last == version("tilewright"):
        return ""
    return f"{path.parent} was made by tilewright {last}, and this is {version('tilewright')}"


def note_version(path: Path) -> None:
    """Write down that this version begins to write here, unless it was the last that did."""
    if not path.is_file() or made_by_another(path):
        began = datetime.now(UTC).isoformat(timespec="seconds")
        append_json(path, {"version": version("tilewright"), "began": began})


def software_versions() -> dict[str, str]:
    """Return the versions of what computes the pixels; packages that are absent are left out."""
    found = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
