"""``CUDA_VISIBLE_DEVICES`` as CUDA reads it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_nvml import uuid
from tilewright.devices.inventory import Device, visible

WHOLE = [Device(uuid(index + 1), index, "fake", 24, 0) for index in range(3)]
#: The GPU of two instances.
HALVED = uuid(4)
LEFT, RIGHT = (Device(uuid(n, "MIG"), 3, "fake", 5, 0, parent=HALVED) for n in (1, 2))
MIXED = [*WHOLE, LEFT, RIGHT]

ENTRIES = st.one_of(
    st.text(max_size=6),
    st.integers(-2, 5).map(str),
    st.sampled_from([" 1", "00", "1 ", "GPU-", "MIG-", "GPU-0", "MIG-GPU-1/0/0", "٢", "9" * 5000]),
    st.sampled_from(MIXED).flatmap(
        lambda d: st.integers(1, len(d.uuid)).map(lambda end: d.uuid[:end])
    ),
)
TEXTS = st.one_of(st.text(), st.lists(ENTRIES, max_size=5).map(",".join))
MACHINES = st.sampled_from([[], WHOLE, MIXED, [LEFT], MIXED[2:]])


def kept(text: str | None, devices: list[Device] = MIXED) -> list[Device]:
    return list(visible(devices, text)[0])


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("0,0", []),
        ("0,GPU-00000001", []),
        (uuid(2), [1]),
        ("GPU-00000003,GPU-00000001", [2, 0]),
        ("0,GPU-,1", [0]),
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
        ("0,7,1", WHOLE, "'7' names no GPU here"),
        ("GPU-0", WHOLE, "'GPU-0' names more than one GPU"),
        ("1,1", WHOLE, "twice"),
        (f"{LEFT.uuid},{RIGHT.uuid}", MIXED, "one MIG instance"),
        ("3", MIXED, "one MIG instance"),
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
        (RIGHT.uuid, [RIGHT]),
        (f"{RIGHT.uuid},{LEFT.uuid}", [RIGHT]),
        (f"{LEFT.uuid},{LEFT.uuid}", []),
        ("3", [LEFT]),
        (HALVED, [LEFT]),
        ("MIG-0", []),
        ("1,MIG-9", [WHOLE[1]]),
    ],
)
def test_a_process_gets_one_instance_and_nothing_else(text: str, expected: list[Device]) -> None:
    assert kept(text) == expected


def test_a_whole_uuid_wins_over_those_that_begin_with_it() -> None:
    """Older drivers name instances by numbers: ``…/1/1`` begins ``…/1/10``."""
    names = [f"MIG-{HALVED}/1/{number}" for number in (10, 1)]
    parts = [Device(name, 3, "fake", 5, 0, parent=HALVED) for name in names]
    assert kept(names[1], parts) == [parts[1]]


@given(MACHINES, TEXTS)
def test_any_text_parts_the_devices(devices: list[Device], text: str) -> None:
    assert visible(devices, None) == (tuple(devices), (), "")
    left, hidden, reason = visible(devices, text)
    assert len(set(left)) == len(left)
    assert {*hidden} == {device.uuid for device in devices} - {device.uuid for device in left}
    assert [*hidden] == [device.uuid for device in devices if device.uuid in hidden]
    instances = [device for device in left if device.parent]
    assert len(instances) <= 1
    assert not instances or [*left] == instances
    if devices and not left:
        assert reason
