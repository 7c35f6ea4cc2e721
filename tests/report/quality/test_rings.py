"""Dark rings are found wherever in a mosaic the object lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.report.quality.qc_scenes import write_mosaic
from tilewright.io.results.mosaic import open_mosaic
from tilewright.report.quality.rings import judge_rings
from tilewright.report.verdict import Subject, resolve_thresholds


@pytest.mark.parametrize("at", [(100, 100), (5, 100), (206, 100), (100, 208), (207, 207)])
@pytest.mark.parametrize("ringed", [False, True])
def test_a_ring_is_found_at_the_border_too(
    tmp_path: Path, at: tuple[int, int], ringed: bool
) -> None:
    away = np.hypot(*(np.indices((210, 212)) - np.array(at)[:, None, None]))
    rng = np.random.default_rng(0)
    raw = rng.poisson(300 + 20000 * np.exp(-((away / 4) ** 2) / 2)).astype(np.uint16)
    plane = np.where((away > 14) & (away < 20), 0, raw) if ringed else raw
    stack = write_mosaic(tmp_path / "stack.zarr", np.stack([raw, raw]), pedestal_counts=0)
    shown = write_mosaic(tmp_path / "plane.zarr", plane[None], pedestal_counts=0)
    subject = Subject("s", 1, "edf", resolve_thresholds({}), "1", "CD3")
    item, places = judge_rings(subject, open_mosaic(shown), open_mosaic(stack))
    assert item.verdict == ("fail" if ringed else "pass")
    assert [np.hypot(p.y_px - at[0], p.x_px - at[1]) < 5 for p in places] == [True] * ringed
