"""The scheduler plugin's wheel alone, on a cluster it has never seen."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun, dump
from tests.support.runs import REPO
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_cluster.settings import ACCOUNTS
from tests.support.wheels import install_wheels, run

pytestmark = pytest.mark.slurm

#: What its pyproject asks for brings these through Snakemake's Slurm executor, and nothing else
#: does; nothing of the plugin imports them.
OF_THE_EXECUTOR = {"numpy", "pandas"}
OF_IMAGES = {
    "tilewright", "scipy", "matplotlib", "zarr", "tifffile", "imagecodecs", "pillow",
    "scikit-image", "threadpoolctl", "nvidia-ml-py", "tqdm",
}  # fmt: skip
IMPORTED = """
import sys
from snakemake_scheduler_plugin_tilewright import Scheduler, SchedulerSettings, cli
from snakemake_scheduler_plugin_tilewright import accounts_table, executor, orphaned
from snakemake_scheduler_plugin_tilewright.report import page
print(*{name.partition(".")[0] for name in sys.modules})
"""


@dataclass
class Alone(ClusterRun):
    """A plain ``snakemake`` command: no profile, no settings, nothing of this repository."""

    python: Path = Path(sys.executable)

    def command(self, *args: str) -> list[str]:
        return [
            *(str(self.python.with_name("snakemake")), *self.targets),
            *("--snakefile", str(self.snakefile)),
            *("--executor", "tilewright", "--scheduler", "tilewright", "--jobs", "8"),
            *args,
        ]

    def environment(self) -> dict[str, str]:
        own = super().environment()
        del own["PYTHONPATH"]
        return {**own, "PATH": f"{self.python.parent}:{own['PATH']}"}


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("all it asks for", marks=pytest.mark.long)]
)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel and what it asks for, or finds it."""
    folder = tmp_path_factory.mktemp("alone")
    if request.param == "wheel":
        return install_wheels(folder, "scheduler-plugin") / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps"]
    run(*pip, "--wheel-dir", folder, REPO / "scheduler-plugin")
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    found = folder / "venv/bin/python"
    run(found, "-m", "pip", "--quiet", "install", wheel)
    return found


def test_nothing_of_images_is_installed_or_imported(python: Path) -> None:
    if python.with_name("pip").exists():
        listed = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
        names = {package["name"].lower() for package in listed}
        assert "snakemake-scheduler-plugin-tilewright" in names
        assert not names & OF_IMAGES, sorted(names)
    imported = set(run(python, "-c", IMPORTED).split())
    assert "snakemake_scheduler_plugin_tilewright" in imported
    assert not imported & (OF_THE_EXECUTOR | OF_IMAGES), sorted(imported)


@pytest.mark.parametrize(
    ("targets", "samples", "jobs"),
    [
        (("mapped/s00.bam", "mapped/s01.bam"), 2, 2),
        pytest.param((), 4, 13, marks=pytest.mark.long),
    ],
)
def test_a_first_run_needs_no_settings(
    quiet_slurm: Cluster, python: Path, tmp_path: Path, targets: tuple[str, ...], samples: int,
    jobs: int,
) -> None:  # fmt: skip
    snakefile = REPO / "tests/support/foreign/plain/Snakefile"
    first = Alone(quiet_slurm, tmp_path, snakefile, targets, python=python)
    first.first_id = max((job.id for job in quiet_slurm.jobs()), default=0)
    few = ["--config", f"samples={samples}", f"seconds={samples}"]
    placement = [python.with_name("tilewright-placement")]
    assert "left out" not in tool(first, *placement, "accounts")
    first.run(*few, timeout_s=600)
    said = first.log.splitlines()
    (at,) = [k for k, line in enumerate(said) if line.startswith("jobs go to ")]
    assert said[at].startswith("jobs go to 7 accounts of root: ")
    assert said[at].endswith(" and 3 more")
    assert said[at + 1] == "  `tilewright-placement accounts` shows what they may use"
    assert said[at + 2].startswith("  partitions: CPU jobs to ")
    burst = {f"{account.name}-b" for account in ACCOUNTS}
    done = first.check_placed({"brusko", "clive", "maigan", "root"} | burst)
    assert len(done) == jobs, dump(first.events)
    if not targets:
        assert (tmp_path / "calls/all.vcf").read_text().split() == ["s00", "s01", "s02", "s03"]
    tool(first, *placement, "run-report")
    assert "Where it ran" in (tmp_path / "run.html").read_text()
    assert "no job of Snakemake writes into" in tool(first, *placement, "orphaned")


def tool(run: Alone, *argv: str | Path) -> str:
    """Run a command as a user in the folder of a run."""
    done = subprocess.run(
        [*map(str, argv)], cwd=run.folder, env=run.environment() | {"COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
