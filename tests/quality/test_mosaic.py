"""Numbers and places that quality tells of positions and mosaics; verdicts: test_damages.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
from tests.support.array_tiles import ArrayTiles
from tests.support.mosaics import write_mosaic
from tests.support.tile_tables import grid_rows
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.results.illumination import Illumination, write_illumination
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.positions import Edges, Positions, write_table
from tilewright.kernels.stitch.overlap_agreement import compare_strips
from tilewright.phantom.files import write_tile
from tilewright.phantom.make import PhantomDesign
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.figures import overlay, thumbnail
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.quality.sampling import contrast_to_noise, scan_focus
from tilewright.quality.stages.overlaps import RawAgreement, compare_tiles, evaluate_overlaps

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


def located(folder: Path, positions: Positions, edges: Edges) -> QcRecord:
    files = {name: folder / name for name in ("positions.csv", "edges.csv", "manifest.csv")}
    write_table(files["positions.csv"], positions)
    write_table(files["edges.csv"], edges)
    files["manifest.csv"].write_text("channel,tile\n")
    return judged("tile_positions", folder, **{path.stem: path for path in files.values()})


#: What does not pass, and what is said of the first of it.
Told = tuple[Mapping[str, float | None], str]


def doubtful(positions: Positions, edges: Edges) -> Told:
    positions.sigma_px[[1, 2, 3, 6, 9]] = 1.3
    return {"doubtful_tiles": 5 / 21}, "uncertain or in disagreement: tiles 1, 2, 3, 6, 9"


def unmatched(positions: Positions, edges: Edges) -> Told:
    edges.accepted[:] = False
    positions.island[:] = np.arange(6)
    return {"doubtful_tiles": 5 / 6}, "nothing ties tiles 1, 2, 3, 4, 5"


def alone(positions: Positions, edges: Edges) -> Told:
    return {}, ""


@pytest.mark.parametrize(
    ("size", "harm"),
    [
        ((3, 7), doubtful),
        ((2, 3), unmatched),
        ((1, 1), alone),
    ],
)
def test_what_is_wrong_with_positions_is_measured_and_named(
    tmp_path: Path, size: tuple[int, int], harm: Callable[[Positions, Edges], Told]
) -> None:
    positions = grid(*size)
    edges = edges_of(positions)
    told, where = harm(positions, edges)
    quality = located(tmp_path, positions, edges)
    bad = {item.metric: item.value for item in quality.items if item.verdict != "pass"}
    expected = {k: None if v is None else pytest.approx(v, rel=1e-4) for k, v in told.items()}
    assert bad == expected
    assert details(quality)["doubtful_tiles"] == where
    if harm is doubtful:
        middles = [(0.5, 1.5), (0.5, 2.5), (0.5, 3.5), (0.5, 6.5), (1.5, 2.5)]
        found = [(p["y_px"] / STEP, p["x_px"] / STEP) for p in quality.numbers["places"]]
        assert found == middles


def stitched(folder: Path, counts: NDArray[np.uint16], **attributes: Any) -> QcRecord:
    """Judge a mosaic of 2 x 2 tiles, from which the raw tiles are cut."""
    mosaic = write_mosaic(folder / "m.zarr", counts, pedestal_counts=PEDESTAL, **attributes)
    even = Illumination.from_fields(np.ones((TILE, TILE)), 100.0)
    flat, dark, numbers = write_illumination(folder / "flat", {"1": (even, {})})
    snake = np.array(["1", "2", "4", "3"])
    write_table(folder / "positions.csv", replace(grid(2, 2), tile=snake))
    design = PhantomDesign(
        seed=0, cycles=1, channels=1, rows=2, cols=2, planes=len(counts), tile_px=TILE,
        overlap=1 - STEP / TILE,
    )  # fmt: skip
    for k, (y, x) in enumerate(np.ndindex(2, 2)):
        at = (slice(y * STEP, y * STEP + TILE), slice(x * STEP, x * STEP + TILE))
        write_tile(folder / "raw", design, 1, 1, k, counts[:, *at])
    raw, manifests = folder / "raw", {1: folder / "cycle1.csv"}
    build_manifest(
        raw, {"convention": "codex"}, {1: ["1"]}, {1: grid_rows(*design.grid)}, manifests
    )
    return judged(
        "stitch", folder, mosaic=[mosaic], flat=flat, dark=dark, numbers=numbers,
        manifest=folder / "cycle1.csv", positions=folder / "positions.csv",
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


@pytest.mark.parametrize("mirrored", [False, True])
def test_stacks_that_start_at_other_heights_are_compared_at_one(*, mirrored: bool) -> None:
    positions, light = grid(2, 2), section().stack
    stacks = [
        expose(light[first : first + 3, y * STEP : y * STEP + TILE, x * STEP : x * STEP + TILE], 10)
        for first, (y, x) in zip((2, 0, 0, 2), np.ndindex(2, 2), strict=True)
    ]
    if mirrored:
        stacks[3] = stacks[3][:, ::-1]
    tiles = ArrayTiles(np.stack(stacks), positions.row, positions.col, np.zeros((4, 2)))
    even = Illumination.from_fields(np.ones((TILE, TILE)), PEDESTAL)
    raw = compare_tiles(tiles, positions, even, 0)
    context = QcContext("s", 1, "stitch", resolve_thresholds({}))
    told = {item.metric: item for item in evaluate_overlaps(context, raw, repaired=True)}
    assert told["unlike_overlaps"].value == (0.5 if mirrored else 0.0)
    assert mirrored or told["tile_brightness"].verdict == "pass"


def test_brightness_is_compared_where_both_tiles_have_their_pixels() -> None:
    rng = np.random.default_rng(4)
    places = rng.uniform(0, 256, (150, 2))
    strips = []
    for corner_px in ((0.0, 0.0), (0.4, -0.4)):
        axes = (np.arange(256) + at for at in corner_px)
        y, x = (np.exp(-((px - v[:, None]) ** 2) / 3) for px, v in zip(axes, places.T, strict=True))
        strips.append((20 + 900 * np.einsum("ny,nx->yx", y, x)).astype(np.float32))
    spreads = [
        np.abs(compare_strips(strips[0], strips[1], apart).log_ratio).max()
        for apart in ((0.4, -0.4), (0.0, 0.0))
    ]
    assert spreads[0] < 0.05 < 0.15 < spreads[1]


def test_an_empty_channel_fails_and_its_focus_is_unknown(tmp_path: Path) -> None:
    quality = stitched(tmp_path, expose(np.full_like(section().stack, 10.0)))
    assert verdicts(quality)["contrast"] == "fail"
    unknown = {metric for metric, value in values(quality).items() if value is None}
    assert unknown >= {"focus", "saturated", "unlike_overlaps"}


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


class NumberedTiles(ArrayTiles):
    """Tiles that are numbered from 1."""

    @property
    def name(self) -> NDArray[np.str_]:
        return np.arange(1, len(self.row) + 1).astype(np.str_)


@pytest.mark.parametrize("corner", [4, 0])
@pytest.mark.parametrize("offset_error", [-5.0, 0.0, 5.0])
def test_a_tile_without_light_is_named_wherever_the_offset_was_estimated(
    corner: int, offset_error: float
) -> None:
    # The shutter stayed closed; the camera offset was estimated five counts off.
    side, step = 236, 200
    positions = replace(grid(3, 3), tile=np.arange(1, 10).astype(np.str_))
    positions.y_px[:], positions.x_px[:] = step * positions.row, step * positions.col
    places = [
        (slice(y, y + side), slice(x, x + side))
        for y, x in (step * np.stack([positions.row, positions.col], 1)).tolist()
    ]
    counts = expose(section().stack[2] / 4)
    stack = np.stack([counts[at] for at in places])
    black = np.random.default_rng(1).normal(PEDESTAL, 8, stack[corner].shape)
    stack[corner] = np.rint(black)
    corners_px = np.stack([positions.y_px, positions.x_px], axis=1)
    tiles = NumberedTiles(stack[:, None], positions.row, positions.col, corners_px)
    even = Illumination.from_fields(np.ones((side, side)), PEDESTAL + offset_error)
    context = QcContext("s", 1, "stitch", resolve_thresholds({}))
    raw = compare_tiles(tiles, positions, even, 0)
    found = {item.metric: item for item in evaluate_overlaps(context, raw, repaired=True)}
    assert found["tile_brightness"].verdict == "fail"
    assert f"no light in tile {corner + 1} where" in found["tile_brightness"].sentence


def test_no_light_in_any_tile_does_not_pass() -> None:
    raw = RawAgreement([], None, 1)
    context = QcContext("s", 1, "stitch", resolve_thresholds({}), "1", "CD3")
    for item in evaluate_overlaps(context, raw, repaired=False):
        assert item.verdict == "warn"
        assert item.value is None


def test_a_tile_that_nothing_ties_is_named_and_warns_where_it_shows_tissue(tmp_path: Path) -> None:
    counts = expose(section().stack)
    counts[:, STEP:, STEP:] = np.random.default_rng(2).normal(PEDESTAL, 9, (5, TILE, TILE))
    stitched(tmp_path, counts)  # tile 3 of the snake is bare glass
    for island, verdict, share, named in (
        ([0, 0, 1, 0], "warn", 1 / 4, "nothing ties tile 4"),
        ([0, 0, 0, 1], "pass", 0.0, "on glass, without structure: tile 3"),
        (
            *([0, 0, 1, 1], "warn", 1 / 4),
            "nothing ties tile 4; on glass, without structure: tile 3",
        ),
    ):
        positions = replace(grid(2, 2), tile=np.array(["1", "2", "4", "3"]))
        positions.island[:] = island
        files = {name: tmp_path / name for name in ("positions.csv", "edges.csv")}
        write_table(files["positions.csv"], positions)
        write_table(files["edges.csv"], edges_of(positions))
        quality = judged(
            "tile_positions", tmp_path, manifest=tmp_path / "cycle1.csv",
            **{path.stem: path for path in files.values()},
        )  # fmt: skip
        assert verdicts(quality)["doubtful_tiles"] == verdict
        assert values(quality)["doubtful_tiles"] == share
        assert details(quality)["doubtful_tiles"] == named
