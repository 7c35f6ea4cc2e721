"""Folders outside the project that every run writes to: caches and temporary files."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

_TRIED_B = 2**20  # a disk that is full takes an empty file


def refused_folders() -> Iterator[str]:
    """Yield a sentence for each folder that a run writes to and cannot: cause and fix.

    Snakemake keeps the sources of a workflow in the user's cache; shells, SciPy and Slurm's
    commands write to ``TMPDIR``. Both end in a traceback, or in failed jobs, where they are full
    or closed.
    """
    cache = platformdirs.user_cache_path("snakemake")
    named = os.environ.get("XDG_CACHE_HOME")
    source = f"XDG_CACHE_HOME={named}" if named else "HOME"
    if why := _refuses(cache):
        yield (
            f"Snakemake's cache {cache} cannot be written ({why}); make room there, or set "
            f"XDG_CACHE_HOME to a folder that you can write to (it follows from {source})"
        )
    scratch = os.environ.get("TMPDIR")
    if scratch and (why := _refuses(Path(scratch), make=False)):
        yield (
            f"TMPDIR={scratch} cannot be written ({why}); make room there, or set "
            "TMPDIR to another folder"
        )


def _refuses(folder: Path, *, make: bool = True) -> str:
    """Return why a file of 1 MiB cannot be written into a folder; empty where it can."""
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_TRIED_B))
    except OSError as error:
        return error.strerror or repr(error)
    return ""
