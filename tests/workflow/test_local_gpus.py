"""The workflow on one machine with pretended GPUs: NVML is a fake, NumPy stands in for CuPy."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import STANDIN
from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tests.support.runs import TINY, Run, digests, make_run
from tilewright.devices.lease_folder import failures, lock, record_failure
from tilewright.devices.leases import CONTEXT_B, RESERVE_B, holders

TARGET = "stitching"
MIB = 2**20
#: A job of the workflow: its log, and what it does.
JOB = """
import os, sys
from pathlib import Path
from tilewright.devices.lease_folder import lease_root
from tilewright.errors import DeviceError
from tilewright.runtime.job import job_context
log, does = sys.argv[1:]
with job_context([log], 1, {"gpu": 1, "gpu_mem_mb": 1000}) as backend:
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
    }
    assert not (tmp_path / "leases").is_dir() or holders(tmp_path / "leases") == []


def gpus_used(run: Run) -> dict[Path, tuple[str, int]]:
    """Return the GPU of each job by its log, and the MiB that its arrays could have."""
    found = {}
    for log in (run.results / "logs").rglob("*.log"):
        if match := re.search(r"GPU (GPU-\S+), arrays of (\d+) MiB", log.read_text()):
            found[log] = match[1], int(match[2])
    return found


def test_a_phantom_on_two_gpus_and_cpus_has_the_pixels_of_the_cpu(
    tmp_path: Path, tiny_raw: Path, tiny_run: Run, environment: dict[str, str]
) -> None:
    on_gpus = make_run(tmp_path / "gpus", tiny_raw, **TINY)
    # more than any device has: the work is halved where it does not fit, which it does
    on_gpus.edit(resources={"register": {"device": "cpu"}, "stitch": {"gpu_mem_mb": 90_000}})
    said = on_gpus.snakemake(TARGET, env=environment)
    used = gpus_used(on_gpus)
    assert len(used) == (said.stdout + said.stderr).count(" goes to a GPU") > 0
    assert not {"calibrate", "register"} & {log.parent.name for log in used}
    arrays = {uuid(k): (n * GB - RESERVE_B - CONTEXT_B) // MIB for k, n in ((1, 24), (2, 8))}
    assert {mib == arrays[gpu] for gpu, mib in used.values()} == {True}
    assert gpus_used(tiny_run) == {}
    assert digests(on_gpus.sample / "stitch") == digests(tiny_run.sample / "stitch")


def ended(folder: Path, environment: dict[str, str], does: str = "") -> tuple[int, str]:
    """Run a job; return its exit code, what it said there and in its log."""
    log = folder / "logs/edf/a.log"
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(log), does],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, log.read_text() + done.stderr


def test_a_job_is_limited_to_its_share_of_a_gpu_and_says_how_it_went(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    share_b = (24 * GB - RESERVE_B) // 4 - CONTEXT_B
    does = (
        f"assert backend.xp.get_default_memory_pool().get_limit() == {share_b}\n"
        f"assert os.environ['CUDA_VISIBLE_DEVICES'] == {uuid(1)!r}\n"
        "backend.use.peak_b, backend.use.splits = 7 << 20, 3"
    )
    code, said = ended(tmp_path, {**environment, "TILEWRIGHT_JOBS_PER_GPU": "4"}, does)
    assert code == 0, said
    assert f"GPU {uuid(1)}, arrays of {share_b // MIB} MiB\n" in said
    assert "GPU memory: at most 7 MiB; work halved 3 times\n" in said


def test_a_job_that_waits_too_long_ends_with_its_own_exit_code_and_message(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "leases").mkdir(mode=0o700)
    with contextlib.ExitStack() as locks:
        for number in (1, 2):
            assert lock(tmp_path / f"leases/{uuid(number)}.0", locks)
        code, said = ended(tmp_path, {**environment, "TILEWRIGHT_WAIT_LIMIT_S": "0.2"})
    assert code == os.EX_TEMPFAIL
    words = "job edf/a got no GPU within 0.2 s; raise TILEWRIGHT_WAIT_LIMIT_S"
    assert said.count(words) == 2  # in the log, and to who reads along


def test_after_a_failure_of_cuda_no_job_goes_to_that_device(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    broken = "raise backend.xp.cuda.runtime.CUDARuntimeError('cudaErrorIllegalAddress: broken')"
    tried = [ended(tmp_path, environment, does) for does in (broken, "")]
    assert [code for code, _ in tried] == [1, 0]
    assert [f"GPU {uuid(k)}, " in said for k, (_, said) in enumerate(tried, 1)] == [True, True]
    record_failure(tmp_path / "leases", uuid(2), "another", "it fell off the bus")
    code, said = ended(tmp_path, environment)
    assert code == 1
    assert "job edf/a has no GPU to use: CUDA failed on each; see tilewright devices" in said


BREAKS = f"(lease_root() / '{uuid(1)}.failed').mkdir()\n"
ECC = "raise DeviceError('cudaErrorECCUncorrectable')"


@pytest.mark.parametrize(
    ("does", "words", "noted"),
    [
        (ECC, "DeviceError: cudaErrorECCUncorrectable", True),
        ("raise ValueError('illegal address')", "ValueError: illegal address\n", False),
        ("raise backend.xp.cuda.memory.OutOfMemoryError(3, 2, 1)", "OutOfMemoryError", False),
        (BREAKS + ECC, f"the failure of device {uuid(1)} is not recorded", None),
    ],
    ids=["defective", "error of the job", "out of memory", "cannot be noted"],
)
def test_a_job_that_fails_says_why_and_blames_its_device_alone_where_it_is_to_blame(
    tmp_path: Path, environment: dict[str, str], does: str, words: str, noted: bool | None
) -> None:
    code, said = ended(tmp_path, environment, does)
    assert code == 1
    assert words in said
    if noted is None:
        assert said.splitlines()[-1].endswith("DeviceError: cudaErrorECCUncorrectable")
    else:
        assert list(failures(tmp_path / "leases")) == [uuid(1)] * noted
