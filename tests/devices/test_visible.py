"""``CUDA_VISIBLE_DEVICES``: which devices it leaves, for any text."""

import re

import pytest

from tests.support.fake_nvml import uuid
from tilewright.devices.inventory import Device, visible

WHOLE = [Device(uuid(index + 1), index, "fake", 24, 0) for index in range(3)]
#: The GPU of two instances.
HALVED = uuid(4)
LEFT, RIGHT = (Device(uuid(n, "MIG"), 3, "fake", 5, 0, parent=HALVED) for n in (1, 2))
MIXED = [*WHOLE, LEFT, RIGHT]


@pytest.mark.parametrize(
    ("devices", "text", "shown", "said"),
    [
        (WHOLE, "2,1", [1, 2], "^$"),
        (WHOLE, "0,7,1", [0, 1], "'7' names no GPU here"),
        (WHOLE, uuid(2), [1], "^$"),
        (WHOLE, "GPU-00000003, 0", [0, 2], "^$"),
        (WHOLE, "", [], "'' names no GPU here"),
        (MIXED, RIGHT.uuid, [4], "^$"),
        (MIXED, "3", [3, 4], "^$"),
        (MIXED, HALVED, [3, 4], "^$"),
        (MIXED, "1,MIG-9", [1], "'MIG-9' names no GPU here"),
    ],
)
def test_what_a_process_sees(devices: list[Device], text: str, shown: list[int], said: str) -> None:
    found, reason = visible(devices, text)
    assert list(found) == [devices[place] for place in shown]
    assert re.search(said, reason)
