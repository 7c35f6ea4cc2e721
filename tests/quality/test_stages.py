"""Numbers of quality in single images are exact, and what cannot be told is unknown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tests.quality.qc_scenes import (
    PEDESTAL,
    details,
    expose,
    judged,
    section,
    values,
)
from tests.support.mosaics import write_mosaic
from tilewright.io.results.mosaic import open_mosaic
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.sampling import evaluate_focus, scan_focus


def projected(
    folder: Path, plane: NDArray[Any], stack: NDArray[np.uint16], **attributes: Any
) -> QcRecord:
    height = folder / "height.tif"
    tifffile.imwrite(height, np.linspace(0, 6, 40 * 40, dtype=np.float32).reshape(40, 40))
    path = write_mosaic(folder / "edf.zarr", plane[None].astype(np.uint16), **attributes)
    raw = write_mosaic(folder / "a.zarr", stack, pedestal_counts=PEDESTAL)
    return judged("edf", folder, plane=[path], height=[height], mosaic=[raw])


def test_numbers_of_a_projection_are_exact(tmp_path: Path) -> None:
    light = np.random.default_rng(0).poisson(4000, (5, 160, 160))
    plane = light[[0, 1, 2, 4]].sum(axis=0)
    told: dict[str, Any] = {
        "plane_usage": [0.8, 0.1, 0.05, 0.0, 0.05],
        "excluded_planes": [{"z": 3, "reason": "blank"}],
        "focus_ends": [0.2, 0.0],
        "below_noise": 0.1 * plane.size,
    }
    quality = projected(tmp_path, plane, (light + 100).astype(np.uint16), **told)
    exact = {"damaged_planes": 1 / 5, "focus_edge": 0.2, "undershoot": 0.1}
    unknown = {"focus": None, "image_detail": None}
    assert values(quality) == pytest.approx({**exact, **unknown})
    said = details(quality)
    assert (said["damaged_planes"], said["focus_edge"]) == ("plane 4: blank", "plane 1: 20%")
    assert said["focus"] == "no signal to focus on"
    (tmp_path / "few").mkdir()
    few = projected(tmp_path / "few", plane, light.astype(np.uint16), plane_usage=[0.0] * 5)
    assert values(few).keys() == values(quality).keys() - {"focus_edge", "undershoot"}


def in_focus(light: NDArray[np.float64], seed: int = 0) -> NDArray[np.uint16]:
    return expose(light + 5, seed, pedestal=0)


@pytest.mark.parametrize(("sigma_px", "light"), [(0, 1.0), (0, 0.1), (3, 0.5), (4, 0.3), (6, 0.6)])
def test_a_bubble_is_out_of_focus_and_named(tmp_path: Path, sigma_px: float, light: float) -> None:
    """The median of blocks does not see a fifth of the section that is blurred and dimmer."""
    truth = section().truth
    y, x = np.indices(truth.shape)
    bubble = ndimage.gaussian_filter((np.hypot(y - 330, x - 250) < 160).astype(float), 4)
    if sigma_px:
        below = ndimage.gaussian_filter(truth, sigma_px)
        plane = in_focus(truth * (1 - bubble) + light * below * bubble)
    else:
        plane = in_focus(light * truth)
    mosaic = open_mosaic(write_mosaic(tmp_path / "plane.zarr", plane[None], pedestal_counts=0))
    context = QcContext("s", 1, "edf", resolve_thresholds({}), "1", "DAPI")
    item, places = evaluate_focus(context, mosaic, scan_focus(mosaic))
    assert (item.verdict == "pass") == (sigma_px == 0)
    assert [np.hypot(p.y_px - 330, p.x_px - 250) < 80 for p in places] == [True] * bool(sigma_px)
    assert not places or item.detail == (
        f"blurred around y {places[0].y_px:.0f} px, x {places[0].x_px:.0f} px"
    )
