"""``tilewright doctor``: what it finds wrong, and how it says so."""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.cluster import cluster
from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.commands import check_slurm, doctor
from snakemake_scheduler_plugin_tilewright.commands.checks import Check, ok, problem, warning
from snakemake_scheduler_plugin_tilewright.commands.doctor import (
    on_slurm,
    print_checks,
    show_checks,
)
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.commands.no_slurm import command
from tests.support import recorded
from tests.support.runs import Run, make_run
from tilewright.cli import app
from tilewright.commands import check_experiment, check_machine
from tilewright.commands.check_experiment import DiskNeed
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import DataSize
from tilewright.config.settings import Settings
from tilewright.config.sizing import DataSizes

CONFIG = "MinJobAge               = 300 sec\nSLURM_VERSION           = 22.05.8\n"


def asking(folder: Path, now_s: float = 1000.0, **changed: Any) -> SlurmClient:
    """Return what asks a cluster that gives the recorded answers, or changed ones."""
    said = {**recorded.ANSWERS, "config": CONFIG, "squeue": "", **changed}
    return recorded.client(recorded.Recorded(said), folder, [now_s])


def cluster_of(folder: Path, site: dict[str, Any] | None = None, **changed: Any) -> Cluster:
    rules, client = Site.model_validate(site or {}), asking(folder, **changed)
    return Cluster(rules, client, 1001, query_cluster(client, 1001, rules))


def states(checks: Iterable[Check]) -> list[tuple[str, str]]:
    return [(check.about, check.state) for check in checks]


def test_a_cluster_that_answers_is_well(tmp_path: Path) -> None:
    found = list(check_slurm.check_daemons(asking(tmp_path)))
    assert states(found) == [("slurmctld", "ok"), ("MinJobAge", "ok"), ("slurmdbd", "ok")]
    assert found[0].text == "answers, Slurm 22.05.8"
    cluster = cluster_of(tmp_path)
    assert {check_slurm.check_partition(cluster, kind).state for kind in KINDS} == {"ok"}
    accounts = [check.text for check in check_slurm.check_accounts(cluster)]
    assert "maigan: 2 GPU + 5 CPU slots" in accounts
    assert any(text.startswith("clive-b is left out: burst account") for text in accounts)


def test_daemons_that_do_not_answer(tmp_path: Path) -> None:
    silent = SlurmQueryError("scontrol", "no answer within 15 s")
    (controller,) = check_slurm.check_daemons(asking(tmp_path, config=silent))
    assert controller.state == "problem"
    assert "no answer within 15 s" in controller.text
    refused = SlurmQueryError("sacctmgr", "Connection refused")
    found = check_slurm.check_daemons(asking(tmp_path / "none", sacctmgr=refused))
    assert "slurmdbd" not in dict(states(found))
    warned = check_slurm.check_accounts(cluster_of(tmp_path / "none", sacctmgr=refused))
    (limits,) = (check for check in warned if "Connection refused" in check.text)
    assert (limits.about, limits.state) == ("survey", "warning")


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Put programs of Slurm that fail into the place of all others."""
    for name in ("sbatch", "squeue", "scontrol", "sacctmgr", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)


def test_a_daemon_that_does_not_answer_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "Connection refused")
    found = on_slurm(cluster.open_cluster, lambda found: ())
    assert states(found) == [("slurmctld", "problem")]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("fetch_config: DNS SRV lookup failed", False),
        ("fatal: Could not establish a configuration source", False),
        ("slurm_load_ctl_conf error: Unable to contact slurm controller", True),
    ],
)
def test_commands_of_slurm_without_a_cluster_are_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, wanted: bool
) -> None:
    programs(tmp_path, monkeypatch, f"scontrol: {said}")
    assert slurm_wanted() == wanted


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ("MinJobAge = 300 sec", "ok"),
        ("MinJobAge = 30 sec", "warning"),
        ("MinJobAge = 2 sec", "problem"),
        ("nothing of the kind", "warning"),
    ],
)
def test_ended_jobs_must_stay_in_the_queue(config: str, state: str) -> None:
    assert check_slurm.check_job_age(config).state == state


def test_partitions_that_are_too_short_or_refuse_an_account(tmp_path: Path) -> None:
    short = recorded.PARTITIONS.replace("7-00:00:00", "01:00:00")
    closed = short.replace("Default=YES", "AllowAccounts=maigan Default=YES")
    cluster = cluster_of(tmp_path, {"blocked": {"brusko": "not ours"}}, partition=closed)
    gpu, cpu = (check_slurm.check_partition(cluster, kind) for kind in KINDS)
    assert (gpu.state, gpu.text.endswith("4 h (gpu_job)")) == ("warning", True)
    assert (cpu.state, cpu.text) == ("warning", "hpg-default does not take jobs of clive")
    none = cluster_of(tmp_path, partition=recorded.PARTITIONS.splitlines()[0])
    assert check_slurm.check_partition(none, "gpu").text.startswith("there is none with GPUs")


def test_accounts_that_are_spent_or_of_unknown_use(tmp_path: Path) -> None:
    spent = recorded.USE.replace(
        " GrpTRES=", " GrpTRESMins=cpu=600(600) GrpTRESRunMins=cpu=N(0) GrpTRES=", 1
    )
    cluster = cluster_of(tmp_path, None, **{"flags=qos": spent})
    found = {check.text: check.state for check in check_slurm.check_accounts(cluster)}
    assert found["clive: left are 0 CPU-hours of 10 CPU-hours (QOS clive)"] == "warning"
    assert "maigan: 2 GPU + 5 CPU slots" in found
    silent = SlurmQueryError("scontrol", "no answer within 15 s")
    unknown = cluster_of(tmp_path / "silent", None, **{"flags=qos": silent})
    (warned,) = [c for c in check_slurm.check_accounts(unknown) if c.text.startswith("use of")]
    assert warned.state == "warning"
    assert warned.text.startswith("use of QOS brusko, QOS clive, QOS maigan is a lower bound")


def test_devices_without_cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    (found,) = check_machine.check_cupy(["clive_gpu", "maigan_gpu"])
    assert (found.state, "tilewright[cuda12]" in found.fix) == ("warning", True)
    pools = cluster_of(tmp_path, {"partitions": {"gpu": "none"}}).pools
    assert {pool.kind for pool in pools} == {"cpu"}
    assert not list(check_machine.check_cupy([]))
    assert [check.state for check in check_machine.check_device({})] == ["ok"]
    (absent,) = check_machine.check_device({"TILEWRIGHT_DEVICE": "gpu"})
    assert absent.state == "problem"
    assert "no GPU that can be used: NVML does not start" in absent.text
    (wrong,) = check_machine.check_device({"TILEWRIGHT_DEVICE": "cuda"})
    assert (wrong.state, wrong.fix) == ("problem", "set it to cpu, gpu or auto")


def test_programs_and_plugins_are_named() -> None:
    (found,) = check_slurm.check_programs(lambda name: None if name == "scontrol" else "/usr/bin/x")
    assert (found.state, found.text) == ("problem", "scontrol not found")
    scheduler, executor = doctor.check_plugins()
    assert scheduler.text.startswith("plugin tilewright 0.")
    assert executor.text.startswith("plugin slurm 2.")
    assert {scheduler.state, executor.state} == {"ok"}


def test_a_full_cache_and_a_closed_tmpdir_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TMPDIR", raising=False)
    assert [check.state for check in doctor.check_scratch()] == ["ok"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    cache, temporary = doctor.check_scratch()
    assert "cache" in cache.text
    assert "set XDG_CACHE_HOME" in cache.fix
    assert temporary.text.startswith(f"TMPDIR={tmp_path}/absent cannot be written")


def test_stale_jobs_a_locked_folder_and_the_run_that_is_active(tmp_path: Path) -> None:
    cluster, _ = recorded.cluster_with(recorded.HERE, tmp_path)
    (found,) = check_slurm.check_orphaned(cluster, "/data/run")
    assert found.state == "problem"
    (found,) = check_slurm.check_orphaned(cluster, "/data/other")
    assert found.state == "ok"
    hidden, _ = recorded.cluster_with(SlurmQueryError("squeue", "refused"), tmp_path)
    (found,) = check_slurm.check_orphaned(hidden, "/data/run")
    assert (found.state, found.fix) == ("problem", "try again when Slurm answers")
    (found,) = doctor.check_lock(tmp_path)
    assert found.state == "ok"
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (found,) = doctor.check_lock(tmp_path)
    assert found.state == "problem"
    now_s = time.time()
    state = RunState(now_s, now_s, {"a": 2}, {}, pid=os.getppid())
    write_state(tmp_path / LEDGER.with_name(STATE), state)
    (found,) = doctor.check_lock(tmp_path)
    assert (found.state, found.fix) == ("problem", "wait until it has ended")
    write_state(tmp_path / LEDGER.with_name(STATE), replace(state, pid=recorded.NO_PROCESS))
    (found,) = doctor.check_lock(tmp_path)
    assert found.text == "a run that was killed left this folder locked"


def rules_of(convention: str, method: str) -> set[str]:
    raw = {"convention": convention, "pixel_um": 0.5}
    config = {"samples": "s.csv", "markers": "m.csv", "acquisition": raw, "edf": {"method": method}}
    return check_experiment.rules_of(Settings.model_validate(config))


def test_the_largest_job_of_the_rules_that_run_fits_into_memory() -> None:
    size = DataSize(4, 10, 512, 512, 0.1, 2, 4)
    large = {"deconvolve": {"mem_mb": 1 << 40}}
    sizes = DataSizes(lambda _: size, {}, overrides=large)
    direct = rules_of("codex", "multiplane_wiener")
    deconvolved = rules_of("codex", "sum_projection")
    stitched = rules_of("stitched", "auto")
    assert check_machine.check_memory(sizes, direct).state == "ok"
    found = check_machine.check_memory(sizes, deconvolved)
    assert found.state == "problem"
    assert found.text.startswith("the largest job, of deconvolve, asks for ")
    assert "stitched_plane" in stitched - direct
    assert not {"stitch", "edf_plane", "deconvolve"} & stitched


def test_disk_space(tmp_path: Path) -> None:
    results = tmp_path / "not/there/yet"
    passing = DiskNeed(1e3, 1e18, 5, 4)
    found = [
        check_experiment.check_space(need, 4, results).state
        for need in (DiskNeed(1e3), DiskNeed(1e18), passing)
    ]
    assert found == ["ok", "problem", "problem"]
    assert [passing.peak(jobs) for jobs in (1, 4)] == [1e3 + 5e18] * 2
    assert DiskNeed(1e3, 1e18, 36, 4).peak(2) == 1e3 + 10e18


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("phantom")
    return make_run(folder, cycles=2, channels=2, rows=1, cols=2, planes=3, tile_px=128)


def test_the_size_of_what_is_to_come(phantom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(phantom.folder)
    experiment = read_experiment(phantom.config)
    assert {state for _, state in states(check_experiment.check_config(experiment))} == {"ok"}
    layout, plane = Layout("results"), 128 * (128 + int(0.85 * 128))
    stacks, planes = 3 * plane * (2 + 4), plane * (2 + 2 * 2 * 4 / 3)

    def need() -> DiskNeed:
        return check_experiment.missing_bytes(read_experiment(phantom.config), layout)

    phantom.edit(edf={"method": "sum_projection"})
    assert (need().permanent, need().stack) == pytest.approx((4 * planes, stacks))
    assert (need().channels, need().channels_of_cycle) == (4, 2)
    phantom.edit(output={"keep": "stacks"})
    assert need().peak(3) == pytest.approx(4 * (stacks + planes))
    done = phantom.sample / "deconvolve/cycle1_channel1.zarr"
    done.mkdir(parents=True)
    assert need().permanent == pytest.approx(4 * (stacks + planes) - 12 * plane)
    done.rmdir()


def test_raw_files_that_are_missing(phantom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(phantom.folder)
    experiment = read_experiment(phantom.config)
    path = next((phantom.folder / "raw").rglob("*.tif"))
    away = path.rename(phantom.folder / "away")
    found = states(check_experiment.check_config(experiment))
    away.rename(path)
    assert found == [("raw files", "problem")]


@pytest.mark.workflow
def test_the_command_on_a_machine_without_slurm(
    phantom: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command(app, phantom, monkeypatch, "doctor", "--configfile", "config.yaml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "Slurm      not on this machine: all jobs run here" in done.stdout
    assert "memory     " in done.stdout
    assert "nothing would make a run fail; 0 warnings" in done.stdout
    wrong = command(app, phantom, monkeypatch, "doctor", "--configfile", "none.yaml", "--json")
    assert (wrong.exit_code, json.loads(wrong.stdout)["problems"]) == (1, 1)
    asked = command(app, phantom, monkeypatch, "doctor", "--site", "none.yaml")
    assert asked.exit_code == 1
    assert "not checked: raw files" in asked.stdout
    assert "sbatch, squeue, scontrol, scancel not found" in " ".join(asked.stdout.split())


def test_the_table_has_80_columns_and_colours_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checks = [ok("lock", "fine"), warning("disk", "w" * 10, "m" * 90), problem("x", "y " * 60, "z")]
    plain, coloured = StringIO(), StringIO()
    print_checks(checks, Console(file=plain, width=80))
    print_checks(checks, Console(file=coloured, width=80, force_terminal=True, no_color=False))
    assert max(map(len, plain.getvalue().splitlines())) <= 80
    assert ("\x1b" in plain.getvalue(), "\x1b" in coloured.getvalue()) == (False, True)
    assert "a run would fail: 1 problem, 1 warning" in plain.getvalue()
    fine = {"about": "lock", "state": "ok", "text": "fine", "fix": ""}
    with pytest.raises(SystemExit, match="1"):
        show_checks(checks, json=True)
    assert json.loads(capsys.readouterr().out)["checks"][0] == fine
