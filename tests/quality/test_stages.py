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
    verdicts,
)
from tests.support.mosaics import write_mosaic
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.transform import write_transform
from tilewright.kernels.register.warp import Transform
from tilewright.quality.dark_rings import evaluate_rings
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.sampling import evaluate_focus, scan_focus


@pytest.mark.parametrize(
    ("light", "which"), [([5, 1, 1, 1, 2], "more"), ([0.1, 0.2, 0.1, 0.1, 0.4], "less")]
)
def test_light_after_deconvolution_is_compared_plane_by_plane(
    tmp_path: Path, light: list[float], which: str
) -> None:
    raw = np.random.default_rng(0).poisson(4000, (5, 160, 160))
    after = raw * np.array(light)[:, None, None]
    before = write_mosaic(tmp_path / "a.zarr", (raw + 100).astype(np.uint16), pedestal_counts=100)
    done = write_mosaic(tmp_path / "b.zarr", after.astype(np.float32), pedestal_counts=0)
    quality = judged("deconvolve", tmp_path, mosaic=[before], deconvolved=[done])
    factor = after.sum() / raw.sum()
    excess = max(after[0].sum(), after[-1].sum()) / (after.sum() / 5) - 1
    assert values(quality) == {
        "ringing": None,
        "flux_factor": pytest.approx(max(factor, 1 / factor), rel=1e-5),
        "end_plane_excess": pytest.approx(excess, rel=1e-5),
    }
    assert details(quality)["flux_factor"] == which


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
    plane = light[[0, 1, 2, 4]].sum(axis=0) - 30  # four times the mean of the planes kept
    told: dict[str, Any] = {
        "plane_usage": [0.8, 0.1, 0.05, 0.0, 0.05],
        "excluded_planes": [{"z": 3, "reason": "blank"}],
        "focus_ends": [0.2, 0.0],
        "haze_counts": 30.0,
        "below_noise": 0.1 * plane.size,
        "clipped_high": 0.02 * plane.size,
    }
    quality = projected(tmp_path, plane, (light + 100).astype(np.uint16), **told)
    exact = {
        "damaged_planes": 1 / 5, "clipped": 0.02, "focus_edge": 0.85, "tissue_beyond": 0.2,
        "flux_factor": 4.0, "undershoot": 0.1, "dark_rings": 0.0,
    }  # fmt: skip
    unknown = {"focus", "ringing", "image_detail"}
    found = values(quality)
    assert {metric for metric, value in found.items() if value is None} == unknown
    assert {metric: found[metric] for metric in found.keys() - unknown} == pytest.approx(exact)
    said = details(quality)
    assert (said["damaged_planes"], said["tissue_beyond"]) == ("plane 4: blank", "plane 1: 20%")
    assert said["flux_factor"] == "more"
    assert said["focus"] == "no signal to focus on"
    (tmp_path / "few").mkdir()
    few = projected(tmp_path / "few", plane, light.astype(np.uint16), plane_usage=[0.0] * 5)
    lacking = {"tissue_beyond", "undershoot"}
    assert values(few).keys() == found.keys() - lacking
    assert details(few)["focus_edge"] == "no plane stands out anywhere"


def in_focus(light: NDArray[np.float64], seed: int = 0) -> NDArray[np.uint16]:
    return expose(light + 5, seed, pedestal=0)


def registered(
    folder: Path, moving: NDArray[Any], transform: Transform, reference: NDArray[Any] | None = None
) -> QcRecord:
    """Judge a transform of the section, which ``moving`` shows, or ``reference`` instead."""
    first = in_focus(section().truth) if reference is None else reference
    npz = folder / "cycle1.npz"
    write_transform(transform, npz, folder / "cycle1.json")
    planes = [("reference", first), ("moving", moving)]
    files = {name: write_mosaic(folder / f"{name}.zarr", plane[None]) for name, plane in planes}
    return judged("register", folder, **files, transform=npz)


def shifted(y: float, x: float) -> Transform:
    affine = np.array([[1.0, 0, y], [0, 1, x]])
    field = np.zeros((2, 4, 4), np.float32)
    return Transform(affine, field, np.zeros(2), 128.0, np.ones((4, 4), np.float32))


def moved(y: float, x: float) -> NDArray[np.uint16]:
    return in_focus(0.8 * ndimage.shift(section().truth, (y, x), order=3), 1)


@pytest.mark.parametrize(("off_px", "verdict"), [(0, "pass"), (1, "warn")])
def test_what_a_transform_is_off_is_measured(tmp_path: Path, off_px: float, verdict: str) -> None:
    quality = registered(tmp_path, moved(6.3, -4.6), shifted(6.3 + off_px, -4.6))
    found = values(quality)
    assert found["residual_px"] == pytest.approx(off_px, abs=0.1 if off_px else 0.05)
    assert verdicts(quality)["residual_px"] == verdict
    assert quality.numbers["shift_px"] == pytest.approx([6.3 + off_px, -4.6])
    if not off_px:
        assert set(verdicts(quality).values()) == {"pass"}
        assert found["ncc"] is not None
        assert found["ncc"] > 0.9 > 0.5 > quality.numbers["ncc_before"]


@pytest.mark.parametrize(("by_px", "verdict"), [(0, "pass"), (8, "pass"), (40, "warn")])
def test_cells_that_a_cycle_did_not_image_are_named(
    tmp_path: Path, by_px: int, verdict: str
) -> None:
    """A rim in which the image's border cuts all cells is told, and no fault."""
    section = moved(0, 0)
    height = len(section)
    quality = registered(tmp_path, section[: height - by_px], Transform.identity())
    assert verdicts(quality)["not_imaged"] == verdict
    named = [p for p in quality.numbers["places"] if p["metric"] == "not_imaged"]
    assert all(height - by_px - 30 < place["y_px"] < height for place in named)
    assert bool(named) == bool(by_px)
    assert details(quality)["not_imaged"].startswith(
        f"bottom border, {by_px} px wide; most near y " if by_px else ""
    )


def test_a_cycle_without_tissue_is_unknown_and_one_not_registered_fails(tmp_path: Path) -> None:
    left = Transform.identity({"registered": False})
    assert verdicts(registered(tmp_path, moved(0, 0), left))["unregistered"] == "fail"
    nothing = np.zeros((400, 400), np.uint16)
    quality = registered(tmp_path, nothing, left, nothing)
    found = verdicts(quality)
    assert found["ncc"] == found["residual_px"] == found["poor_blocks"] == "warn"
    assert found["unregistered"] == "fail"
    assert "NOT registered" in quality.items[0].sentence


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        registered(tmp_path / name, moved(2, 1), shifted(2, 1))
        made.append([(tmp_path / name / f"qc.{kind}").read_bytes() for kind in ("json", "png")])
    assert made[0] == made[1]


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
    context = QcContext("s", 1, "edf", resolve_thresholds({}), "1", "CD3")
    item, places = evaluate_rings(context, open_mosaic(shown), open_mosaic(stack))
    assert item.verdict == ("fail" if ringed else "pass")
    assert [np.hypot(p.y_px - at[0], p.x_px - at[1]) < 5 for p in places] == [True] * ringed
