"""Which versions made a folder of results."""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import append_json
from tilewright.installed import shipped

#: First line of a profile that was copied.
_COPIED = "# Copied by tilewright init, version "


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


def copied(profile: str) -> str:
    """Return the text of a profile as ``tilewright init`` copies it, with the version on top."""
    return f"{_COPIED}{version('tilewright')}\n{profile}"


def old_profiles(folder: Path) -> list[str]:
    """Name the profiles in a folder that another version copied there, or that cannot be read."""
    said = []
    for path in sorted(folder.glob("*/config.yaml")):
        try:
            head, _, text = path.read_text("utf-8", errors="replace").partition("\n")
        except OSError as error:
            said.append(f"{path} cannot be read ({error.strerror}); make it readable, or remove it")
            continue
        ours = shipped("profiles") / path.relative_to(folder)
        if head.startswith(_COPIED) and ours.is_file():
            theirs, own = head.removeprefix(_COPIED), version("tilewright")
            if theirs != own and text != ours.read_text("utf-8"):
                said.append(
                    f"{path} is the profile of tilewright {theirs}, and that of {own} is another; "
                    f"copy {ours} over it, or write {own} in its first line to keep it"
                )
    return said


def software_versions() -> dict[str, str]:
    """Return the versions of what computes the pixels; packages that are absent are left out."""
    found = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
