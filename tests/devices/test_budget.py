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
from tilewright.devices.budget import (
    PASSES,
    LeaseClaim,
    Request,
    choose,
    foreign_b,
    grants,
    lacking_b,
    leasable,
    leased_b,
    room_b,
)
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


def waiter(ticket: int, bytes_: int, *, whole: bool = False) -> LeaseClaim:
    return LeaseClaim(ticket, ticket, Request(bytes_, f"job {ticket}", whole), UUIDS)


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
    uuid = choose(leasable(devices, ("GPU-c",)), held, request)
    fits = {
        d.uuid
        for d in devices
        if d.total_b - RESERVE_B - leased_b(d, held) - foreign_b(d, held) >= bytes_
        and not d.divided
        and d.uuid != "GPU-c"
        and not (whole and leased_b(d, held))
    }
    assert (uuid is None) == (not fits)
    if uuid is not None:
        assert uuid in fits
        least = min(leased_b(d, held) for d in devices if d.uuid in fits)
        assert leased_b(_by_uuid(devices, uuid), held) == least


def _by_uuid(devices: list[Device], uuid: str) -> Device:
    return next(d for d in devices if d.uuid == uuid)


@given(machines(), st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=12))
def test_a_plan_never_overcommits(
    machine: tuple[list[Device], list[LeaseClaim]], asked: list[tuple[int, bool]]
) -> None:
    """Whatever NVML shows: the true foreign use was seen when the leases were granted."""
    devices, held = machine
    waiting = [waiter(100 + k, b, whole=w) for k, (b, w) in enumerate(asked)]
    changed = grants(devices, [*held, *waiting])
    after = held + [claim for claim in changed if claim.uuid]
    for d in devices:
        true_foreign = (
            d.used_by_pid[0][1]
            if d.used_by_pid
            else max([c.foreign_b for c in held if c.uuid == d.uuid], default=d.used_b)
        )
        if any(c.uuid == d.uuid for c in changed):
            assert leased_b(d, after) + true_foreign + RESERVE_B <= d.total_b
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
        claims |= {c.ticket: c for c in grants(devices, claims.values())}
        held = [c for c in claims.values() if c.uuid]
        waiting = [c for c in claims.values() if not c.uuid]
        assert held or not waiting
        if not waiting:
            first = 0
            continue
        oldest = min(waiting, key=lambda c: c.ticket)
        large = [d for d in devices if d.total_b - RESERVE_B >= oldest.request.bytes_]
        lacks = min(lacking_b(d, held, oldest.request) for d in large)
        if oldest.ticket == first:
            assert lacks <= lacked
        first, lacked = (oldest.ticket, lacks) if oldest.passed >= PASSES else (0, 0)


def test_the_first_is_passed_by_the_bound_only() -> None:
    devices = [device(total_b=25)]
    claims = [lease(1, "GPU-a", 4), waiter(2, 1, whole=True)]
    claims += [waiter(ticket, 1) for ticket in range(3, 30)]
    changed = {c.ticket: c for c in grants(devices, claims)}
    assert changed.pop(2).passed == PASSES
    assert sorted(changed) == list(range(3, 3 + PASSES))


def test_beside_a_whole_device_there_is_no_lease_though_foreign_use_ended() -> None:
    holder = LeaseClaim(1, 11, Request(4, "large", whole=True), ("a",), uuid="a", granted_b=10)
    small = LeaseClaim(2, 12, Request(2, "small"), ("a",))
    assert grants([Device("a", 0, "", 24, 10, None, ((11, 10),))], [holder, small]) == []


def test_nothing_is_kept_where_foreign_use_is_in_the_way() -> None:
    """Keeping younger ones out would not help the older one."""
    busy = Device("a", 0, "", 24, 10, None, ((999, 10),))
    claims = [
        LeaseClaim(1, 11, Request(16, "large"), ("a",), passed=PASSES),
        LeaseClaim(2, 12, Request(2, "small"), ("a",)),
    ]
    assert [c.ticket for c in grants([busy], claims) if c.uuid] == [2]


def test_a_device_is_kept_and_the_others_go_on() -> None:
    devices = [device("GPU-a", 25), device("GPU-b", 25)]
    first = replace(waiter(3, 1, whole=True), passed=PASSES)
    held = [lease(1, "GPU-a", 4), lease(2, "GPU-b", 20)]
    changed = grants(devices, [*held, first, waiter(4, 4), waiter(5, 4)])
    assert [(c.ticket, c.uuid) for c in changed if c.uuid] == [(4, "GPU-b")]


def test_a_device_too_small_is_not_kept() -> None:
    devices = [device("GPU-a", 13), device("GPU-b", 25)]
    first = replace(waiter(2, 20), passed=PASSES)
    held = [lease(1, "GPU-b", 24)]
    changed = grants(devices, [*held, first, waiter(3, 4)])
    assert [(c.ticket, c.uuid) for c in changed if c.uuid] == [(3, "GPU-a")]


@pytest.mark.parametrize(
    ("used_b", "shown", "foreign"),
    [
        (10, ((99, 10),), 10),  # foreign use, the holder has not allocated
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
    assert foreign_b(device(used_b=used_b, used_by_pid=shown), held) == foreign


def test_hidden_processes_do_not_hide_foreign_use_before_the_holder_allocates() -> None:
    """10 foreign, a lease of 8 that still imports: another 8 would make 26 of 25."""
    held = [lease(1, "GPU-a", 8, seen_b=10)]
    assert choose([device(used_b=10)], held, Request(8, "job")) is None


def test_a_lease_fits_to_the_last_byte() -> None:
    held = [lease(1, "GPU-a", 10)]
    assert room_b(device(), held) == 14
    assert lacking_b(device(), held, Request(14, "job")) == 0
    assert lacking_b(device(), held, Request(15, "job")) == 1


def test_less_utilisation_wins_between_equally_leased() -> None:
    devices = [device("GPU-a", utilisation=0.9), device("GPU-b", utilisation=0.1)]
    assert choose(devices, [], Request(4, "job")) == "GPU-b"


def test_a_whole_device_is_all_that_is_free() -> None:
    (granted,) = grants([device(used_b=3)], [waiter(1, 5, whole=True)])
    assert granted.granted_b == 25 - 3 - RESERVE_B


def test_fewest_leased_bytes_go_before_less_utilisation() -> None:
    devices = [device("GPU-a", utilisation=0.1), device("GPU-b", utilisation=0.9)]
    held = [lease(1, "GPU-a", 4), lease(2, "GPU-b", 3)]
    assert choose(devices, held, Request(4, "job")) == "GPU-b"


def test_unknown_utilisation_counts_as_busy_and_the_first_uuid_ends_a_tie() -> None:
    devices = [device("GPU-c", utilisation=0.9), device("GPU-a"), device("GPU-b", utilisation=0.9)]
    assert choose(devices, [], Request(4, "job")) == "GPU-b"


def test_only_grants_on_devices_that_it_could_use_count_against_the_bound() -> None:
    devices = [device("GPU-a", 13), device("GPU-b", 25)]
    first = replace(waiter(2, 4), allowed=("GPU-a",))
    claims = [lease(1, "GPU-a", 12), first, waiter(3, 4)]
    (changed,) = grants(devices, claims)
    assert (changed.ticket, changed.uuid) == (3, "GPU-b")


def test_a_device_that_the_first_may_not_use_is_not_kept_for_it() -> None:
    devices = [device("GPU-a", 25), device("GPU-b", 25)]
    first = replace(waiter(3, 20), allowed=("GPU-a",), passed=PASSES)
    held = [lease(1, "GPU-a", 20), lease(2, "GPU-b", 10)]
    changed = grants(devices, [*held, first, waiter(4, 4)])
    assert [(c.ticket, c.uuid) for c in changed if c.uuid] == [(4, "GPU-b")]


def test_a_grant_remembers_the_foreign_use_that_it_saw() -> None:
    (granted,) = grants([device(used_b=3)], [waiter(1, 5)])
    assert granted.foreign_b == 3


def test_one_device_is_kept_for_the_first_and_no_more() -> None:
    devices = [device("GPU-a", 25), device("GPU-b", 25)]
    first = replace(waiter(3, 1, whole=True), passed=PASSES)
    held = [lease(1, "GPU-a", 4), lease(2, "GPU-b", 12)]
    changed = grants(devices, [*held, first, waiter(4, 4), waiter(5, 4)])
    assert [(c.ticket, c.uuid) for c in changed if c.uuid] == [(4, "GPU-b"), (5, "GPU-b")]
