"""The workflow on one machine with pretended GPUs: NVML is a fake, NumPy stands in for CuPy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import STANDIN
from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tests.support.runs import TINY, Run, digests, make_run
from tilewright.devices.budget import RESERVE_B
from tilewright.devices.evidence import CONTEXT_B
from tilewright.devices.health import note_failure, quarantined
from tilewright.devices.lease import leases

TARGET = "stitching"
MIB = 2**20
#: A job of the workflow: what comes before it, its log, and what it does on its device.
JOB = """
import os, sys
from pathlib import Path
from tilewright.runtime.job import running
before, log, does = sys.argv[1:]
exec(before)
with running([log], 1, {"gpu": 1, "gpu_mem_mb": 1000}) as backend:
    backend.xp.zeros(1)
    exec(does)
"""
STICKY = "raise backend.xp.cuda.runtime.CUDARuntimeError('cudaErrorIllegalAddress: broken')"
pytestmark = pytest.mark.workflow


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    devices = [FakeDevice(uuid(1), total_b=24 * GB), FakeDevice(uuid(2), total_b=8 * GB)]
    made = FakeMachine(tmp_path / "nvml.json", devices, real_pids=True)
    made.write()
    return made


@pytest.fixture
def environment(machine: FakeMachine, tmp_path: Path) -> Iterator[dict[str, str]]:
    base = machine.environ()
    paths = [base["PYTHONPATH"], str(STANDIN)]
    yield {
        **{name: text for name, text in base.items() if name not in os.environ},
        "PYTHONPATH": os.pathsep.join(paths),
        "TILEWRIGHT_DEVICE": "auto",
        "TILEWRIGHT_LEASE_ROOT": str(tmp_path / "leases"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "STANDIN_BROKEN_NODES": str(tmp_path / "broken"),
    }
    assert not (tmp_path / "leases").is_dir() or leases(tmp_path / "leases") == []


def evidence(run: Run) -> list[dict[str, Any]]:
    path = run.results / "placement/devices.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_phantom_on_two_gpus_and_cpus_has_the_pixels_of_the_cpu(
    tmp_path: Path, tiny_raw: Path, tiny_run: Run, environment: dict[str, str]
) -> None:
    on_gpus = make_run(tmp_path / "gpus", tiny_raw, **TINY)
    # more than any device has: the work is halved where it does not fit, which it does
    on_gpus.edit(
        resources={"illumination": {"device": "cpu"}, "tile_positions": {"gpu_mem_mb": 90_000}}
    )
    said = on_gpus.snakemake(TARGET, env=environment)
    lines = evidence(on_gpus)
    rules = Counter(line["job"].split("/")[0] for line in lines)
    gone = said.stdout + said.stderr
    assert rules.total() == gone.count(" goes to a GPU") > 0
    assert "illumination" not in rules
    assert {line["outcome"] for line in lines} == {"done"}
    assert max(line["granted_b"] for line in lines) == 24 * GB - RESERVE_B
    assert {line["uuid"] for line in lines} <= {uuid(1), uuid(2)}
    assert all(line["peak_b"] is not None for line in lines)
    assert not (tiny_run.results / "placement/devices.jsonl").exists()
    assert digests(on_gpus.sample / "stitch") == digests(tiny_run.sample / "stitch")


@pytest.mark.long
def test_a_device_that_dies_is_quarantined_and_its_jobs_go_elsewhere(
    tmp_path: Path, tiny_raw: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "broken").write_text(uuid(1))
    run = make_run(tmp_path / "run", tiny_raw, **TINY)
    said = run.snakemake(TARGET, "--retries", "1", env=environment)
    outcomes = Counter((line["uuid"], line["outcome"]) for line in evidence(run))
    assert outcomes[uuid(1), "failed"] >= 1
    assert outcomes[uuid(2), "done"] >= 1
    assert (uuid(1), "done") not in outcomes
    assert "1 GPU can be used, 2 before" in said.stdout + said.stderr
    (found,) = quarantined(tmp_path / "leases").items()
    assert found[0] == uuid(1)
    assert "cudaErrorECCUncorrectable" in found[1].reason


LEASING = """
import logging, sys
from tilewright.devices.lease_queue import lease_root
from tilewright.runtime.gpu import leased_backend
from tilewright.kernels.backend import DeviceError
with leased_backend("deconvolve/x", "g", int(sys.argv[1])) as backend:
    if sys.argv[2:]:
        (lease_root() / "health.json").write_text("[broken")
        raise DeviceError("cudaErrorECCUncorrectable")
print("done")
"""


def test_a_job_takes_the_whole_of_what_the_healthy_devices_have(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "leases").mkdir(mode=0o700)
    note_failure(tmp_path / "leases", uuid(1), "other", "hardware", "ECC")
    said = subprocess.run(
        [sys.executable, "-c", LEASING, "10000"], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stdout == "done\n", said.stderr
    assert "work is halved where it does not fit" in said.stderr


def test_a_failure_that_cannot_be_noted_is_still_the_one_that_is_said(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", LEASING, "1000", "fails"], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stderr.splitlines()[-1].endswith("DeviceError: cudaErrorECCUncorrectable")
    assert f"the failure of device {uuid(1)} is not noted" in said.stderr


def test_a_demanded_gpu_that_is_not_there_ends_the_run_before_any_work(
    tmp_path: Path, tiny_raw: Path, machine: FakeMachine, environment: dict[str, str]
) -> None:
    machine.devices = []
    machine.write()
    run = make_run(tmp_path / "run", tiny_raw, **TINY)
    run.edit(resources={"stitch": {"device": "gpu"}})
    said = run.snakemake(TARGET, ok=False, env=environment)
    text = said.stdout + said.stderr
    assert "rule stitch is to run on a GPU, and this machine has none" in text
    assert "NVML lists no GPU" in text
    assert "Traceback" not in text
    assert not run.sample.exists() or not list(run.sample.glob("*/*.zarr"))


def job(
    folder: Path, environment: dict[str, str], does: str = "", name: str = "a", before: str = ""
) -> subprocess.Popen[str]:
    log = folder / f"logs/edf/{name}.log"
    more = {"TILEWRIGHT_DEVICE_LOG": str(folder / "devices.jsonl")}
    return subprocess.Popen(
        [sys.executable, "-c", JOB, before, str(log), does],
        env={**os.environ, **environment, **more},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(
    folder: Path, environment: dict[str, str], does: str = "", **more: str
) -> tuple[int, str, dict[str, Any]]:
    """Run a job; return its exit code, what it said, and its line of evidence."""
    with job(folder, environment, does, **more) as begun:
        try:
            said = begun.communicate(timeout=300)[1]
        finally:
            begun.kill()
    (path,) = folder.glob("devices*.jsonl")
    return begun.returncode, said, json.loads(path.read_text().splitlines()[-1])


def test_a_job_is_limited_to_what_its_rule_asks_for_and_says_how_it_went(
    tmp_path: Path, machine: FakeMachine, environment: dict[str, str]
) -> None:
    for device in machine.devices:
        device.utilisation = 0.5
    machine.write()
    does = (
        f"assert backend.xp.get_default_memory_pool().get_limit() == {1000 * MIB}\n"
        "backend.use.peak_b, backend.use.splits = 7, 3\n"
        "import time; time.sleep(1.5)"
    )
    code, said, line = ended(tmp_path, environment, does)
    assert code == 0, said
    assert line["granted_b"] == line["requested_b"] == 1000 * MIB + CONTEXT_B
    assert (line["job"], line["outcome"]) == ("edf/a", "done")
    assert (line["peak_b"], line["splits"], line["utilisation"]) == (7, 3, 0.5)
    assert 0 <= line["idle_fraction"] < 1


def test_a_job_that_waits_too_long_ends_with_its_own_exit_code_and_message(
    tmp_path: Path, machine: FakeMachine, environment: dict[str, str]
) -> None:
    machine.devices = [FakeDevice(uuid(1), total_b=3 * GB)]
    machine.write()
    begun = tmp_path / "begun"
    holder = job(
        tmp_path, environment, f"Path({str(begun)!r}).touch(); import time; time.sleep(90)"
    )
    try:
        end_s = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < end_s, "it did not begin"
            time.sleep(0.05)
        late = {**environment, "TILEWRIGHT_WAIT_LIMIT_S": "0.2"}
        code, said, line = ended(tmp_path, late, name="late")
    finally:
        holder.kill()
        holder.communicate()
    assert code == os.EX_TEMPFAIL
    assert "job edf/late got no device with" in said
    assert (line["job"], line["outcome"], line["uuid"]) == ("edf/late", "not granted", "")


def test_another_try_goes_to_another_device_and_no_job_to_a_quarantined_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    tried = [ended(tmp_path, environment, does) for does in (STICKY, "")]
    assert [(code, line["uuid"]) for code, _, line in tried] == [(1, uuid(1)), (0, uuid(2))]
    note_failure(tmp_path / "leases", uuid(2), "another", "hardware", "it fell off the bus")
    assert ended(tmp_path, environment, name="b")[2]["uuid"] == uuid(1)


def test_a_device_that_computes_wrongly_is_not_used(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    wrong = "import cupy; cupy.roll = lambda array, by: array"
    code, said, line = ended(tmp_path, environment, before=wrong)
    assert (code, line["outcome"]) == (1, "failed")
    assert "fails its first computation: the device computes wrongly" in said
    assert list(quarantined(tmp_path / "leases")) == [line["uuid"]]


@pytest.mark.parametrize(
    "does",
    ["raise ValueError('ECC')", "raise backend.xp.cuda.memory.OutOfMemoryError(3, 2, 1)"],
)
def test_errors_of_the_job_itself_are_not_blamed_on_its_device(
    does: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    code, _, line = ended(tmp_path, environment, does)
    assert (code, line["outcome"]) == (1, "failed")
    assert not (tmp_path / "leases/health.json").exists()


def test_under_slurm_no_folder_is_needed_and_each_node_writes_its_own_evidence(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    granted = {
        "TILEWRIGHT_LEASE_ROOT": str(tmp_path / "missing" / "leases"),
        "TILEWRIGHT_GRANTED": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "5",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    code, said, line = ended(tmp_path, {**environment, **granted})
    assert (code, line["uuid"]) == (0, uuid(2)), said
    assert (tmp_path / f"devices-{socket.gethostname()}.jsonl").exists()


LAZY = """
import sys, time
from pathlib import Path
from tilewright.runtime.gpu import backend_at_first_use
from tilewright.devices.lease import leases
from tilewright.devices.lease_queue import lease_root
def held():
    return len(leases(lease_root()))
with backend_at_first_use("tile_positions/x", "g", 1000) as backend:
    seen = [held(), backend.device, held()]
    array = backend.asarray([1.0, 2.0])
    seen += [held(), float(backend.to_numpy(array).sum())]
    del array
    backend.give_back()
    seen += [held()]
    try:
        backend.asarray([1.0])
    except RuntimeError as error:
        seen += [str(error)]
print(seen)
"""


def test_a_job_reads_before_its_lease_and_writes_after_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    more = {"TILEWRIGHT_DEVICE_LOG": str(tmp_path / "devices.jsonl")}
    said = subprocess.run(
        [sys.executable, "-c", LAZY], env={**os.environ, **environment, **more},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wanted = [0, "gpu", 0, 1, 3.0, 0, "the device was given back before its last use"]
    assert said.stdout == f"{wanted}\n", said.stderr
    (line,) = map(json.loads, (tmp_path / "devices.jsonl").read_text().splitlines())
    assert line["outcome"] == "done"
    assert line["peak_b"] is not None
