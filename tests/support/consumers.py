"""Libraries of those who take our images on, run in processes of their own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

#: Python that has what needs another Zarr than ours, and Viv: `make test LONG=1` installs both.
OTHER_PYTHON = Path(sys.prefix) / "consumers/bin/python"
VIV = Path(sys.prefix) / "consumers/node_modules"


def problem_from(library: str, code: str, *args: str, **environment: str) -> str:
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
