"""Processes that one forks which has imported what they need: a start takes milliseconds."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
#: A process has one such server, whoever asks for it, so what it imports stands here alone.
_CONTEXT.set_forkserver_preload(
    [
        *("tests.support.runs", "tests.devices.leases.lease_jobs"),
        *("snakemake.cli", "smart_open", "nbformat", "yte", "psutil"),
        *("tilewright.config.checks", "tilewright.runtime.machine", "tilewright.quality.results"),
        "snakemake_scheduler_plugin_tilewright",
    ]
)


def fork(does: Callable[..., None], *args: Any) -> BaseProcess:
    """Start a process as it were a fork of this one; the server has what was when it started."""
    here = dict(os.environ), os.sched_getaffinity(0)
    # a server that starts within a test of made GPUs would have them for all tests that follow
    os.environ.pop("FAKE_NVML_STATE", None)
    forkserver.ensure_running()
    os.environ.update(here[0])
    process = _CONTEXT.Process(target=_do, args=(*here, does, args))
    process.start()
    return process


def _do(
    environment: Mapping[str, str],
    cpus: Iterable[int],
    does: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cpus)
    does(*args)
