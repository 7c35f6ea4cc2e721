"""What one job of a rule needs."""

from __future__ import annotations

import pytest

from tilewright.config.rules import DataSize
from tilewright.config.sizing import DataSizes

SIZE = DataSize(63, 20, 1440, 1920, 0.1, 9, 36)


@pytest.mark.parametrize("gpu", [False, True])
def test_what_the_user_sets_holds_on_both_devices(gpu: bool) -> None:
    own = {"cpus": 3, "mem_mb": 7000, "runtime_min": 60, "gpu_mem_mb": 9000}
    sizes = DataSizes(lambda _: SIZE, {}, overrides={"deconvolve": own})
    shape = sizes.shape("deconvolve", {}, gpu=gpu)
    assert (shape.cpus, shape.mem_mb, shape.runtime_min) == (3, 7000, 60)
    assert shape.gpu_mem_mb == 9000 * gpu


def test_a_gpu_gets_less_time_and_fewer_cpus_than_cpus_do() -> None:
    sizes = DataSizes(lambda _: SIZE, {})
    on_cpus, on_gpu = (sizes.shape("deconvolve", {}, gpu=gpu) for gpu in (False, True))
    assert (on_cpus.gpus, on_gpu.gpus) == (0, 1)
    assert on_gpu.runtime_min < on_cpus.runtime_min
    assert on_gpu.cpus <= 2 < on_cpus.cpus
