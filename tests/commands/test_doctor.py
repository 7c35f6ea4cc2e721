"""``tilewright doctor``: what it finds wrong, and how it says so."""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.commands import check_slurm, doctor
from snakemake_scheduler_plugin_tilewright.commands.checks import Check, ok, problem, warning
from snakemake_scheduler_plugin_tilewright.commands.doctor import (
    on_slurm,
    print_checks,
    show_checks,
)
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import has_slurm
from snakemake_scheduler_plugin_tilewright.placement.request import KINDS
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from snakemake_scheduler_plugin_tilewright.settings import settings_of
from tests.commands.no_slurm import command
from tests.support import recorded
from tests.support.runs import REPO, Run, make_run
from tilewright.cli import app
from tilewright.commands import check_experiment, check_machine
from tilewright.commands.check_experiment import DiskNeed
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import DataSize
from tilewright.config.settings import Settings
from tilewright.config.sizing import DataSizes


def states(checks: Iterable[Check]) -> list[tuple[str, str]]:
    return [(check.about, check.state) for check in checks]


def test_a_cluster_that_answers_is_well() -> None:
    cluster, _ = recorded.cluster_with()
    daemons = check_slurm.check_daemons(cluster.client)
    assert (daemons.about, daemons.state) == ("slurmctld", "ok")
    assert daemons.text == "answers, Slurm 22.05.8"
    assert {check_slurm.check_partition(cluster, kind).state for kind in KINDS} == {"ok"}
    accounts = [check.text for check in check_slurm.check_accounts(cluster)]
    assert "maigan: 2 GPU + 8 CPU slots" in accounts
    assert "clive-b is left out: --tilewright-leave-out *-b" in accounts


def test_daemons_that_do_not_answer() -> None:
    silent = SlurmQueryError("scontrol", "no answer within 15 s")
    asking = recorded.client(recorded.Recorded({"config": silent}))
    controller = check_slurm.check_daemons(asking)
    assert (controller.state, "no answer within 15 s" in controller.text) == ("problem", True)
    refused = SlurmQueryError("sacctmgr", "Connection refused")
    unknown, _ = recorded.cluster_with(sacctmgr=refused)
    warned = check_slurm.check_accounts(unknown)
    (limits,) = (check for check in warned if "Connection refused" in check.text)
    assert (limits.about, limits.state) == ("survey", "warning")


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Put programs of Slurm that fail into the place of all others."""
    for name in ("sbatch", "squeue", "scontrol", "sacctmgr", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def test_a_daemon_that_does_not_answer_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "Connection refused")
    assert states(on_slurm(None)) == [("slurmctld", "problem")]


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
    assert has_slurm() == wanted


def test_partitions_by_kind_and_how_long_jobs_may_take() -> None:
    short = recorded.PARTITIONS.replace("7-00:00:00", "01:30:00")
    cluster, _ = recorded.cluster_with(partition=short)
    gpu, cpu = (check_slurm.check_partition(cluster, kind) for kind in KINDS)
    assert (gpu.state, gpu.text) == ("ok", "hpg-b200, jobs of at most 1.5 h")
    assert cpu.text == "hpg-default, jobs of at most 744 h"
    none, _ = recorded.cluster_with(gpu_partitions=["none"])
    assert check_slurm.check_partition(none, "gpu").text.startswith("there is none with GPUs")
    down, _ = recorded.cluster_with(partition=short.replace("State=UP", "State=DOWN"))
    assert check_slurm.check_partition(down, "cpu").state == "problem"


def test_accounts_too_small_or_of_unknown_use() -> None:
    small = recorded.LIMITS.replace("cpu=104,gres/gpu=3", "cpu=4,gres/gpu=3")
    cluster, _ = recorded.cluster_with(sacctmgr=small, use="QOS=x(9) GrpTRES=cpu=1(1)\n")
    found = {check.text: check.state for check in check_slurm.check_accounts(cluster)}
    assert found["clive has no slot for jobs of 8 CPUs"] == "warning"
    silent = SlurmQueryError("scontrol", "no answer within 15 s")
    unknown, _ = recorded.cluster_with(use=silent)
    (warned,) = [c for c in check_slurm.check_accounts(unknown) if "in use" in c.text]
    assert (warned.state, "no answer within 15 s" in warned.text) == ("warning", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tilewright-cpu-share: 2", "--tilewright-cpu-share is 2.0; give 0 to 1"),
        ("tilewright-cpu-share: lots", "'tilewright-cpu-share' is 'lots'; give"),
        ("tilewright-accounts: [a, b]", "'tilewright-accounts' is ['a', 'b']; give"),
        ("tilewright-acounts: x", "'tilewright-acounts' is no setting; there are tilewright-acc"),
        ("a: [", "cannot be read: while parsing"),
        (None, "there is no profile"),
    ],
)
def test_a_wrong_profile_says(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlacementError) as caught:
        settings_of(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_settings_of_a_profile_are_read(tmp_path: Path) -> None:
    settings = settings_of(REPO / "profiles/hipergator")
    assert (settings.leave_out, settings.gpu_partitions) == ("brusko, *-b", "hpg-b200")
    (tmp_path / "config.yaml").write_text("jobs: 3\ntilewright-poll_seconds: 5\n")
    assert settings_of(tmp_path / "config.yaml").poll_seconds == 5
    assert settings_of(None).cpu_share == 0.85


def test_devices_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    (found,) = check_machine.check_cupy(["clive_gpu", "maigan_gpu"])
    assert (found.state, "tilewright[cuda12]" in found.fix) == ("warning", True)
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
    scheduler, executor, steps = doctor.check_plugins()
    assert scheduler.text.startswith("plugin tilewright 0.")
    assert executor.text.startswith("plugin tilewright 0.")
    assert steps.text.startswith("plugin slurm-jobstep 0.")
    assert {scheduler.state, executor.state, steps.state} == {"ok"}


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
    cluster, _ = recorded.cluster_with(recorded.HERE)
    assert check_slurm.check_orphaned(cluster.client, "/data/run").state == "problem"
    assert check_slurm.check_orphaned(cluster.client, "/data/elsewhere").state == "ok"
    hidden, _ = recorded.cluster_with(SlurmQueryError("squeue", "refused"))
    found = check_slurm.check_orphaned(hidden.client, "/data/run")
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
    asked = command(app, phantom, monkeypatch, "doctor", "--profile", "none.yaml")
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
