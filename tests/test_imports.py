"""No circle between files: what a file imports, for its types too, imports nothing of it."""

import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

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
        ("tilewright.io.results.distortion", "scipy"),
        ("tilewright.stages.stitch.fuse", "scipy.spatial"),
        ("tilewright.stages.edf.plane", "matplotlib"),
        ("tilewright.quality.evaluate", "scipy"),
    ],
)
def test_a_job_does_not_load_what_it_does_not_use(module: str, left_out: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{*{left_out.split()}}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
