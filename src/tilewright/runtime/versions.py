"""Which versions made a folder of results."""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import (
    JsonLines,
    append_json,
    read_json_lines,
)
from snakemake_scheduler_plugin_tilewright.runtime.records import is_text
from snakemake_scheduler_plugin_tilewright.runtime.words import printable


def made_by_another(path: Path) -> str:
    """Say so where the results are another version's; nothing for none, or for this one.

    Parameters
    ----------
    path : Path
        The record of versions in the folder of results: a line for each that began to write there.
    """
    last, own = _last(path), version("tilewright")
    if last in ("", own):
        return ""
    return f"{path.parent} was made by tilewright {last}, and this is {own}"


def read_versions(path: Path) -> JsonLines:
    """Return the lines of the record of versions."""
    return read_json_lines(path, {"version": is_text}, ("version",))


def _last(path: Path) -> str:
    lines = read_versions(path)
    return printable(lines[-1]["version"], 40) if lines else ""


def note_version(path: Path) -> None:
    """Write down that this version begins to write here, unless it was the last that did."""
    if _last(path) != version("tilewright"):
        began = datetime.now(UTC).isoformat(timespec="seconds")
        append_json(path, {"version": version("tilewright"), "began": began})


def software_versions() -> dict[str, str]:
    """Return the versions of what computes the pixels; packages that are absent are left out."""
    found = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
