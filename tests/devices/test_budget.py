"""The budget, the choice and the queue: properties, and cases worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.devices import budget
from tilewright.devices.budget import PASSES, LeaseClaim, Request
from tilewright.devices.inventory import Device

#: In place of the real one, as all numbers here are small.
RESERVE_B = 1
UUIDS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.fixture(autouse=True, scope="module")
def small_reserve() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "RESERVE_B", RESERVE_B)
        yield


def device(uuid: str = "GPU-a", total_b: int = 25, used_b: int = 0, **more: Any) -> Device:
    return Device(uuid, 0, "fake", total_b, used_b, **more)


def lease(ticket: int, uuid: str, bytes_: int, pid: int = 0, seen_b: int = 0) -> LeaseClaim:
    request = Request(bytes_, f"job {ticket}")
    return LeaseClaim(ticket, pid or ticket, request, UUIDS, 0.0, 0, uuid, bytes_, seen_b)


def waiter(ticket: int, bytes_: int, *, whole: bool = False, **more: Any) -> LeaseClaim:
    request = Request(bytes_, f"job {ticket}", whole)
    return LeaseClaim(ticket, ticket, request, **{"allowed": UUIDS, **more})


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[Device], list[LeaseClaim]]:
    """Draw devices, and leases that fit on them, some of which use what they leased."""
    devices: list[Device] = []
    held: list[LeaseClaim] = []
    for uuid in UUIDS[: draw(st.integers(1, 3))]:
        total, foreign = draw(st.integers(10, 50)), draw(st.integers(0, 8))
        shown, used, leased = [(1, foreign)], foreign, 0
        for _ in range(draw(st.integers(0, 3))):
            bytes_ = draw(st.integers(1, 15))
            if leased + bytes_ + foreign + RESERVE_B > total:
                break
            held.append(lease(len(held) + 10, uuid, bytes_, seen_b=foreign))
            own = draw(st.integers(0, bytes_))
            shown.append((held[-1].pid, own))
            leased, used = leased + bytes_, used + own
        pids = tuple(shown) if draw(st.booleans()) else ()
        divided = draw(st.integers(0, 5)) == 0
        load = draw(st.none() | st.floats(0, 1))
        devices.append(
            device(uuid, total, used, used_by_pid=pids, divided=divided, utilisation=load)
        )
    return devices, held


@given(machines(), st.integers(1, 60), st.booleans())
def test_what_is_chosen_fits_and_what_fits_is_chosen(
    machine: tuple[list[Device], list[LeaseClaim]], bytes_: int, whole: bool
) -> None:
    devices, held = machine
    request = Request(bytes_, "job", whole=whole)
    uuid = budget.choose(budget.leasable(devices, ("GPU-c",)), held, request)
    fits = {
        d.uuid
        for d in devices
        if d.total_b - RESERVE_B - budget.leased_b(d, held) - budget.foreign_b(d, held) >= bytes_
        and not d.divided
        and d.uuid != "GPU-c"
        and not (whole and budget.leased_b(d, held))
    }
    assert (uuid is None) == (not fits)
    if uuid is not None:
        leased = {d.uuid: budget.leased_b(d, held) for d in devices if d.uuid in fits}
        assert leased[uuid] == min(leased.values())


@given(machines(), st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=12))
def test_a_plan_never_overcommits(
    machine: tuple[list[Device], list[LeaseClaim]], asked: list[tuple[int, bool]]
) -> None:
    """Whatever NVML shows: the true foreign use was seen when the leases were granted."""
    devices, held = machine
    waiting = [waiter(100 + k, b, whole=w) for k, (b, w) in enumerate(asked)]
    changed = budget.grants(devices, [*held, *waiting])
    after = held + [claim for claim in changed if claim.uuid]
    for d in devices:
        true_foreign = (
            d.used_by_pid[0][1]
            if d.used_by_pid
            else max([c.foreign_b for c in held if c.uuid == d.uuid], default=d.used_b)
        )
        if any(c.uuid == d.uuid for c in changed):
            assert budget.leased_b(d, after) + true_foreign + RESERVE_B <= d.total_b
            assert not d.divided
        on_it = [c for c in after if c.uuid == d.uuid]
        assert len(on_it) == 1 or not any(c.request.whole for c in on_it)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 24), st.booleans()), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_nobody_starves(asked: list[tuple[int, bool]], random: Random) -> None:
    """Passed often enough, what the first lacks never grows, whatever comes and ends."""
    devices = [device(uuid, total) for uuid, total in zip(UUIDS, (25, 25, 13), strict=True)]
    queue = [waiter(k + 1, b, whole=w) for k, (b, w) in enumerate(asked)]
    claims: dict[int, LeaseClaim] = {}
    first, lacked = 0, 0
    while queue or claims:
        holders = [c for c in claims.values() if c.uuid]
        if queue and (not holders or random.random() < 0.6):
            new = queue.pop(0)
            claims[new.ticket] = new
        else:
            del claims[random.choice(holders).ticket]
        claims |= {c.ticket: c for c in budget.grants(devices, claims.values())}
        held = [c for c in claims.values() if c.uuid]
        waiting = [c for c in claims.values() if not c.uuid]
        assert held or not waiting
        if not waiting:
            first = 0
            continue
        oldest = min(waiting, key=lambda c: c.ticket)
        large = [d for d in devices if d.total_b - RESERVE_B >= oldest.request.bytes_]
        lacks = min(budget.lacking_b(d, held, oldest.request) for d in large)
        if oldest.ticket == first:
            assert lacks <= lacked
        first, lacked = (oldest.ticket, lacks) if oldest.passed >= PASSES else (0, 0)


def test_the_first_is_passed_by_the_bound_only() -> None:
    claims = [lease(1, "GPU-a", 4), waiter(2, 1, whole=True)]
    claims += [waiter(ticket, 1) for ticket in range(3, 30)]
    changed = {c.ticket: c for c in budget.grants([device()], claims)}
    assert changed.pop(2).passed == PASSES
    assert sorted(changed) == list(range(3, 3 + PASSES))


A, B = device("GPU-a"), device("GPU-b")
SMALL = device("GPU-a", 13)
#: 10 of it in foreign use.
BUSY = device(used_b=10, used_by_pid=((999, 10),))
#: Of A, and less of it free than a whole-device request saw.
WHOLE = LeaseClaim(1, 11, Request(4, "large", whole=True), UUIDS, uuid="GPU-a", granted_b=10)


@pytest.mark.parametrize(
    ("devices", "claims", "granted"),
    [
        ([A, B], [lease(1, "GPU-a", 4), lease(2, "GPU-b", 20),
                  waiter(3, 1, whole=True, passed=PASSES), waiter(4, 4), waiter(5, 4)], "4b"),
        ([A, B], [lease(1, "GPU-a", 4), lease(2, "GPU-b", 12),
                  waiter(3, 1, whole=True, passed=PASSES), waiter(4, 4), waiter(5, 4)], "4b 5b"),
        ([SMALL, B], [lease(1, "GPU-b", 24), waiter(2, 20, passed=PASSES), waiter(3, 4)], "3a"),
        ([A, B], [lease(1, "GPU-a", 20), lease(2, "GPU-b", 10),
                  waiter(3, 20, passed=PASSES, allowed=("GPU-a",)), waiter(4, 4)], "4b"),
        ([BUSY], [waiter(1, 16, passed=PASSES), waiter(2, 2)], "2a"),
        ([replace(BUSY, used_by_pid=((11, 10),))], [WHOLE, waiter(2, 2)], ""),
    ],
    ids=[
        "a device is kept for the first and the others go on",
        "one device is kept for the first and no more",
        "a device too small is not kept",
        "a device that the first may not use is not kept for it",
        "nothing is kept where foreign use is in the way: it would not help the first",
        "beside a whole device there is no lease though foreign use ended",
    ],
)  # fmt: skip
def test_who_gets_what(devices: list[Device], claims: list[LeaseClaim], granted: str) -> None:
    changed = [c for c in budget.grants(devices, claims) if c.uuid]
    assert " ".join(f"{c.ticket}{c.uuid[-1]}" for c in changed) == granted


def test_only_grants_on_devices_that_it_could_use_count_against_the_bound() -> None:
    claims = [lease(1, "GPU-a", 12), waiter(2, 4, allowed=("GPU-a",)), waiter(3, 4)]
    (changed,) = budget.grants([SMALL, B], claims)
    assert (changed.ticket, changed.uuid) == (3, "GPU-b")


@pytest.mark.parametrize(
    ("used_b", "shown", "foreign"),
    [
        (10, ((99, 10),), 10),  # the holder has not allocated
        (18, ((99, 10), (7, 8)), 10),
        (21, ((99, 10), (7, 11)), 13),  # the holder uses 3 more than it leased
        (8, ((7, 8),), 0),
        (0, (), 0),
        (6, (), 6),  # less than was seen at the grant: all of it may be foreign
        (12, (), 10),
        (20, (), 12),
    ],
)
def test_foreign_use(used_b: int, shown: tuple[tuple[int, int], ...], foreign: int) -> None:
    held = [lease(1, "GPU-a", 8, pid=7, seen_b=10 if used_b else 0)]
    assert budget.foreign_b(device(used_b=used_b, used_by_pid=shown), held) == foreign


def test_a_lease_fits_to_the_last_byte() -> None:
    held = [lease(1, "GPU-a", 10)]
    assert budget.room_b(device(), held) == 14
    assert [budget.lacking_b(device(), held, Request(b, "job")) for b in (14, 15)] == [0, 1]


@pytest.mark.parametrize(("whole", "granted"), [(True, 25 - 3 - RESERVE_B), (False, 5)])
def test_what_a_grant_takes_and_that_it_remembers_the_foreign_use(
    whole: bool, granted: int
) -> None:
    (claim,) = budget.grants([device(used_b=3)], [waiter(1, 5, whole=whole)])
    assert (claim.granted_b, claim.foreign_b) == (granted, 3)


@pytest.mark.parametrize(
    ("devices", "held", "chosen"),
    [
        ({"GPU-a": 0.9, "GPU-b": 0.1}, [], "GPU-b"),
        # fewest leased bytes go before less utilisation
        ({"GPU-a": 0.1, "GPU-b": 0.9}, [lease(1, "GPU-a", 4), lease(2, "GPU-b", 3)], "GPU-b"),
        # unknown utilisation counts as busy, and the first UUID ends a tie
        ({"GPU-c": 0.9, "GPU-a": None, "GPU-b": 0.9}, [], "GPU-b"),
    ],
)
def test_which_device_is_chosen(
    devices: dict[str, float | None], held: list[LeaseClaim], chosen: str
) -> None:
    every = [device(uuid, utilisation=load) for uuid, load in devices.items()]
    assert budget.choose(every, held, Request(4, "job")) == chosen


def test_hidden_processes_do_not_hide_foreign_use_before_the_holder_allocates() -> None:
    """10 foreign, a lease of 8 that still imports: another 8 would make 26 of 25."""
    held = [lease(1, "GPU-a", 8, seen_b=10)]
    assert budget.choose([device(used_b=10)], held, Request(8, "job")) is None
