"""What a failed job gets next, by the cause of its failure (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.placement.jobs import Past, Shape
from tilewright.slurm.jobs import Cause

#: What the log of a job ends with where CUDA does not initialise.
DEVICE_ERROR = "DeviceError"


@dataclass(frozen=True)
class Verdict:
    """What comes of a failure.

    Attributes
    ----------
    past : Past
    next : str
        What is done about it, in words.
    give_up : bool
        The job is not tried again.
    free : bool
        The failure does not count as one of the job's tries.
    """

    past: Past
    next: str
    give_up: bool = False
    free: bool = False


def judge(past: Past, cause: Cause, words: str, node: str, *, moved: bool = False) -> Verdict:
    """Return what a job gets after a failure.

    Parameters
    ----------
    past : Past
        Its failures before.
    cause : str
        As :func:`~tilewright.slurm.jobs.cause_of` says, ``device`` where CUDA failed.
    words : str
        What Slurm and the job's log said; two equal ones are the same failure.
    node : str
        Where it ran.
    moved : bool
        The workflow cancelled it itself, to place it elsewhere.
    """
    if moved and cause in ("cancelled", "unknown"):
        return Verdict(past, "is placed anew", free=True)
    said = f"{cause}: {words}"
    now = replace(past, causes=(*past.causes, said))
    match cause:
        case "memory":
            return Verdict(replace(now, memory=past.memory + 1), "gets twice the memory")
        case "time":
            return Verdict(replace(now, time=past.time + 1), "gets twice the time")
        case "node" | "device":
            avoided = past.nodes | ({node} if node else set())
            return Verdict(replace(now, nodes=avoided), f"goes elsewhere than {node or 'there'}")
        case "error" if said in past.causes:
            return Verdict(now, "failed twice in the same way and is not tried again", True)
        case _:
            return Verdict(now, "is tried again")


def within(shape: Shape, before: Shape, most_mb: int | None) -> Shape | None:
    """Return a grown shape, at most what there is; None where it has grown all it can.

    Parameters
    ----------
    shape, before : Shape
        What is wanted now, and what the job last had.
    most_mb : int or None
        Most memory that one job may have; None is no limit.
    """
    mem_mb = shape.mem_mb if most_mb is None else min(shape.mem_mb, most_mb)
    if mem_mb <= before.mem_mb < shape.mem_mb:
        return None
    return replace(shape, mem_mb=mem_mb)
