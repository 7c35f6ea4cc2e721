"""Overlaps as the metadata state them, and as the pixels show them."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import tifffile

from tests.init.raw_folders import initiated, tile_rows
from tilewright.init import place_tiles
from tilewright.init.folder import InitResult
from tilewright.init.tile_set import GridOptions, TileSet
from tilewright.io.formats.common import RawPlane
from tilewright.io.inputs.codex_metadata import CodexExperiment
from tilewright.kernels.tile_positions.stage_map import StageMap
from tilewright.kernels.tile_positions.tile_order import tile_places

SIDE = 256


def write(raw: Path, true: float, stated: float | None, texture: float = 900.0) -> None:
    """Write 3 x 3 tiles of a stage that is 1.5 px off, and what the metadata state of them."""
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(3 * SIDE + 40, 3 * SIDE + 40))
    specimen = texture * scipy.ndimage.gaussian_filter(noise, 2.0) * 7
    folder = raw / "cyc001_reg001"
    folder.mkdir(parents=True)
    for number, (row, col) in enumerate(tile_places("snake_right_down", 3, 3), start=1):
        y, x = np.rint(20 + np.array([row, col]) * SIDE * (1 - true) + rng.normal(0, 1.5, 2))
        tile = specimen[int(y) : int(y) + SIDE, int(x) : int(x) + SIDE]
        counts = rng.normal(4000, 60, (SIDE, SIDE)) + tile
        path = folder / f"1_{number:05}_Z001_CH1.tif"
        tifffile.imwrite(path, np.clip(counts, 100, 65000).astype(np.uint16))
    told = {"region_width": 3, "region_height": 3, "tilingMode": "snake", "numChannels": 1}
    told |= {"per_pixel_XY_resolution": 325.0} | ({"tile_overlap_X": stated} if stated else {})
    (raw / "experiment.json").write_text(json.dumps(told))


def overlap_of(result: InitResult) -> float:
    """Return the overlap along x of the tiles table."""
    first, second, *_ = tile_rows(result)
    return 1 - (float(second["x"]) - float(first["x"])) / SIDE


@pytest.mark.parametrize(
    ("true", "stated"), [(0.06, 0.1), (0.1, 0.06), (0.1, 0.3), (0.26, 0.1), (0.2, 0.12)]
)
def test_an_overlap_that_is_stated_wrong_is_measured(
    tmp_path: Path, true: float, stated: float
) -> None:
    write(tmp_path / "raw", true, stated)
    result, _ = initiated(tmp_path / "raw")
    assert overlap_of(result) == pytest.approx(true, abs=0.01)
    assert {row["source"] for row in tile_rows(result)} == {"pixels"}
    (said,) = [line for line in result.notes.warnings if "overlap" in line]
    assert "; the measured ones are written" in said
    assert f"instead of (0, {SIDE * (1 - stated):.0f}) px" in said or (
        f"instead of ({SIDE * (1 - stated):.0f}, 0) px" in said
    )


def test_an_overlap_that_is_stated_right_is_confirmed(tmp_path: Path) -> None:
    write(tmp_path / "raw", 0.1, 0.1)
    result, _ = initiated(tmp_path / "raw")
    assert overlap_of(result) == pytest.approx(0.1)
    assert {row["source"] for row in tile_rows(result)} == {"grid"}
    findings = result.notes.findings
    assert any("overlaps confirm the positions (12 of 12)" in line for line in findings)
    assert not result.notes.warnings


def test_what_the_pixels_do_not_show_is_stated_and_not_confirmed(tmp_path: Path) -> None:
    write(tmp_path / "raw", 0.06, 0.1, texture=0.0)
    result, _ = initiated(tmp_path / "raw")
    assert overlap_of(result) == pytest.approx(0.1)
    assert {row["source"] for row in tile_rows(result)} == {"grid"}
    assert any("positions are not confirmed" in line for line in result.notes.warnings)
    write(tmp_path / "none", 0.06, None, texture=0.0)
    # Rows and columns in the names.
    rng = np.random.default_rng(1)
    (tmp_path / "named").mkdir()
    for row, col in np.ndindex(2, 3):
        tile = rng.normal(900, 30, (128, 128)).astype(np.uint16)
        tifffile.imwrite(tmp_path / f"named/t_r{row}_c{col}.tif", tile)
    for raw in ("none", "named"):
        result, _ = initiated(tmp_path / raw, f"{raw}-out")
        assert {(row["y"], row["x"]) for row in tile_rows(result)} == {("", "")}
        assert any("y and x: " in key for key in result.notes.unknown)


@pytest.mark.parametrize(("matched", "asked"), [(4, True), (5, False)])
def test_a_step_that_few_overlaps_show_is_asked(
    monkeypatch: pytest.MonkeyPatch, matched: int, asked: bool
) -> None:
    corners = [RawPlane(1, "1", None, f"r{k}.tif", row=0, col=k) for k in range(2)]
    tiles = TileSet({plane.tile_name: [plane] for plane in corners}, "1", (224, 224))
    found = StageMap(np.eye(2), np.array([[0.0, 190.0]]), matched, 7, ())
    monkeypatch.setattr(place_tiles, "_fit", lambda *_: found)
    placed = place_tiles.place_tiles({("", 1): tiles}, GridOptions(), CodexExperiment(), 0.3)
    assert any("--overlap" in text for text in placed["", 1].notes.unknown) == asked
