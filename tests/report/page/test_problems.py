from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mosaics import write_mosaic
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.figures import CROP_PX
from tilewright.quality.results import QcContext, QcResult, resolve_thresholds
from tilewright.report.page.problems import Pixels, problems

LIMITS = resolve_thresholds({})


def item(metric: str, value: float | None, cycle: int = 1, channel: str = "1") -> QcResult:
    stage = "register" if metric == "poor_blocks" else "stitch"
    return QcContext("a", cycle, stage, LIMITS, channel, f"M{channel}").evaluate(metric, value)


def quality(*items: QcResult, **numbers: Any) -> QcRecord:
    return QcRecord("a", items[0].cycle, items[0].stage, items, numbers, "")


def test_problems_are_grouped_by_reason_and_the_worst_is_first() -> None:
    found = problems(
        [
            quality(
                item("tile_brightness", 4.0),
                item("tile_brightness", 9.0, channel="2"),
                item("focus", None),
            ),
            quality(item("poor_blocks", 0.1, cycle=2), item("poor_blocks", 0.0, cycle=2)),
            quality(item("tile_brightness", 5.0, cycle=2)),
        ],
        Pixels({}, None, [], 1, {1: "1"}),
    )
    assert [(p.reason, p.verdict, len(p.items)) for p in found] == [
        ("uneven_tiles", "fail", 3),
        ("poor_overlap", "warn", 1),
        ("unknown", "warn", 1),
    ]
    assert [i.value for i in found[0].items] == [9.0, 5.0, 4.0]
    assert all(problem.crop is None for problem in found)


@pytest.mark.parametrize("centre", [(150.0, 700.0), (0.0, 0.0), (399.0, 799.0)])
def test_a_crop_shows_the_worst_place_pixel_by_pixel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, centre: tuple[float, float]
) -> None:
    light = np.random.default_rng(0).integers(0, 500, (1, 400, 800)).astype(np.uint16)
    path = write_mosaic(tmp_path / "plane.zarr", light, voxel_um=(1.0, 0.5, 0.5))
    shown: list[Any] = []
    monkeypatch.setattr("tilewright.report.page.problems.embed", shown.append)
    places = [
        {"metric": "tile_brightness", "y_px": y, "x_px": x, "value": value}
        for y, x, value in [(200.0, 300.0, 4.0), (*centre, 9.0)]
    ]
    pixels = Pixels({(1, "2"): path}, None, [], 1, {1: "1"})
    (found,) = problems(
        [quality(item("tile_brightness", 9.0, channel="2"), **{"2": {"places": places}})], pixels
    )
    (crop,) = shown
    top, left = (
        int(np.clip(at - CROP_PX / 2, 0, n - CROP_PX))
        for at, n in zip(centre, (400, 800), strict=True)
    )
    want = light[0, top : top + CROP_PX, left : left + CROP_PX].astype(float)
    assert crop.shape == want.shape
    assert np.corrcoef(crop.ravel(), want.ravel())[0, 1] > 0.98
    assert found.crop is not None
    assert "128 µm wide" in found.crop.caption
