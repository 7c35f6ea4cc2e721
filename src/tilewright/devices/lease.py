"""Leases of GPU memory that all runs of a user on one machine share.

Whoever enters or leaves the queue or gives a lease back takes the lock of the queue, reads all
claims and writes the grants of :func:`~tilewright.devices.budget.grants`, its own and those of
others, which it wakes by their pipes. A killed process says nothing: the first in the queue tests
the holders' locks every :data:`FIRST_S`, and the others now and then the first one's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import append_json
from tilewright.devices.budget import MIB, RESERVE_B, LeaseClaim, Request, grants, leasable
from tilewright.devices.evidence import Held, variables_set
from tilewright.devices.inventory import Snapshot
from tilewright.devices.lease_queue import LOOK, NOTICE, LeaseQueue, Ticket, lease_root
from tilewright.devices.slurm_grant import granted_lease
from tilewright.errors import LeaseError, LeaseTimeoutError, NoDeviceError

logger = logging.getLogger("tilewright")

#: Seconds between two tests for killed holders: 40 ms in the median, at 0.4 ms of CPU each.
FIRST_S = 0.08
#: Times the number of those who wait: together they test the first ten times a second.
OTHERS_S = 0.1
#: Foreign use ends without a sign: the first asks NVML again after so long.
AGAIN_S = 2.0
#: EX_TEMPFAIL: trying again later may do.
WAIT_EXIT_CODE = 75


@dataclass(frozen=True)
class _Waiter:
    """What a process needs to look at the queue."""

    queue: LeaseQueue
    snapshot: Callable[[], Snapshot]
    quarantined: Callable[[], Collection[str]]
    evidence: Path | None


@contextlib.contextmanager
def lease(
    request: Request,
    *,
    snapshot: Callable[[], Snapshot],
    root: Path | None = None,
    quarantined: Callable[[], Collection[str]] = tuple,
    avoid: Collection[str] = (),
    evidence: Path | None = None,
) -> Iterator[Held]:
    """Hold device memory; read before it, write after it, and start no CUDA before it.

    ``CUDA_VISIBLE_DEVICES`` and CuPy's memory limit are set within. CUDA reads them once, so a
    process takes one lease in its life. It must not fork within: a forked child would keep the
    lease for as long as it lives.

    Parameters
    ----------
    snapshot : callable
        Returns what NVML sees now, cut to what this process may use.
    root : Path, optional
        That of :func:`~tilewright.devices.lease_queue.lease_root`, unless a test names another.
    quarantined : callable
        Returns the UUIDs that must not be used now.
    avoid : collection of str
        UUIDs that this request does not want where there are others.
    evidence : Path, optional
        File to which one JSON line is appended; for a killed process by the next that looks.

    Raises
    ------
    LeaseTimeoutError, NoDeviceError
        The wait limit has passed; no device can ever hold it.
    """
    seen = snapshot()
    with contextlib.ExitStack() as stack:
        held = granted_lease(request, seen)
        if held is None:
            queue = LeaseQueue(root or lease_root())
            waiter = _Waiter(queue, snapshot, quarantined, evidence)
            held = stack.enter_context(_leased(waiter, request, seen, avoid))
        try:
            with variables_set(held.environment()):
                yield held
        except BaseException as error:
            held.reason = held.reason or f"{type(error).__name__}: {error}"
            _note(evidence, held, request, "failed")
            raise
        _note(evidence, held, request, "done")


def leases(root: Path) -> list[LeaseClaim]:
    """Return the claims of living processes, those that hold a device first."""
    if not (root / "holding").is_dir():
        return []
    queue = LeaseQueue(root)
    with queue.locked():
        return sorted(queue.claims(), key=lambda claim: (not claim.uuid, claim.ticket))


@contextlib.contextmanager
def _leased(
    waiter: _Waiter, request: Request, seen: Snapshot, avoid: Collection[str]
) -> Iterator[Held]:
    """Queue, wait, hold, and give back."""
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            bad = waiter.quarantined()
            allowed = _able(request, seen, bad, avoid)
            with waiter.queue.locked():
                ticket = waiter.queue.join(request, allowed, waiter.evidence)
            stack.callback(_give_back, waiter, ticket)
            with waiter.queue.locked():
                _grant(waiter, seen, bad, ticket)
            claim = _wait(waiter, ticket, request, started_s)
        except (LeaseTimeoutError, NoDeviceError) as error:
            none = Held("", 0, time.monotonic() - started_s, seen.driver, reason=str(error))
            _note(waiter.evidence, none, request, "not granted")
            raise
        yield Held(claim.uuid, claim.granted_b, time.monotonic() - started_s, seen.driver)


def _wait(waiter: _Waiter, ticket: Ticket, request: Request, started_s: float) -> LeaseClaim:
    limit_s = request.wait_limit_s
    looked_s = time.monotonic()
    if not waiter.queue.own(waiter.queue.holding, ticket):
        what = f"a GPU with {request.bytes_ // MIB} MiB free"
        logger.info("job %s waits for %s; see tilewright devices", request.job, what)
    while True:
        if claim := waiter.queue.own(waiter.queue.holding, ticket):
            return claim
        now_s = time.monotonic()
        if limit_s is not None and now_s - started_s >= limit_s:
            raise LeaseTimeoutError(
                f"job {request.job} got no device with {request.bytes_} B within {limit_s:g} s; "
                "raise the wait limit, or end other work on the GPUs"
            )
        before, due = waiter.queue.look_due(ticket)
        if due or (not before and now_s - looked_s >= AGAIN_S):
            _look(waiter, ticket, request, spread=True)
            looked_s = time.monotonic()
            continue
        pause_s = OTHERS_S * before or FIRST_S
        if limit_s is not None:
            pause_s = min(pause_s, started_s + limit_s - now_s)
        if LOOK in ticket.sleep(pause_s):
            _look(waiter, ticket, request, spread=False)


def _look(waiter: _Waiter, ticket: Ticket, request: Request, *, spread: bool) -> None:
    """See what became free; ``spread``: let others judge devices that are hidden from here."""
    seen, bad = waiter.snapshot(), waiter.quarantined()
    able = _able(request, seen, bad)
    queue = waiter.queue
    with queue.locked():
        own = queue.own(queue.waiting, ticket)
        if own and not {*own.allowed} & {*able}:
            queue.save(replace(own, allowed=able))  # those it wanted cannot be had any more
        _grant(waiter, seen, bad, ticket, spread=spread)
        if not any((f / ticket.name).exists() for f in (queue.waiting, queue.holding)):
            raise LeaseError(
                f"the claim of job {request.job} in {queue.root} was removed while it waited; "
                "set TILEWRIGHT_LEASE_ROOT to a folder that nobody clears"
            )


def _grant(
    waiter: _Waiter,
    seen: Snapshot,
    bad: Collection[str],
    ticket: Ticket | None,
    *,
    spread: bool = True,
) -> None:
    """Write the grants, and wake those whom they concern."""
    queue = waiter.queue
    claims = queue.claims()
    changed = grants(seen.devices, claims, bad)
    now_s = time.time()
    for claim in changed:
        queue.save(replace(claim, granted_s=now_s) if claim.uuid else claim)
    granted = {claim.ticket for claim in changed if claim.uuid}
    waiting = [c for c in claims if not c.uuid and c.ticket not in granted]
    calls = dict.fromkeys(granted, NOTICE)
    if waiting:
        calls[min(claim.ticket for claim in waiting)] = NOTICE
    if spread:
        known = {device.uuid for device in seen.devices}
        strangers = {c.allowed: c.ticket for c in reversed(waiting) if not known >= {*c.allowed}}
        calls |= dict.fromkeys(strangers.values(), LOOK)
    if ticket is not None:
        calls.pop(ticket.number, None)
    for number, kind in calls.items():
        queue.wake(number, kind)


def _give_back(waiter: _Waiter, ticket: Ticket) -> None:
    """Leave, and hand what became free to those who wait."""
    # NVML may take seconds to start, so it is asked only where somebody waits, outside the lock
    try:
        with waiter.queue.locked():
            waiter.queue.leave(ticket)
            waiting = any(waiter.queue.waiting.iterdir())
        if waiting:
            seen, bad = waiter.snapshot(), waiter.quarantined()
            with waiter.queue.locked():
                _grant(waiter, seen, bad, None)
    except (LeaseError, OSError) as error:
        # the job's work is done, its locks end with its process, and those who wait look again
        logger.warning("what job %s held was not handed on: %s", ticket.name, error)


def _able(
    request: Request, seen: Snapshot, bad: Collection[str], avoid: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the devices that can hold a request, those to avoid only where there is no other.

    Raises
    ------
    NoDeviceError
        There is none, so it would wait for ever.
    """
    devices = leasable(seen.devices, bad)
    if not devices:
        reason = seen.reason or ("all are quarantined" if bad else "none is visible")
        raise NoDeviceError(
            f"job {request.job} has no GPU to use: {reason}; see tilewright devices"
        )
    most_b = max(device.total_b for device in devices) - RESERVE_B
    if request.bytes_ > most_b:
        raise NoDeviceError(
            f"job {request.job} needs {request.bytes_} B, more than the {most_b} B of the largest "
            "GPU; make its tiles smaller or let it use the CPU"
        )
    able = [d.uuid for d in devices if d.total_b - RESERVE_B >= request.bytes_]
    return tuple(uuid for uuid in able if uuid not in avoid) or tuple(able)


def _note(path: Path | None, held: Held, request: Request, outcome: str) -> None:
    if path is not None:
        append_json(path, held.evidence(request, outcome))
