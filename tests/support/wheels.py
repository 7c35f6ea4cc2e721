"""Wheels of this checkout in environments of their own."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from subprocess import PIPE

from tests.conftest import REPO

SNAKEMAKE = "#!{python}\nfrom snakemake.cli import main\nmain()\n"


def install_wheels(folder: Path, *projects: str) -> Path:
    """Install projects of the repository as wheels and return their environment's programs.

    What they need is found among the packages of this environment, whose own links to the
    checkout are not followed: a path of a ``.pth`` file is no site folder.
    """
    pip = (sys.executable, "-m", "pip", "--quiet")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheels")
    run(*pip, "wheel", *options, *(REPO / project for project in projects))
    venv = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    wheels = sorted((folder / "wheels").glob("*.whl"))
    run(*pip, "--python", venv / "bin/python", "install", "--no-deps", "--no-index", *wheels)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    snakemake = venv / "bin/snakemake"
    snakemake.write_text(SNAKEMAKE.format(python=venv / "bin/python"))
    snakemake.chmod(0o755)
    return venv / "bin"


def run(
    *argv: str | Path, cwd: Path = REPO, env: dict[str, str] | None = None, stderr: int = PIPE
) -> str:
    """Return what a command prints; fail with all it said."""
    done = subprocess.run(
        [*map(str, argv)], cwd=cwd, env=env, stdout=PIPE, stderr=stderr, text=True, check=False
    )
    said = done.stdout[-6000:] + (done.stderr or "")[-6000:]
    assert done.returncode == 0, f"{argv}\n{said}"
    return done.stdout
