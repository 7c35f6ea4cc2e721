"""No circle between files: what a file imports, for its types too, imports nothing of it."""

import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions

import grimp
import pytest

from tests.conftest import REPO

PACKAGES = ("tilewright", "snakemake_scheduler_plugin_tilewright", "tests", "benchmarks", "docs")


def test_no_file_imports_one_that_imports_it() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    direct = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert {"tilewright.phantom.make", "tests.conftest"} <= direct.keys()
    TopologicalSorter(direct).prepare()  # its error names the circle


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        # in every Snakemake of a job
        ("tilewright.config.checks", "numpy tilewright.quality tilewright.report"),
        ("tilewright.io.inputs.manifest", "numpy tifffile pandas zarr"),
        ("tilewright.stages.stitch.fuse", "scipy.spatial"),
        ("tilewright.stages.edf.plane", "matplotlib"),
        ("tilewright.quality.evaluate", "scipy"),
    ],
)
def test_a_job_does_not_load_what_it_does_not_use(module: str, left_out: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{*{left_out.split()}}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


#: Import packages whose distributions are not in this environment.
ABSENT = {"cupy": ["cupy-cuda12x"], "cupyx": ["cupy-cuda12x"], "aicspylibczi": ["aicspylibczi"]}


@pytest.mark.parametrize(
    ("package", "folder"), [(PACKAGES[0], "."), (PACKAGES[1], "scheduler-plugin")]
)
def test_every_distribution_that_is_imported_is_declared(package: str, folder: str) -> None:
    """Also what another one brings today; an extra declares what only it needs."""
    project = tomllib.loads((REPO / folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    of_users = [name for name in extras if name not in ("test", "dist", "consumers")]
    lines = [*project["dependencies"], *(line for name in of_users for line in extras[name])]
    declared = {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in lines}
    graph = grimp.build_graph(*PACKAGES[:2], include_external_packages=True, cache_dir=None)
    own = graph.find_descendants(package) | {package}
    imported = {name for module in own for name in graph.find_modules_directly_imported_by(module)}
    outside = {name.partition(".")[0] for name in imported - own} - sys.stdlib_module_names
    assert len(outside) > 5
    known = {**ABSENT, **packages_distributions(), PACKAGES[1]: [PACKAGES[1]]}
    undeclared = {name for name in outside if not declared & set(map(normal, known[name]))}
    assert undeclared == set()


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
