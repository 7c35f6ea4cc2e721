"""What the end of a run says: what failed, where and why, and the command that resumes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.placement.ledger import read_ledger
from tilewright.placement.resources import Plan


def farewell(plan: Plan, argv: Sequence[str], *, failed: bool = False) -> None:
    """Save what was learned and say on standard error how the run ended.

    Parameters
    ----------
    plan : Plan
        Of the run that ends; without a cluster there is nothing to say of a good end.
    argv : sequence of str
        The command that started the run.
    failed : bool
        Whether it ended early: a job failed, or somebody stopped it.
    """
    if plan.gpus is not None:
        plan.durations.save()
    if plan.cluster is None or plan.ledger is None:
        if failed:
            sys.stderr.write(f"what is finished is kept; {_resume(argv)}\n")
        return
    plan.close()
    plan.durations.save()
    events = list(read_ledger(plan.ledger))
    starts = [i for i, event in enumerate(events) if event["event"] == "run"]
    for line in summary_lines(events[starts[-1] :] if starts else [], argv):
        sys.stderr.write(f"{line}\n")


def summary_lines(events: Sequence[Mapping[str, Any]], argv: Sequence[str]) -> list[str]:
    """Return how the jobs of one run ended, from its events (pure).

    Parameters
    ----------
    events : sequence of mapping
        From the run's start on.
    argv : sequence of str
        The command that started it.
    """
    done: dict[str, int] = {}
    failed: dict[str, Mapping[str, Any]] = {}
    moved = 0
    for event in events:
        match event["event"]:
            case "done":
                done[event["pool"]] = done.get(event["pool"], 0) + 1
                failed.pop(event["job"], None)
            case "fail":
                failed[event["job"]] = event
            case "move":
                moved += 1
    if not done and not failed:
        return []
    lines = [
        f"placement: {sum(done.values())} jobs done ("
        + ", ".join(f"{pool} {n}" for pool, n in sorted(done.items()))
        + (f"), {moved} moved" if moved else ")")
    ]
    for name, event in sorted(failed.items()):
        where = event.get("node") or event.get("pool") or "no place"
        job = f", Slurm job {event['slurm_id']}" if "slurm_id" in event else ""
        log = f"; log: {event['log']}" if "log" in event else ""
        lines.append(f"failed: {name} on {where}{job}: {event['cause']}, {event['words']}{log}")
    if failed:
        lines.append(_resume(argv))
    return lines


def _resume(argv: Sequence[str]) -> str:
    return f"resume with: {shlex.join(['snakemake', *argv[1:]])}"
