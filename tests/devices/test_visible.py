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


@pytest.mark.parametrize(
    ("devices", "text", "shown", "said"),
    [
        (WHOLE, "2,1", [2, 1], "^$"),
        (WHOLE, "0,2,-1,1", [0, 2], "'-1' names no GPU here"),
        (WHOLE, "0,7,1", [0], "'7' names no GPU here"),
        (WHOLE, "0,0", [], "twice"),
        (WHOLE, "0,GPU-00000001", [], "twice"),
        (WHOLE, uuid(2), [1], "^$"),
        (WHOLE, "GPU-00000003,GPU-00000001", [2, 0], "^$"),
        (WHOLE, "0,GPU-,1", [0], "'GPU-' names more than one GPU"),
        (WHOLE, "٢", [], "names no GPU here"),
        (WHOLE, "9" * 5000, [], "names no GPU here"),
        (WHOLE, "", [], "'' names no GPU here"),
        # a process gets one instance and nothing else
        (MIXED, RIGHT.uuid, [4], "^$"),
        (MIXED, f"{RIGHT.uuid},{LEFT.uuid}", [4], "one MIG instance"),
        (MIXED, f"{LEFT.uuid},{LEFT.uuid}", [], "twice"),
        (MIXED, "3", [3], "one MIG instance"),
        (MIXED, HALVED, [3], "one MIG instance"),
        (MIXED, "MIG-0", [], "more than one GPU"),
        (MIXED, "1,MIG-9", [1], "'MIG-9' names no GPU here"),
    ],
)
def test_what_a_process_sees(devices: list[Device], text: str, shown: list[int], said: str) -> None:
    found, reason = visible(devices, text)
    assert list(found) == [devices[place] for place in shown]
    assert re.search(said, reason)


def test_a_whole_uuid_wins_over_those_that_begin_with_it() -> None:
    """Older drivers name instances by numbers: ``…/1/1`` begins ``…/1/10``."""
    names = [f"MIG-{HALVED}/1/{number}" for number in (10, 1)]
    parts = [Device(name, 3, "fake", 5, 0, parent=HALVED) for name in names]
    assert visible(parts, names[1])[0] == (parts[1],)


@given(MACHINES, TEXTS)
def test_any_text_parts_the_devices(devices: list[Device], text: str) -> None:
    assert visible(devices, None) == (tuple(devices), "")
    left, reason = visible(devices, text)
    assert len(set(left)) == len(left)
    assert {*left} <= {*devices}
    instances = [device for device in left if device.parent]
    assert len(instances) <= 1
    assert not instances or [*left] == instances
    if devices and not left:
        assert reason
