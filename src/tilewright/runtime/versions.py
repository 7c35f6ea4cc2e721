"""Versions of the software that makes the results."""

from __future__ import annotations

import contextlib
import sys
from importlib.metadata import PackageNotFoundError, version


def software_versions() -> dict[str, str]:
    """Return the versions of what computes the pixels; packages that are absent are left out."""
    found = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
