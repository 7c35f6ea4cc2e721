"""No circle between files: what a file imports, for its types too, imports nothing of it."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPO

FOLDERS = ("src/tilewright", "scheduler-plugin/src/snakemake_scheduler_plugin_tilewright")


def files() -> dict[str, Path]:
    """Return every file by the name under which it is imported."""
    found = {}
    for folder in map(REPO.joinpath, (*FOLDERS, "tests", "benchmarks", "docs")):
        for path in folder.rglob("*.py"):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(file: str, path: Path, known: Collection[str]) -> Iterator[str]:
    package = file.split(".") if path.name == "__init__.py" else file.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            whole = (f"{module}.{name.name}" for name in node.names)
            yield from (name if name in known else module for name in whole)


def test_no_file_imports_one_that_imports_it() -> None:
    known = files()
    graph = {name: {*imports(name, path, known)} & known.keys() for name, path in known.items()}
    assert {"tilewright.phantom.make", "tests.conftest"} <= graph.keys()
    TopologicalSorter(graph).prepare()  # its error names the circle


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        # in every Snakemake of a job
        ("tilewright.config.checks", "numpy tilewright.quality tilewright.report"),
        ("tilewright.io.inputs.manifest", "numpy tifffile pandas zarr"),
        ("tilewright.io.results.distortion", "scipy"),
        ("tilewright.stages.stitch.fuse", "scipy.spatial"),
        ("tilewright.stages.edf.plane", "matplotlib"),
        ("tilewright.quality.evaluate", "scipy"),
    ],
)
def test_a_job_does_not_load_what_it_does_not_use(module: str, left_out: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{*{left_out.split()}}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
