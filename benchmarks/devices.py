"""What a device lease costs, how soon a freed device is taken, and how well devices are filled.

``python -m benchmarks.devices [--waiters 64] [--jobs 20] [--devices 4] [--job-s 3]``. The GPUs are
pretended; processes, locks and Snakemake are real.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from tilewright.devices.budget import Request
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.lease import lease

SPAWN = get_context("spawn")
GIB = 2**30
REPO = Path(__file__).resolve().parent.parent
#: What is granted, and the figures that must hold.
SIZE_B = 20 * GIB
BAR_LEASE_MS, BAR_WAKE_MS, BAR_CPU, BAR_FILL = 5.0, 100.0, 0.02, 1.05


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--job-s", type=float, default=3.0)
    parser.add_argument("--one-job", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_job:
        _one_job(Path(options.one_job), options.devices, options.job_s)
        return
    print(f"{'figure':52}{'median':>9}{'worst':>9}{'bar':>9}")
    _alone()
    for killed in (False, True):
        _queue(options.waiters, killed)
    _fill(options.jobs, options.devices, options.job_s)


def _machine(devices: int) -> Snapshot:
    return Snapshot(tuple(Device(f"GPU-{k}", k, "fake", 24 * GIB, 0) for k in range(devices)))


def _one() -> Snapshot:
    return _machine(1)


def _line(figure: str, median: str, worst: str = "", bar: str = "") -> None:
    print(f"{figure:52}{median:>9}{worst:>9}{bar:>9}", flush=True)


def _alone(times: int = 300) -> None:
    """Lease and give back where nobody waits."""
    with tempfile.TemporaryDirectory() as folder:
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            with lease(Request(SIZE_B, "job"), snapshot=_one, root=Path(folder)):
                pass
            taken.append(1000 * (time.perf_counter() - started))
    _line(
        "lease and release, nobody waits, ms",
        f"{statistics.median(taken):.2f}",
        f"{max(taken):.2f}",
        f"<= {BAR_LEASE_MS:g}",
    )


def _waiter(root: str, log: str, held_s: float) -> None:
    """Wait for the device, note when it came, and hold it for a while."""
    with lease(Request(SIZE_B, "job"), snapshot=_one, root=Path(root)):
        _note(log, "got")
        time.sleep(held_s)
        freed_s = time.monotonic()
    _note(log, "freed", freed_s)


def _note(log: str, what: str, at_s: float | None = None) -> None:
    line = f"{time.monotonic() if at_s is None else at_s} {what} {os.getpid()}\n"
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(stream, line.encode())
    os.close(stream)


def _cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used, waits for locks included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _queue(number: int, killed: bool) -> None:
    """Let processes wait for one device; free it again and again, by release or by SIGKILL."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o700)
        log = f"{folder}/log"
        arguments = (str(root), log, 600.0 if killed else 0.1)
        with lease(Request(SIZE_B, "first"), snapshot=_one, root=root):
            crowd = [SPAWN.Process(target=_waiter, args=arguments) for _ in range(number)]
            for process in crowd:
                process.start()
            while len(list((root / "waiting").iterdir())) < number:
                time.sleep(0.1)
            if not killed:
                _idle([process.pid or 0 for process in crowd])
            freed_s = time.monotonic()
        _note(log, "freed", freed_s)
        if killed:
            _kill_in_turn(log, number)
        for process in crowd:
            process.join()
        events = sorted(line.split() for line in Path(log).read_text().splitlines())
    freed = [float(at_s) for at_s, what, _ in events if what == "freed"]
    got = [float(at_s) for at_s, what, _ in events if what == "got"]
    latencies = [1000 * (b - a) for a, b in zip(freed, got, strict=False)]
    _line(
        f"{'killed' if killed else 'released'} device to one of {number} waiting, ms",
        f"{statistics.median(latencies):.1f}",
        f"{max(latencies):.1f}",
        f"<= {BAR_WAKE_MS:g}",
    )


def _kill_in_turn(log: str, number: int) -> None:
    """Kill each holder some time after it got the device."""
    for turn in range(number):
        while len(got := [x for x in Path(log).read_text().splitlines() if " got " in x]) <= turn:
            time.sleep(0.01)
        # not in step with the waiters' own tests
        time.sleep(0.1 + 0.0137 * (turn % 7))
        freed_s = time.monotonic()
        os.kill(int(got[-1].split()[2]), signal.SIGKILL)
        _note(log, "freed", freed_s)


def _idle(pids: list[int], seconds: float = 20.0) -> None:
    """Measure the CPU of processes that only wait."""
    before = sum(map(_cpu_s, pids))
    time.sleep(seconds)
    share = (sum(map(_cpu_s, pids)) - before) / seconds
    _line(
        f"CPU of {len(pids)} waiting processes, of a core", f"{share:.2%}", "", f"< {BAR_CPU:.0%}"
    )


def _one_job(root: Path, devices: int, seconds: float) -> None:
    """Compute for a while: on a leased device, or on one of a hand-written list."""
    if devices:
        with lease(Request(SIZE_B, "job"), snapshot=lambda: _machine(devices), root=root):
            time.sleep(seconds)
    else:
        time.sleep(seconds)


def _command(root: str, devices: int, seconds: float) -> str:
    program = f"{sys.executable} -m benchmarks.devices"
    return f"{program} --one-job {root} --devices {devices} --job-s {seconds}"


def _fill(jobs: int, devices: int, seconds: float) -> None:
    """Run equal jobs: started all at once, and by Snakemake with leases and with its counter."""
    with tempfile.TemporaryDirectory() as folder:
        command = _command(folder, devices, seconds).split()
        alone = min(_timed([command], REPO) for _ in range(2))
        waves = -(-jobs // devices)
        ideal = waves * alone
        taken = _timed([command] * jobs, REPO)
        what = f"{jobs} jobs of {alone:.2f} s on {devices} devices"
        _line(f"{what}, s", f"{taken:.2f}", "", f"<= {BAR_FILL * ideal:.2f}")
        times = {}
        for name, width in (("counter", devices), ("leases", 2 * devices)):
            use = devices if name == "leases" else 0
            times[name] = _snakemake(
                Path(folder), name, jobs, width, _command(folder, use, seconds)
            )
        _line(
            f"{what}, by Snakemake, s", f"{times['leases']:.2f}", "", f"<= {times['counter']:.2f}"
        )


def _timed(commands: list[list[str]], folder: Path) -> float:
    started = time.monotonic()
    running = [subprocess.Popen(command, cwd=folder) for command in commands]
    if any(process.wait() for process in running):
        raise SystemExit("a job failed")
    return time.monotonic() - started


def _snakemake(folder: Path, name: str, jobs: int, width: int, command: str) -> float:
    """Return the seconds from the first job's start to the last one's end."""
    place = folder / name
    place.mkdir()
    counter = "resources: gpu=1\n    " if name == "counter" else ""
    log = json.dumps(str(place / "times"))
    (place / "Snakefile").write_text(
        f"rule all:\n    input: expand('{{k}}.done', k=range({jobs}))\n"
        f"rule one:\n    output: '{{k}}.done'\n    {counter}shell: "
        f"'date +%s.%N >> {log} && cd {REPO} && {command} && date +%s.%N >> {log} "
        f"&& touch {place}/{{output}}'\n"
    )
    argv = [sys.executable, "-m", "snakemake", "--cores", str(2 * max(width, 1)), "--quiet", "all"]
    limit = ["--resources", f"gpu={width}"] if counter else ["--cores", str(width)]
    subprocess.run([*argv, *limit], cwd=place, check=True)
    times = [float(line) for line in (place / "times").read_text().split()]
    return max(times) - min(times)


if __name__ == "__main__":
    main()
