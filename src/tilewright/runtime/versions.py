"""Versions of the software that makes the results."""

import contextlib
import sys
from importlib.metadata import PackageNotFoundError, version


def software_versions() -> dict[str, str]:
    """Return the versions of the packages that compute the pixels; absent ones are omitted."""
    versions = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
