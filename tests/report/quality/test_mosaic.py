"""Each way to break tile positions or a mosaic leads to the verdict that names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.report.quality.qc_scenes import (
    PEDESTAL,
    Scene,
    expose,
    make_scene,
    write_mosaic,
    write_raw,
)
from tilewright.io.results.distortion import write_distortion
from tilewright.io.results.illumination import Illumination, write_illumination
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.positions import Edges, Positions, write_table
from tilewright.report.figures import overlay, thumbnail
from tilewright.report.judge import Quality, judge_stage, read_quality
from tilewright.report.quality.places import contrast_to_noise, scan_focus
from tilewright.report.quality.stitch import seam_scores

TILE = 340
STEP = 296  # 2 × 2 tiles of 340 px with 44 px overlap cover the scene of 636 px


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene()


def grid(rows: int, cols: int, step: int = STEP) -> Positions:
    row, col = (v.ravel() for v in np.indices((rows, cols)))
    n = len(row)
    y, x = (step * at.astype(np.float64) for at in (row, col))
    return Positions(row, col, y, x, np.full(n, 0.05), np.zeros(n, np.int64))


def edges_of(positions: Positions, accepted: NDArray[np.bool_], residual_px: float) -> Edges:
    at = {(int(r), int(c)) for r, c in zip(positions.row, positions.col, strict=True)}
    pairs = [(a, b) for a in sorted(at) for b in ((a[0], a[1] + 1), (a[0] + 1, a[1])) if b in at]
    first, second = (np.array([p[k] for p in pairs], np.int64).reshape(-1, 2) for k in (0, 1))
    n = len(pairs)
    delta = (second - first) * float(STEP)
    good = np.resize(accepted, n)
    residual = np.full(n, residual_px)
    delta[:, 0] += residual_px
    (ra, ca), (rb, cb), (dy, dx) = first.T, second.T, delta.T
    return Edges(ra, ca, rb, cb, dy, dx, np.full(n, 0.9), good, residual, np.full(n, -9.0))


def located(folder: Path, positions: Positions, edges: Edges) -> Quality:
    write_table(folder / "positions.csv", positions)
    write_table(folder / "edges.csv", edges)
    json, png = folder / "qc.json", folder / "qc.png"
    (folder / "cycle1.csv").write_text("channel,row,col\n")
    files = {name: folder / f"{name}.csv" for name in ("positions", "edges")}
    files["manifest"] = folder / "cycle1.csv"
    write_distortion(files.setdefault("distortion", folder / "distortion.json"), None)
    judge_stage("tile_positions", files, json, png, sample="s", cycle=1)
    assert np.asarray(imagecodecs.png_decode(png.read_bytes())).std() > 5
    return read_quality(json)


def verdicts(quality: Quality) -> dict[str, str]:
    return {item.metric: item.verdict for item in quality.items}


YES, NO = np.array([True]), np.array([False])


def test_agreeing_overlaps_pass(tmp_path: Path) -> None:
    positions = grid(3, 4)
    quality = located(tmp_path, positions, edges_of(positions, YES, 0.03))
    assert set(verdicts(quality).values()) == {"pass"}


def test_contradicting_overlaps_are_told_and_named(tmp_path: Path) -> None:
    positions = grid(3, 4)
    quality = located(tmp_path, positions, edges_of(positions, YES, 4.0))
    assert verdicts(quality)["edge_residual_px"] == "fail"
    assert verdicts(quality)["doubtful_tiles"] == "fail"
    assert "worst between row 0 column 0 and row 0 column 1" in quality.items[1].sentence


def test_tiles_that_nothing_ties_down_are_told_and_named(tmp_path: Path) -> None:
    positions = grid(3, 4)
    positions.island[-4:] = 1
    positions.sigma_px[:] = 3.0
    quality = located(tmp_path, positions, edges_of(positions, YES, 0.0))
    assert verdicts(quality)["untied_tiles"] == "warn"
    assert verdicts(quality)["position_sigma_px"] == "fail"
    sentence = next(i.sentence for i in quality.items if i.metric == "untied_tiles")
    assert "row 2 columns 0-3" in sentence


def test_doubtful_tiles_are_all_named(tmp_path: Path) -> None:
    positions = grid(3, 7)
    positions.sigma_px[[1, 2, 3, 6, 9]] = 1.3
    quality = located(tmp_path, positions, edges_of(positions, YES, 0.0))
    assert verdicts(quality)["doubtful_tiles"] == "warn"
    sentence = next(i.sentence for i in quality.items if i.metric == "doubtful_tiles")
    assert "row 0 columns 1-3, 6; row 1 column 2" in sentence
    places = quality.numbers["places"]
    middles = [(0.5, 1.5), (0.5, 2.5), (0.5, 3.5), (0.5, 6.5), (1.5, 2.5)]
    assert [(p["y_px"] / STEP, p["x_px"] / STEP) for p in places] == middles


def test_a_moved_tile_is_named(tmp_path: Path) -> None:
    positions = grid(7, 9)
    edges = edges_of(positions, YES, 0.0)
    positions.y_px[31] += 3.0
    quality = located(tmp_path, positions, edges)
    assert verdicts(quality)["doubtful_tiles"] == "warn"
    sentence = next(i.sentence for i in quality.items if i.metric == "doubtful_tiles")
    assert re.search(r"row 3 column 4\b", sentence)


def test_sure_matches_that_were_given_up_are_told(tmp_path: Path) -> None:
    positions = grid(3, 4)
    edges = edges_of(positions, YES, 0.0)
    edges.accepted[5], edges.dy_px[5] = False, edges.dy_px[5] + 7.0
    quality = located(tmp_path, positions, edges)
    assert verdicts(quality)["contradicting_overlaps"] == "warn"


def test_no_match_at_all_fails_and_leaves_the_residual_unknown(tmp_path: Path) -> None:
    positions = grid(2, 3)
    positions.island[:] = np.arange(6)
    quality = located(tmp_path, positions, edges_of(positions, NO, 0.0))
    found = verdicts(quality)
    assert found["accepted_edges"] == "fail"
    assert found["untied_tiles"] == "fail"
    assert found["edge_residual_px"] == found["position_sigma_px"] == "warn"


def test_a_single_tile_has_nothing_to_agree_with(tmp_path: Path) -> None:
    quality = located(tmp_path, grid(1, 1), edges_of(grid(1, 1), YES, 0.0))
    assert "single tile" in quality.items[0].sentence
    assert "fail" not in verdicts(quality).values()


def stitched(
    folder: Path,
    counts: NDArray[np.uint16],
    raw: NDArray[np.uint16] | None = None,
    **attributes: Any,
) -> Quality:
    """Judge a mosaic of 2 x 2 tiles; the raw tiles are cut from it unless others are given."""
    base: dict[str, Any] = {"pedestal_counts": PEDESTAL, "clipped_low": 0, "clipped_high": 0}
    base["saturated_raw_px"] = [0] * counts.shape[0]
    mosaic = write_mosaic(folder / "m.zarr", counts, **{**base, **attributes})
    even = Illumination.from_fields(np.ones((TILE, TILE)), 100.0)
    flat, dark, _ = write_illumination(folder / "flat", even, {})
    write_table(folder / "positions.csv", grid(2, 2))
    write_distortion(folder / "distortion.json", None)
    json, png = folder / "qc.json", folder / "qc.png"
    files = {
        "mosaic": [mosaic],
        "flat": [flat],
        "dark": [dark],
        "manifest": write_raw(folder, counts if raw is None else raw, (2, 2), STEP, TILE),
        "positions": folder / "positions.csv",
        "distortion": folder / "distortion.json",
    }
    cycle: dict[str, Any] = {"sample": "s", "cycle": 1, "channels": [("1", "DAPI")]}
    judge_stage("stitch", files, json, png, **cycle)
    assert np.asarray(imagecodecs.png_decode(png.read_bytes())).std() > 5
    return read_quality(json)


def test_good_nuclei_pass(tmp_path: Path, scene: Scene) -> None:
    quality = stitched(tmp_path, expose(scene.nuclei))
    assert set(verdicts(quality).values()) == {"pass"}
    assert quality.numbers["1"]["best_plane"] == 3


def test_a_good_marker_passes(tmp_path: Path, scene: Scene) -> None:
    assert "fail" not in verdicts(stitched(tmp_path, expose(scene.marker))).values()


def test_brightness_steps_at_borders_are_told(tmp_path: Path, scene: Scene) -> None:
    light = scene.nuclei.copy()
    middle = STEP + (TILE - STEP) // 2
    light[:, :, middle:] *= 3
    light[:, middle:] *= 3
    quality = stitched(tmp_path, expose(light / 4), feather_px=4)
    assert verdicts(quality)["seam"] != "pass"
    place = quality.numbers["1"]["places"][0]
    assert place["metric"] == "seam"
    assert place["value"] == pytest.approx(quality.numbers["1"]["worst_seams"][0]["score"])
    # A border lies in the middle of one direction, and its place in that of both tiles.
    assert min(abs(place[axis] - middle) for axis in ("y_px", "x_px")) < 2
    assert verdicts(stitched(tmp_path, expose(scene.nuclei), feather_px=4))["seam"] == "pass"


def test_defocus_is_told(tmp_path: Path, scene: Scene) -> None:
    blurred = ndimage.gaussian_filter(scene.nuclei, (0, 6, 6))
    assert verdicts(stitched(tmp_path, expose(blurred)))["focus"] == "fail"


def test_focus_beyond_the_stack_is_told(tmp_path: Path, scene: Scene) -> None:
    quality = stitched(tmp_path, expose(scene.nuclei[2:]))
    assert verdicts(quality)["focus_edge"] == "fail"


def test_an_empty_channel_fails_and_its_focus_is_unknown(tmp_path: Path, scene: Scene) -> None:
    quality = stitched(tmp_path, expose(np.full_like(scene.nuclei, 10.0)))
    found = verdicts(quality)
    assert found["contrast"] == "fail"
    assert found["focus"] == found["empty"] == found["seam"] == found["focus_edge"] == "warn"
    assert found["overlap_shift_px"] == found["unlike_overlaps"] == "warn"


def test_neither_interpolated_noise_nor_a_speck_chooses_the_plane(
    tmp_path: Path, scene: Scene
) -> None:
    light = np.full((5, 512, 512), 1.0)
    light[:, :, :240] += scene.nuclei[:, 64:576, 64:304]
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


def test_saturation_and_clipping_are_told(tmp_path: Path, scene: Scene) -> None:
    n = 4 * TILE**2
    many = [0, int(0.03 * n), 0, 0, 0]
    quality = stitched(tmp_path, expose(scene.nuclei), saturated_raw_px=many, clipped_high=n // 50)
    assert verdicts(quality)["saturated"] == "fail"
    assert verdicts(quality)["clipped"] == "warn"
    assert "plane 2" in next(i.sentence for i in quality.items if i.metric == "saturated")


def test_worst_seam_comes_first_and_names_its_tiles(tmp_path: Path, scene: Scene) -> None:
    light = scene.nuclei.copy()
    middle = STEP + (TILE - STEP) // 2
    light[:, middle:, middle:] *= 4.0
    mosaic = open_mosaic(
        write_mosaic(tmp_path / "m.zarr", expose(light / 4), pedestal_counts=PEDESTAL, feather_px=4)
    )
    seams = seam_scores(mosaic, grid(2, 2), (TILE, TILE), 2)
    assert len(seams) == 4
    assert {s.second for s in seams[:2]} == {(1, 1)}


def test_thumbnails_are_means(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 1000, (1, 300, 500)).astype(np.uint16)
    mosaic = open_mosaic(write_mosaic(tmp_path / "m.zarr", stack))
    small, factor = thumbnail(mosaic, 0, 120)
    assert (factor, small.shape) == (5, (60, 100))
    want = stack[0].reshape(60, 5, 100, 5).mean(axis=(1, 3))
    assert small == pytest.approx(want, rel=1e-5)


def test_equal_images_overlay_to_grey_and_shifted_ones_to_colour() -> None:
    image = np.tile(np.linspace(0, 1, 64), (64, 1))
    same = overlay(image, image)
    assert np.allclose(same[..., 0], same[..., 1])
    assert np.abs(np.subtract(*overlay(image, image[:, ::-1])[..., :2].T)).max() > 0.5
