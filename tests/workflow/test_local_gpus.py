"""The workflow on one machine with pretended GPUs: NVML is a fake, NumPy stands in for CuPy."""

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright import read_json_lines
from tests.conftest import STANDIN
from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tests.support.runs import TINY, Run, digests, make_run
from tilewright.devices.device_lease import CONTEXT_B
from tilewright.devices.health import quarantined, record_failure
from tilewright.devices.leases import RESERVE_B, leases

TARGET = "stitching"
MIB = 2**20
#: A job of the workflow: what comes before it, its log, MB that it asks for, and what it does.
JOB = """
import gc, os, sys, time
from pathlib import Path
from tilewright.devices.device_lease import DeviceLease
from tilewright.devices.lease_folder import lease_root
from tilewright.errors import DeviceError
from tilewright.runtime.job import job_context
before, log, mb, does = sys.argv[1:]
exec(before)
with job_context([log], 1, {"gpu": 1, "gpu_mem_mb": int(mb)}) as backend:
    exec(does)
"""
pytestmark = pytest.mark.workflow


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    devices = [FakeDevice(uuid(1), total_b=24 * GB), FakeDevice(uuid(2), total_b=8 * GB)]
    made = FakeMachine(tmp_path / "nvml.json", devices)
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


def test_a_phantom_on_two_gpus_and_cpus_has_the_pixels_of_the_cpu(
    tmp_path: Path, tiny_raw: Path, tiny_run: Run, environment: dict[str, str]
) -> None:
    on_gpus = make_run(tmp_path / "gpus", tiny_raw, **TINY)
    # more than any device has: the work is halved where it does not fit, which it does
    on_gpus.edit(
        resources={"illumination": {"device": "cpu"}, "tile_positions": {"gpu_mem_mb": 90_000}}
    )
    said = on_gpus.snakemake(TARGET, env=environment)
    lines = read_json_lines(on_gpus.results / "placement/devices.jsonl")
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
    lines = read_json_lines(run.results / "placement/devices.jsonl")
    outcomes = Counter((line["uuid"], line["outcome"]) for line in lines)
    assert outcomes[uuid(1), "failed"] >= 1
    assert outcomes[uuid(2), "done"] >= 1
    assert (uuid(1), "done") not in outcomes
    assert "1 GPU can be used, 2 before" in said.stdout + said.stderr
    (found,) = quarantined(tmp_path / "leases").items()
    assert found[0] == uuid(1)
    assert "cudaErrorECCUncorrectable" in found[1].reason


def test_a_demanded_gpu_that_is_not_there_ends_the_run_before_any_work(
    tmp_path: Path, tiny_raw: Path, machine: FakeMachine, environment: dict[str, str]
) -> None:
    machine.devices = []
    machine.write()
    run = make_run(tmp_path / "run", tiny_raw, **TINY)
    run.edit(resources={"stitch": {"device": "gpu"}})
    said = run.snakemake(TARGET, ok=False, env=environment)
    text = said.stdout + said.stderr
    assert "rule stitch requires a GPU, but no usable GPU was found" in text
    assert "NVML lists no GPU" in text
    assert "Traceback" not in text
    assert not run.sample.exists() or not list(run.sample.glob("*/*.zarr"))


def ended(
    folder: Path, environment: dict[str, str], does: str = "", *,
    name: str = "a", before: str = "", mb: int = 1000,
) -> tuple[int, str, dict[str, Any]]:  # fmt: skip
    """Run a job; return its exit code, what it said there and in its log, its evidence."""
    log, evidence = folder / f"logs/edf/{name}.log", str(folder / "devices.jsonl")
    done = subprocess.run(
        [sys.executable, "-c", JOB, before, str(log), str(mb), does],
        env={**os.environ, **environment, "TILEWRIGHT_DEVICE_LOG": evidence},
        capture_output=True,
        text=True,
        check=False,
    )
    (path,) = folder.glob("devices*.jsonl")
    return done.returncode, log.read_text() + done.stderr, read_json_lines(path)[-1]


def test_a_job_is_limited_to_what_its_rule_asks_for_and_says_how_it_went(
    tmp_path: Path, machine: FakeMachine, environment: dict[str, str]
) -> None:
    for device in machine.devices:
        device.utilisation = 0.5
    machine.write()
    does = (
        f"assert backend.xp.get_default_memory_pool().get_limit() == {1000 * MIB}\n"
        "backend.use.peak_b, backend.use.splits = 7, 3\n"
        "(held,) = (found for found in gc.get_objects() if isinstance(found, DeviceLease))\n"
        "while held.utilisation is None: time.sleep(0.05)"
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
    machine.devices = [FakeDevice(uuid(1), total_b=3 * GB, used_b=2 * GB)]  # of somebody else
    machine.write()
    code, said, line = ended(tmp_path, {**environment, "TILEWRIGHT_WAIT_LIMIT_S": "0.2"})
    assert code == os.EX_TEMPFAIL
    assert said.count("job edf/a got no device with") == 2  # in the log, and to who reads along
    assert (line["job"], line["outcome"], line["uuid"]) == ("edf/a", "not granted", "")


def test_another_try_goes_to_another_device_and_no_job_to_a_quarantined_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    sticky = "raise backend.xp.cuda.runtime.CUDARuntimeError('cudaErrorIllegalAddress: broken')"
    tried = [ended(tmp_path, environment, does) for does in (sticky, "")]
    assert [(code, line["uuid"]) for code, _, line in tried] == [(1, uuid(1)), (0, uuid(2))]
    record_failure(tmp_path / "leases", uuid(2), "another", "hardware", "it fell off the bus")
    assert ended(tmp_path, environment, name="b")[2]["uuid"] == uuid(1)


BREAKS = "(lease_root() / 'health.json').write_text('[broken')\n"
ECC = "raise DeviceError('cudaErrorECCUncorrectable')"


@pytest.mark.parametrize(
    ("before", "does", "words", "noted"),
    [
        (
            "import cupy; cupy.roll = lambda array, by: array", "",
            "fails its first computation: the device computes wrongly", True,
        ),
        ("", "raise ValueError('ECC')", "ValueError: ECC\n", False),
        ("", "raise backend.xp.cuda.memory.OutOfMemoryError(3, 2, 1)", "OutOfMemoryError", False),
        ("", BREAKS + ECC, f"the failure of device {uuid(1)} is not recorded", None),
    ],
    ids=["computes wrongly", "error of the job", "out of memory", "cannot be noted"],
)  # fmt: skip
def test_a_job_that_fails_says_why_and_blames_its_device_alone_where_it_is_to_blame(
    tmp_path: Path, environment: dict[str, str],
    before: str, does: str, words: str, noted: bool | None,
) -> None:  # fmt: skip
    code, said, line = ended(tmp_path, environment, does, before=before)
    assert (code, line["outcome"]) == (1, "failed")
    assert words in said
    if noted is None:
        assert said.splitlines()[-1].endswith("DeviceError: cudaErrorECCUncorrectable")
    else:
        assert list(quarantined(tmp_path / "leases")) == [line["uuid"]] * noted
        assert (tmp_path / "leases/health.json").exists() == noted


def test_under_slurm_no_folder_is_needed_and_each_node_writes_its_own_evidence(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    allocation = {
        "TILEWRIGHT_LEASE_ROOT": str(tmp_path / "missing" / "leases"),
        "TILEWRIGHT_ALLOCATED": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "5",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    code, said, line = ended(tmp_path, {**environment, **allocation})
    assert (code, line["uuid"]) == (0, uuid(2)), said
    assert (tmp_path / f"devices-{socket.gethostname()}.jsonl").exists()
