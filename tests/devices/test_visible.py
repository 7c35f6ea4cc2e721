"""``CUDA_VISIBLE_DEVICES`` as CUDA reads it."""

from __future__ import annotations

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


@given(MACHINES)
def test_unset_keeps_all(devices: list[Device]) -> None:
    assert visible(devices, None) == (tuple(devices), (), "")


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("2,1", [2, 1]),
        (" 2 , 0", [2, 0]),
        ("00,01", [0, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("0,x,1", [0]),
        ("0,,1", [0]),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,0", []),
        ("1,2,1", []),
        ("0,GPU-00000001", []),
        ("0,-1,0", [0]),
        (uuid(2), [1]),
        ("GPU-00000003,GPU-00000001", [2, 0]),
        ("GPU-0000000", []),
        ("0,GPU-,1", [0]),
        ("gpu-00000001", []),
        ("٢", []),
        ("9" * 5000, []),
    ],
)
def test_whole_gpus(text: str, indices: list[int]) -> None:
    assert [device.index for device in kept(text, WHOLE)] == indices


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text_hides_all_and_says_so(text: str) -> None:
    assert visible(WHOLE, text)[:2] == ((), tuple(device.uuid for device in WHOLE))
    assert "is empty" in visible(WHOLE, text)[2]


def test_reasons_name_what_is_wrong() -> None:
    assert "'7' names no GPU here" in visible(WHOLE, "0,7,1")[2]
    assert "'GPU-0' names more than one GPU" in visible(WHOLE, "GPU-0")[2]
    assert "twice" in visible(WHOLE, "1,1")[2]
    assert "one MIG instance" in visible(MIXED, f"{LEFT.uuid},{RIGHT.uuid}")[2]
    assert "one MIG instance" in visible(MIXED, "3")[2]
    assert visible(WHOLE, "2,0")[2] == ""
    assert visible(MIXED, RIGHT.uuid)[2] == ""


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


def test_a_number_finds_instances_whose_gpu_is_not_listed() -> None:
    assert kept("3", [LEFT, RIGHT]) == [LEFT]


@given(MACHINES, TEXTS)
def test_any_text_parts_the_devices(devices: list[Device], text: str) -> None:
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
