"""``tilewright plan``: Snakemake's own DAG, and where its jobs would go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.plan import PlannedRun, plan_on
from snakemake_scheduler_plugin_tilewright.commands.plan_table import print_plan
from snakemake_scheduler_plugin_tilewright.placement.capacity import capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.placement.preview import Preview, preview
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from tests.commands.planned_runs import TenMinutes, command, tasks_of
from tests.conftest import REPO
from tests.support.placement_rules import with_use
from tests.support.recorded import cluster_with, queue_line
from tests.support.runs import Run, make_run
from tilewright.commands.dag import read_experiment, read_tasks
from tilewright.config.checks import data_sizes
from tilewright.config.layout import Layout
from tilewright.runtime.machine import device_kinds

SNAKEFILE = REPO / "workflow/Snakefile"


def previewed(folder: Path, tasks: Sequence[Task], *, full: bool = False) -> Preview:
    """Return where jobs would go on two accounts of the recorded cluster."""
    cluster, _ = cluster_with("", folder)
    accounts = [a for a in cluster.survey.accounts if a.name in ("clive", "maigan")]
    if full:
        accounts = [with_use(a, lambda holder: holder.limit) for a in accounts]
    at = cluster.survey.partitions
    capacity = capacity_now(accounts, [], [], utilisation=0.85, partitions=at)
    return preview(tasks, Plan(TenMinutes()).estimates, capacity)


def test_jobs_that_an_earlier_run_has_in_the_queue_are_said_to_count_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="rule_stitch_a")
    cluster, _ = cluster_with(sent, tmp_path)
    found = plan_on(Plan(TenMinutes(), cluster=cluster), tasks_of(2), ())
    (note,) = [note for note in found.notes if "queue" in note]
    assert note == (
        "in the queue already: 1 job of this folder; this plan counts their slots as taken, and "
        "places them once more"
    )


def test_jobs_go_to_gpu_and_cpu_slots_and_end_before_gpus_alone(tmp_path: Path) -> None:
    found = previewed(tmp_path, tasks_of(60))
    rules = {rule.rule: rule for rule in found.rules}
    assert rules["stitch"].jobs == rules["stitch"].gpu + rules["stitch"].cpu == 60
    assert rules["stitch"].gpu > 0 < rules["stitch"].cpu
    assert (rules["qc"].gpu, rules["qc"].cpu) == (0, 60)
    assert sum(pool.jobs for pool in found.pools) == 120
    assert sum(rules["stitch"].accounts.values()) == 60
    assert set(rules["stitch"].accounts) == {"clive", "maigan"}
    # use by labmates: 1 of 3 GPUs is taken
    free = {pool.name: (pool.free, pool.slots) for pool in found.pools}
    assert (free["clive_gpu"], free["maigan_gpu"]) == ((2, 3), (2, 2))
    assert found.finish_s is not None
    assert found.bound_s is not None
    assert found.gpu_only_s is not None
    assert found.gpu_only_s >= 15 * 120 + 30  # 60 jobs of 120 s on 4 GPUs, and the last QC
    assert found.bound_s <= found.finish_s < 0.8 * found.gpu_only_s
    assert found.all_free_s is not None
    assert found.all_free_s <= found.finish_s
    busy_s = sum(pool.busy_s for pool in found.pools)
    assert busy_s == pytest.approx(rules["stitch"].gpu * 120 + rules["stitch"].cpu * 600 + 60 * 30)
    used = {use.account: (use.cpu_hours, use.gpu_hours) for use in found.use}
    assert used.keys() == {"clive", "maigan"}
    assert sum(gpu for _, gpu in used.values()) == pytest.approx(rules["stitch"].gpu * 120 / 3600)


def test_where_nothing_is_free_no_end_is_known(tmp_path: Path) -> None:
    found = previewed(tmp_path, tasks_of(3), full=True)
    assert (found.finish_s, found.bound_s, found.gpu_only_s) == (None, None, None)
    assert found.all_free_s is not None
    shown = text_of(PlannedRun((), 6, found, None, ()))
    assert "when it would end is not known: no slot is free" in shown


def text_of(found: PlannedRun) -> str:
    stream = StringIO()
    print_plan(found, Console(file=stream, width=80))
    return stream.getvalue()


def test_the_table_has_80_columns_and_the_json_all_of_it(tmp_path: Path) -> None:
    forecast = previewed(tmp_path, tasks_of(60))
    found = PlannedRun(("registration", "qc"), 120, forecast, None, ("durations: guesses",))
    shown = text_of(found)
    assert shown.startswith("120 jobs to do for registration, qc\n")
    assert "(GPUs only: 30.5 min, lower bound" in shown
    assert " GPU-hours on clive\n" in shown
    placed = " ".join(shown.split())
    assert f"clive {forecast.rules[0].accounts['clive']}, maigan" in placed
    sizes = "GPU jobs of 8 CPUs and 4096 MB, CPU jobs of 8 CPUs and 4096 MB"
    assert f"slots for {sizes}, the largest that remain" in placed
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    numbers = json.loads(json.dumps(asdict(found)))
    assert numbers["forecast"]["gpu_only_s"] == 1830
    assert numbers["forecast"]["pools"][0]["name"] == "clive_gpu"


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("phantom")
    return make_run(folder, cycles=2, channels=2, rows=1, cols=2, planes=3, tile_px=128)


@pytest.mark.workflow
def test_the_jobs_are_those_of_a_dry_run(phantom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    phantom.snakemake("results/tonsil/illumination/cycle1_channel1-ffp.tif", "--cores", "2")
    dry = phantom.planned("registration", "qc")
    targets = ("--target", "registration", "--target", "qc")
    done = command(phantom, monkeypatch, "plan", "--configfile", "config.yaml", *targets, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["here"]["jobs"] == dry
    assert found["here"]["jobs"]["illumination"] == 1
    assert found["forecast"] is None
    assert found["notes"][0].startswith("no Slurm here")


@pytest.mark.workflow
def test_tasks_carry_what_they_wait_for(phantom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(phantom.folder)
    experiment = read_experiment(Path("config.yaml"))
    sizes = data_sizes(experiment, Layout("results"), device_kinds(experiment.settings, None, {}))
    tasks = {t.name: t for t in read_tasks(SNAKEFILE, Path("config.yaml"), ["edf"], sizes)}
    assert Counter(task.job.rule for task in tasks.values())["edf_plane"] == 4
    last = tasks["rule_edf_plane_wildcards_tonsil_2_1"]
    assert last.job.needs == ("rule_stitch_wildcards_tonsil_2_1",)
    assert last.job.kinds == ("gpu", "cpu")
    with pytest.raises(DagError, match="no rule to produce edff; targets are stitching"):
        read_tasks(SNAKEFILE, Path("config.yaml"), ["edff"], sizes)


@pytest.mark.workflow
def test_what_is_wrong_is_said_in_one_sentence(
    phantom: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = phantom.folder / "bad.yaml"
    bad.write_text(phantom.config.read_text().replace("overlap:", "overlapp:"))
    for name, said in (
        ("bad.yaml", "unknown key 'acquisition.overlapp'; did you mean 'overlap'?"),
        ("none.yaml", "tilewright plan: none.yaml cannot be read: No such file or directory\n"),
    ):
        done = command(phantom, monkeypatch, "plan", "--configfile", name)
        assert isinstance(done.exception, SystemExit)
        assert (done.exit_code, said in f"{done.exception}\n") == (1, True), done.output
        assert done.stdout == f"{done.exception}\n"
