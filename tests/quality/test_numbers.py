"""Numbers and places that quality tells of one stage, exact; verdicts: test_damages.py."""

from collections.abc import Mapping, Sequence
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
from tilewright.io.inputs.plane_table import Manifest
from tilewright.io.results.illumination import Illumination, write_illumination
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.positions import Edges, Positions, write_table
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.figures import overlay, thumbnail
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.sampling import contrast_to_noise, evaluate_focus, scan_focus

TILE = 340
STEP = 296  # 2 × 2 tiles of 340 px with 44 px overlap cover the section of 636 px


def grid(rows: int, cols: int) -> Positions:
    row, col = (v.ravel() for v in np.indices((rows, cols)))
    y, x = (STEP * at.astype(np.float64) for at in (row, col))
    n = len(row)
    names = np.arange(n).astype(np.str_)
    return Positions(names, row, col, y, x, np.full(n, 0.05), np.zeros(n, np.int64))


def edges_of(positions: Positions) -> Edges:
    """All overlaps, accepted and without a residual."""
    at = np.stack([positions.row, positions.col], axis=1)
    step = at[None] - at[:, None]
    first, second = np.nonzero((step.min(axis=2) == 0) & (step.sum(axis=2) == 1))
    n, names = len(first), positions.tile
    dy, dx = step[first, second].T * float(STEP)
    sure = np.full(n, 0.9), np.full(n, True), np.zeros(n), np.full(n, -9.0)
    return Edges(names[first], names[second], dy.copy(), dx.copy(), *sure)


def located(folder: Path, positions: Positions, edges: Edges, bare: Sequence[str] = ()) -> QcRecord:
    files = {name: folder / name for name in ("positions.csv", "edges.csv", "manifest.csv")}
    write_table(files["positions.csv"], {"s": positions})
    write_table(files["edges.csv"], {"s": edges})
    files["manifest.csv"].write_text(Manifest([], []).text())
    numbers = write_numbers(folder, bare)[2]
    paths = {path.stem: path for path in files.values()}
    return judged("tile_positions", folder, numbers=numbers, **paths)


def write_numbers(folder: Path, bare: Sequence[str] = (), **samples: Any) -> tuple[Path, ...]:
    """Write what a calibration without a fault tells, and these numbers of its sample."""
    even = Illumination.from_fields(np.ones((TILE, TILE)), PEDESTAL)
    same = {"bare": [*bare], "textured": 4, "unlike": [], "corner_px": None, "brightness": {}}
    numbers = {"defects": [5], "samples": {"s": same | samples}}
    return write_illumination(folder / "flat", {"1": (even, numbers)})


def test_doubtful_tiles_are_measured_and_named(tmp_path: Path) -> None:
    positions = grid(3, 7)
    positions.sigma_px[[1, 2, 3, 6, 9]] = 1.3
    quality = located(tmp_path, positions, edges_of(positions))
    assert [item.metric for item in quality.items if item.verdict != "pass"] == ["doubtful_tiles"]
    assert values(quality)["doubtful_tiles"] == pytest.approx(5 / 21, rel=1e-4)
    named = "uncertain or in disagreement: tiles 1, 2, 3, 6, 9"
    assert details(quality)["doubtful_tiles"] == named
    middles = [(0.5, 1.5), (0.5, 2.5), (0.5, 3.5), (0.5, 6.5), (1.5, 2.5)]
    found = [(p["y_px"] / STEP, p["x_px"] / STEP) for p in quality.numbers["places"]]
    assert found == middles
    single = grid(1, 1)
    assert set(verdicts(located(tmp_path, single, edges_of(single))).values()) == {"pass"}


def stitched(
    folder: Path,
    counts: NDArray[np.uint16],
    told: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> QcRecord:
    """Judge a mosaic of 2 x 2 tiles, of which a calibration told some numbers."""
    attributes = {"pedestal_counts": PEDESTAL, "saturated_share": [0.0], **attributes}
    mosaic = write_mosaic(folder / "m.zarr", counts, **attributes)
    flat, dark, numbers = write_numbers(folder, **(told or {}))
    write_table(folder / "positions.csv", {"s": grid(2, 2)})
    return judged(
        "stitch", folder, mosaic=[mosaic], flat=flat, dark=dark, numbers=numbers,
        positions=folder / "positions.csv",
    )  # fmt: skip


def test_saturated_pixels_and_defects_are_shares(tmp_path: Path) -> None:
    counts = expose(section().stack)
    counts[:, 50:600:296, 60:620:296] += 5000  # at the same places of all four tiles
    quality = stitched(tmp_path, counts, saturated_share=[0, 0.03, 0, 0, 0])
    found = values(quality)
    assert quality.numbers["1"]["best_plane"] == 3
    assert found["saturated"] == pytest.approx(0.03, rel=1e-4)
    assert details(quality)["saturated"] == "plane 2"
    assert found["hot_pixels"] == pytest.approx(1 / TILE**2, rel=1e-4)
    (tmp_path / "repaired").mkdir()
    repaired = stitched(tmp_path / "repaired", counts, repaired_camera_px=1)
    assert values(repaired)["hot_pixels"] == 0


def test_an_empty_channel_fails_and_its_focus_is_unknown(tmp_path: Path) -> None:
    quality = stitched(tmp_path, expose(np.full_like(section().stack, 10.0)), {"textured": 0})
    assert verdicts(quality)["contrast"] == "fail"
    unknown = {metric for metric, value in values(quality).items() if value is None}
    assert unknown >= {"focus", "unlike_overlaps"}


def test_neither_interpolated_noise_nor_a_speck_chooses_the_plane(tmp_path: Path) -> None:
    light = np.full((5, 512, 512), 1.0)
    light[:, :, :240] += section().stack[:, 64:576, 64:304]
    speck = np.zeros((256, 256))
    speck[50, 150] = 200000.0
    for z, sigma_px in enumerate((20, 15, 10, 5, 1)):
        light[z, 256:, 256:] += ndimage.gaussian_filter(speck, sigma_px)
    counts = ndimage.shift(expose(light).astype(np.float32), (0, 0.5, 0.5), order=3, mode="nearest")
    scan = scan_focus(open_mosaic(write_mosaic(tmp_path / "m.zarr", counts)))
    unknown = [at for at, scores in zip(scan.blocks, scan.scores, strict=True)
               if not np.isfinite(scores).any()]  # fmt: skip
    assert unknown == [(0, 256)]
    assert np.argmax(np.nansum(scan.scores, axis=0)) == 4  # for the speck
    assert scan.best_plane == 2


def test_hot_pixels_do_not_pass_for_a_stain() -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(180, 30, (256, 256))
    assert contrast_to_noise(image) < 3
    hot = image.copy()
    hot[tuple(rng.integers(0, 256, (2, 60)))] += 4000
    assert contrast_to_noise(hot) < 3
    image[100:112, 100:112] += 400
    assert contrast_to_noise(image) > 6


def test_thumbnails_are_means(tmp_path: Path) -> None:
    stack = np.random.default_rng(0).integers(0, 1000, (1, 300, 500)).astype(np.uint16)
    small, factor = thumbnail(open_mosaic(write_mosaic(tmp_path / "m.zarr", stack)), 0, 120)
    assert factor == 5
    assert small == pytest.approx(stack[0].reshape(60, 5, 100, 5).mean(axis=(1, 3)), rel=1e-5)


def test_equal_images_overlay_to_grey_and_shifted_ones_to_colour() -> None:
    image = np.tile(np.linspace(0, 1, 64), (64, 1))
    same = overlay(image, image)
    assert np.allclose(same[..., 0], same[..., 1])
    assert np.abs(np.subtract(*overlay(image, image[:, ::-1])[..., :2].T)).max() > 0.5


def test_what_raw_tiles_told_is_named(tmp_path: Path) -> None:
    told = {
        "textured": 5,
        "unlike": [["0", "1"]],
        "corner_px": [-2.0, 0.5],
        "brightness": {"1": 0.1, "2": -3.0, "3": -2.5},
    }
    quality = stitched(tmp_path, expose(section().stack), told)
    assert details(quality)["unlike_overlaps"] == "between tile 0 and tile 1"
    found = values(quality)
    assert (found["unlike_overlaps"], found["channel_shift_px"]) == (0.2, 1.0)
    assert "no light in tiles 2, 3 where" in details(quality)["tile_brightness"]
    middle = (TILE - 1) / 2
    assert [(p["y_px"], p["x_px"]) for p in quality.numbers["1"]["places"]] == [
        (middle, middle + STEP / 2)
    ]


def test_a_tile_that_nothing_ties_is_named_and_warns_where_it_shows_tissue(tmp_path: Path) -> None:
    for island, verdict, share, named in (
        ([0, 0, 1, 0], "warn", 1 / 4, "nothing ties tile 2"),
        ([0, 0, 0, 1], "pass", 0.0, "on glass, without structure: tile 3"),
        (
            *([0, 0, 1, 1], "warn", 1 / 4),
            "nothing ties tile 2; on glass, without structure: tile 3",
        ),
    ):
        positions = grid(2, 2)
        positions.island[:] = island
        quality = located(tmp_path, positions, edges_of(positions), ["0", "3"])
        assert verdicts(quality)["doubtful_tiles"] == verdict
        assert values(quality)["doubtful_tiles"] == share
        assert details(quality)["doubtful_tiles"] == named


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
    assert (said["damaged_planes"], said["focus_edge"]) == ("plane 4: blank", "plane 1: 20 %")
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
