"""A guarded device refuses what CuPy lacks, or answers otherwise than NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.guard import GuardError, guarded_backend

DEVICE = guarded_backend()


def _index(a: Any, *at: Any) -> None:
    a[at] = 1.0


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (lambda b, a: np.asarray(a), "implicit conversion"),
        (lambda b, a: a + np.ones(4, np.float32), "was handed to a device function"),
        (lambda b, a: b.xp.maximum([1, 2, 3, 4], a), "no lists"),
        (lambda b, a: (a - 1).astype(b.xp.uint16), "another number on a GPU"),
        (lambda b, a: b.asarray([np.inf, 0]).astype(np.int32), "another number on a GPU"),
        (lambda b, a: _index(a, b.asarray([0, 1, 0], np.int64)), "set twice"),
        (lambda b, a: _index(a[:, None], a >= 0, b.asarray([True], bool)), "one mask"),
        (lambda b, a: b.asarray(["a"], None), "no arrays of"),
        (lambda b, a: b.fft.irfft(b.fft.rfft(a) * np.complex64(1j)), "spectrum of a real image"),
        (lambda b, a: a[b.asarray([4], np.int64)], IndexError),  # CuPy takes index 0 for it
        (lambda b, a: b.xp.take(a, b.asarray([4], np.int64)), IndexError),
        (lambda b, a: [0, 1, 2][a.argmin()], TypeError),  # CuPy's arrays have no __index__
        (lambda b, a: f"{a.max():.1f}", TypeError),
        (lambda b, a: b.fft.set_workers(2), AttributeError),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_take_or_answers_otherwise_is_refused(
    asked: Callable[[Any, Any], Any], refused: str | type[Exception]
) -> None:
    said = refused if isinstance(refused, str) else None
    error = GuardError if isinstance(refused, str) else refused
    with pytest.raises(error, match=said):
        asked(DEVICE, DEVICE.asarray(np.arange(4)))


def test_single_elements_are_views() -> None:
    array = DEVICE.asarray(np.arange(6).reshape(2, 3))
    one, sum_ = array[1, 2], array.sum()
    array[1, 2] = 7.0
    assert float(one) == 7.0
    assert float(sum_) == 15.0
