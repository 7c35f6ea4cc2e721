"""Processes that one forks which has imported what they need: a start takes milliseconds."""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
#: A process has one such server, whoever asks for it, so what it imports stands here alone.
FORKED.set_forkserver_preload(
    [
        *("tests.support.runs", "tests.devices.leases.lease_jobs"),
        *("snakemake.cli", "smart_open", "nbformat", "yte", "psutil"),
        *("tilewright.config.checks", "tilewright.runtime.machine", "tilewright.report.verdict"),
        "snakemake_scheduler_plugin_tilewright",
    ]
)
