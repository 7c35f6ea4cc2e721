"""``CUDA_VISIBLE_DEVICES`` as CUDA reads it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_nvml import uuid
from tilewright.devices.inventory import Device, visible


def gpu(index: int, *, divided: bool = False) -> Device:
    return Device(uuid(index + 1), index, "fake", 24, 0, divided=divided)


def instance(number: int, of: Device) -> Device:
    return Device(uuid(number, "MIG"), of.index, "fake", 5, 0, parent=of.uuid)


WHOLE = [gpu(0), gpu(1), gpu(2)]
HALVED = gpu(3, divided=True)
LEFT, RIGHT = instance(1, HALVED), instance(2, HALVED)
MIXED = [*WHOLE, HALVED, LEFT, RIGHT]

ENTRIES = st.one_of(
    st.text(max_size=6),
    st.integers(-2, 5).map(str),
    st.sampled_from([" 1", "00", "1 ", "GPU-", "MIG-", "GPU-0", "MIG-GPU-1/0/0", "٢", "9" * 5000]),
    st.sampled_from(MIXED).flatmap(
        lambda d: st.integers(1, len(d.uuid)).map(lambda end: d.uuid[:end])
    ),
)
TEXTS = st.one_of(st.text(), st.lists(ENTRIES, max_size=5).map(",".join))
MACHINES = st.sampled_from([[], WHOLE, MIXED, [HALVED], MIXED[4:]])


def kept(text: str | None, devices: list[Device] = MIXED) -> list[Device]:
    return list(visible(devices, text)[0])


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("2,1", [2, 1]),
        (" 2 , 0", [2, 0]),
        ("00,01", [0, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("0,x,1", [0]),
        ("0,,1", [0]),
        ("NoDevFiles", []),
        ("0,0", []),
        ("1,2,1", []),
        ("0,GPU-00000001", []),
        ("0,-1,0", [0]),
        (uuid(2), [1]),
        ("GPU-00000003,GPU-00000001", [2, 0]),
        ("0,GPU-,1", [0]),
        ("gpu-00000001", []),
        ("٢", []),
        ("9" * 5000, []),
    ],
)
def test_whole_gpus(text: str, indices: list[int]) -> None:
    assert [device.index for device in kept(text, WHOLE)] == indices


@pytest.mark.parametrize(
    ("text", "devices", "said"),
    [
        ("", WHOLE, "is empty"),
        ("  ", WHOLE, "is empty"),
        ("0,7,1", WHOLE, "'7' names no GPU here"),
        ("GPU-0", WHOLE, "'GPU-0' names more than one GPU"),
        ("1,1", WHOLE, "twice"),
        (f"{LEFT.uuid},{RIGHT.uuid}", MIXED, "one MIG instance"),
        ("3", MIXED, "one MIG instance"),
        ("2,0", WHOLE, "^$"),
        (RIGHT.uuid, MIXED, "^$"),
    ],
)
def test_reasons_name_what_is_wrong(text: str, devices: list[Device], said: str) -> None:
    left, hidden, reason = visible(devices, text)
    assert re.search(said, reason)
    if said == "is empty":
        assert (left, hidden) == ((), tuple(device.uuid for device in devices))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RIGHT.uuid, [HALVED, RIGHT]),
        ("MIG-00000002", [HALVED, RIGHT]),
        (f"{RIGHT.uuid},{LEFT.uuid}", [HALVED, RIGHT]),
        (f"0,{LEFT.uuid}", [HALVED, LEFT]),
        (f"{LEFT.uuid},{LEFT.uuid}", []),
        ("3", [HALVED, LEFT]),
        (HALVED.uuid, [HALVED, LEFT]),
        ("MIG-0", []),
        ("1,MIG-9", [WHOLE[1]]),
    ],
)
def test_a_process_gets_one_instance_and_nothing_else(text: str, expected: list[Device]) -> None:
    assert kept(text) == expected


def test_a_whole_uuid_wins_over_those_that_begin_with_it() -> None:
    """Older drivers name instances by numbers: ``…/1/1`` begins ``…/1/10``."""
    names = [f"MIG-{HALVED.uuid}/1/{number}" for number in (10, 1)]
    parts = [Device(name, 3, "fake", 5, 0, parent=HALVED.uuid) for name in names]
    assert kept(names[1], [HALVED, *parts]) == [HALVED, parts[1]]
    assert kept("3", [LEFT, RIGHT]) == [LEFT]  # a number finds those whose GPU is not listed


@given(MACHINES, TEXTS)
def test_any_text_parts_the_devices(devices: list[Device], text: str) -> None:
    assert visible(devices, None) == (tuple(devices), (), "")
    left, hidden, reason = visible(devices, text)
    assert len(set(left)) == len(left)
    assert {*hidden} == {device.uuid for device in devices} - {device.uuid for device in left}
    assert [*hidden] == [device.uuid for device in devices if device.uuid in hidden]
    instances = [device for device in left if device.parent]
    assert len(instances) <= 1
    if instances:
        assert {device.uuid for device in left} <= {instances[0].uuid, instances[0].parent}
    if devices and not left:
        assert reason


@given(st.permutations(range(3)), st.integers(0, 3))
def test_valid_numbers_are_kept_in_their_order(order: list[int], length: int) -> None:
    named = order[:length]
    assert kept(",".join(map(str, named)), WHOLE) == [WHOLE[index] for index in named]


@given(st.lists(ENTRIES, max_size=3), st.sampled_from(["-1", "7", "x", "GPU-0"]), TEXTS)
def test_nothing_after_an_invalid_entry_counts(before: list[str], invalid: str, after: str) -> None:
    text = ",".join([*before, invalid])
    assert kept(f"{text},{after}") == kept(text)


@given(st.sampled_from(WHOLE), st.data())
def test_a_uuid_may_be_cut_short_where_it_stays_the_only_one(
    device: Device, data: st.DataObject
) -> None:
    prefix = device.uuid[: data.draw(st.integers(len("GPU-"), len(device.uuid)))]
    alike = [other for other in WHOLE if other.uuid.startswith(prefix)]
    assert kept(prefix, WHOLE) == (alike if len(alike) == 1 else [])
