"""The pretended device refuses what CuPy lacks, and what CuPy answers otherwise than NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import device_calls
from tests.support.device_calls import UnknownCallError
from tests.support.device_differences import GuardError
from tests.support.guard import guarded_backend
from tilewright.kernels.backend import Backend

Asked = Callable[[Any, Any], Any]


@pytest.fixture
def device() -> Backend:
    return guarded_backend()


@pytest.fixture(autouse=True)
def _any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of these tests are no kernel's: they stay out of the table."""
    monkeypatch.setattr(device_calls, "note", lambda *args: None)


def _index(a: Any, *at: Any) -> Any:
    a[at] = 1.0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda b, a: np.asarray(a), "implicit conversion"),
        (lambda b, a: a + np.ones(4, np.float32), "was handed to a device function"),
        (lambda b, a: b.xp.maximum([1, 2, 3, 4], a), "no lists"),
        (lambda b, a: (a - 1).astype(b.xp.uint16), "another number on a GPU"),
        (lambda b, a: b.asarray([np.inf, 0]).astype(np.int32), "another number on a GPU"),
        (lambda b, a: b.asarray(np.array([70000.0]), np.uint16), "another number on a GPU"),
        (lambda b, a: _index(a, b.asarray([0, 1, 0], np.int64)), "set twice"),
        (lambda b, a: _index(a[:, None], a >= 0, b.asarray([True], bool)), "one mask"),
        (lambda b, a: b.xp.bincount(b.asarray([0, 0], np.int64), weights=a[:2] / 3), "any order"),
        (lambda b, a: b.xp.sort(a, kind="heapsort"), "stably"),
        (lambda b, a: b.asarray(["a"], None), "no arrays of"),
        (lambda b, a: b.asarray([1], np.longdouble), "no arrays of"),
        (lambda b, a: b.fft.irfft(b.fft.rfft(a) * np.complex64(1j)), "spectrum of a real image"),
        (lambda b, a: b.fft.irfft(b.fft.rfft(a), n=8), "for an image of"),
    ],
)  # fmt: skip
def test_what_a_gpu_answers_otherwise_is_refused(device: Backend, asked: Asked, said: str) -> None:
    with pytest.raises(GuardError, match=said):
        asked(device, device.asarray(np.arange(4)))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (lambda b, a: a[b.asarray([4], np.int64)], IndexError),  # CuPy takes index 0 for it
        (lambda b, a: b.xp.take(a, b.asarray([4], np.int64)), IndexError),
        (lambda b, a: [0, 1, 2][a.argmin()], TypeError),  # CuPy's arrays have no __index__
        (lambda b, a: range(a.sum()), TypeError),
        (lambda b, a: f"{a.max():.1f}", TypeError),
        (lambda b, a: {a.max()}, TypeError),
        (lambda b, a: b.fft.set_workers(2), AttributeError),
    ],
)
def test_what_a_gpu_does_not_take_fails(
    device: Backend, asked: Asked, error: type[Exception]
) -> None:
    with pytest.raises(error):
        asked(device, device.asarray(np.arange(4)))


def test_single_elements_are_views(device: Backend) -> None:
    array = device.asarray(np.arange(6).reshape(2, 3))
    one, sum_ = array[1, 2], array.sum()
    array[1, 2] = 7.0
    assert float(one) == 7.0
    assert float(sum_) == 15.0


def test_ties_are_sorted_stably(device: Backend) -> None:
    values = np.tile([1.0, 0.0], 500)
    order = device.to_numpy(device.xp.argsort(device.asarray(values)))
    np.testing.assert_array_equal(order, np.argsort(values, kind="stable"))


def test_whole_weights_are_counted(device: Backend) -> None:
    at = device.asarray([0, 2, 2], np.int64)
    counts = device.xp.bincount(at, weights=device.asarray([3.0, 1.0, 1.0]), minlength=4)
    np.testing.assert_array_equal(device.to_numpy(counts), [3, 0, 2, 0])


def test_kinds_outside_the_table_are_refused(
    device: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = device.asarray(np.ones(3))
    monkeypatch.undo()
    monkeypatch.delenv(device_calls.RECORDING, raising=False)
    with pytest.raises(UnknownCallError, match=r"xp.cbrt .*record_calls"):
        device.xp.cbrt(array)
