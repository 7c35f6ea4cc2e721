from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scenes.array_tiles import ArrayTiles
from tests.stages.tile_positions.position_runs import SIZE, Floats, grid, located
from tests.support.runs import digests
from tests.support.tile_configuration import read_tile_configuration
from tilewright.io.results.positions import read_edges, read_positions
from tilewright.kernels.tile_positions.displacements import Overlaps
from tilewright.kernels.tile_positions.overlap_strips import neighbours
from tilewright.kernels.tile_positions.position_solve import solve_positions
from tilewright.stages.tile_positions.locate import TileLocations, write_located


def wrong(found: TileLocations, true: Floats) -> Floats:
    """Return errors (n, 2) after the mean offset of island 0."""
    error = found.yx_px - true
    return np.asarray(error - error[found.positions.island == 0].mean(axis=0))


def rmse(error: Floats) -> float:
    return float(np.sqrt(np.mean(error**2)))


@pytest.mark.parametrize("seed", [1, 5])
@pytest.mark.parametrize("shape", [(5, 5), (1, 1), (1, 5), (5, 1), (2, 2)])
def test_positions_meet_truth(seed: int, shape: tuple[int, int]) -> None:
    tiles, true = grid(seed, *shape)
    found = located(tiles)
    error = wrong(found, true)
    assert rmse(error) < (0.06 if shape == (5, 5) else 0.1)
    assert len(found.edges.score) == 2 * len(true) - sum(shape)
    assert np.isfinite(found.positions.sigma_px).all()
    if shape == (5, 5):
        assert found.edges.accepted.mean() > 0.9
        assert set(found.positions.island) == {0}
        assert found.yx_px.min(axis=0).tolist() == [0.0, 0.0]
        ratio = rmse(error / found.positions.sigma_px[:, None])
        assert 0.1 < ratio < 2.0, "the standard error is honest"


@pytest.mark.parametrize(
    ("overlap", "electrons", "filter_px"), [(0.16, 0.1, 3.3), (0.2, 0.02, 2.2), (0.3, 4.0, 1.5)]
)
def test_errors_are_as_large_as_stated(overlap: float, electrons: float, filter_px: float) -> None:
    ratios = []
    for seed in range(70, 82):
        tiles, true = grid(seed, 2, 3, overlap=overlap, electrons=electrons)
        found = located(tiles, sigma_px=filter_px)
        main = found.positions.island == 0
        ratios.append((wrong(found, true) / found.positions.sigma_px[:, None])[main])
    assert sum(map(len, ratios)) > 55
    # By the width of the filter's peak alone: 1.5 where overlaps are narrow, 0.3 where wide.
    assert 0.65 < rmse(np.concatenate(ratios)) < 1.25


def test_the_filter_suits_the_light_and_the_overlap() -> None:
    wide, narrow = (grid(2, 4, 4, overlap=part, electrons=0.002)[0] for part in (0.35, 0.2))
    assert (located(wide).sigma_px, located(narrow).sigma_px) == (3.3, 2.2)
    bright, dim = grid(1)[0], grid(1, electrons=0.01)
    found = located(dim[0])
    assert found.sigma_px > located(bright).sigma_px == 1.5
    assert rmse(wrong(found, dim[1])) < 0.12


def test_blank_tiles_are_islands_at_the_stage_model() -> None:
    blank = (6, 7, 24)
    tiles, true = grid(3, 6, 6, blank=blank)
    found = located(tiles)
    island, sigma, error = found.positions.island, found.positions.sigma_px, wrong(found, true)
    tied = island == 0
    assert np.flatnonzero(~tied).tolist() == list(blank)
    assert sorted(island[~tied]) == [1, 2, 3]
    assert rmse(error[tied]) < 0.09
    assert (sigma[~tied] > 1.0).all()
    assert (sigma[tied] < 0.1).all()
    assert (np.abs(error[~tied]) < 4.0 * sigma[~tied, None]).all()


def test_tiles_without_evidence_stay_where_the_stage_put_them() -> None:
    blank, _ = grid(4, blank=tuple(range(25)))
    found = located(blank)
    assert found.edges.accepted.sum() <= 1, "hot pixels are none"
    np.testing.assert_allclose(found.yx_px, blank.nominal_px, atol=5.0)
    assert (found.positions.sigma_px > 1.0).all()
    tiles = grid(1, 3, 3)[0]
    for value in (0, 100, 65535):
        found = located(replace(tiles, stack=np.full_like(tiles.stack, value)))
        assert not found.edges.accepted.any()
        np.testing.assert_allclose(found.yx_px, tiles.nominal_px, atol=1e-6)
        assert sorted(found.positions.island) == list(range(9))
        assert (found.positions.sigma_px > 1.0).all()


def part_of(tiles: ArrayTiles, keep: Any) -> ArrayTiles:
    return ArrayTiles(tiles.stack[keep], tiles.row[keep], tiles.col[keep], tiles.nominal_px[keep])


def test_less_is_known() -> None:
    """Places are missing, or the stage is inaccurate."""
    tiles, true = grid(6)
    keep = np.setdiff1d(np.arange(25), (0, 7, 12))
    part = part_of(tiles, keep)
    assert rmse(wrong(located(part), true[keep])) < 0.06
    apart = replace(part, nominal_px=part.nominal_px * 2.0)
    alone = located(apart)
    assert len(alone.edges.score) == 0, "without overlaps"
    stage = apart.nominal_px - apart.nominal_px.min(axis=0)
    np.testing.assert_allclose(alone.yx_px, stage, atol=1e-6)
    tiles, true = grid(7, jitter=3.0)
    rough = np.round(true + np.random.default_rng(0).uniform(-3, 3, true.shape))
    assert rmse(wrong(located(replace(tiles, nominal_px=rough)), true)) < 0.05


def test_planes_are_averaged() -> None:
    single, true = grid(8)
    deep = np.repeat(single.stack, 5, axis=1).astype(np.float64)
    deep += np.random.default_rng(8).normal(0, 600.0, deep.shape)
    tiles = replace(single, stack=deep.astype(np.float32))
    one, five = (rmse(wrong(located(tiles, planes=n), true)) for n in (1, 5))
    assert five < 0.7 * one


def test_files_are_whole_and_strips_on_the_disk_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slide of 50,000 px squared has 5 GB of strips."""
    tiles, _ = grid(10, 3, 4)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    write_located(tmp_path / "memory", {"s": located(tiles, scratch=scratch)})
    assert not list(scratch.iterdir())
    monkeypatch.setattr("tilewright.stages.calibrate.channel_reading._IN_MEMORY_B", 0)
    write_located(tmp_path / "disk", {"s": located(tiles, scratch=scratch)})
    assert sum(path.stat().st_size for path in scratch.rglob("*")) > 2 * 40 * SIZE * 4
    written = digests(tmp_path / "memory")
    assert written == digests(tmp_path / "disk")
    assert len(written) == 6
    positions = read_positions(tmp_path / "disk" / "positions.csv")
    names, yx = read_tile_configuration(tmp_path / "disk" / "TileConfiguration.txt")
    np.testing.assert_array_equal(yx, np.stack([positions.y_px, positions.x_px], axis=1))
    assert names[5] == "tile5.tif"
    assert read_edges(tmp_path / "disk" / "edges.csv").residual_px.max() < 0.3


def stage(rows: int, cols: int, rng: np.random.Generator, jitter: float) -> tuple[Any, ...]:
    """Rows, nominal and true places of tiles, and their pairs with the exact displacements."""
    row, col = (axis.ravel() for axis in np.mgrid[:rows, :cols])
    nominal = np.stack([row, col], axis=1) * 90.0
    true = nominal + rng.normal(0, jitter, nominal.shape)
    pairs, _ = neighbours(nominal, (110, 110))
    return row, nominal, true, pairs, true[pairs[:, 1]] - true[pairs[:, 0]]


def test_solver_gives_up_false_edges() -> None:
    row, nominal, true, pairs, exact = stage(6, 6, rng := np.random.default_rng(1), 2.0)
    measured = exact + rng.normal(0, 0.02, exact.shape)
    false = [3, 17, 30, 44]
    measured[false] += [[9.0, -4.0], [-7.0, 0.5], [3.0, 12.0], [0.0, 5.0]]
    probability, sigma = np.full(len(pairs), 1e-9), np.full(exact.shape, 0.004)
    overlaps = Overlaps(pairs, measured, sigma, np.ones(len(pairs)), probability)
    found = solve_positions(nominal, row, overlaps, 20.0)
    assert np.flatnonzero(~found.accepted).tolist() == false
    assert (found.residual_px[false] > 4.0).all()
    error = found.position_px - true
    error -= error.mean(axis=0)
    assert rmse(error) < 0.03
    assert 0.3 < rmse(error / found.sigma_px[:, None]) < 2.0


@pytest.mark.parametrize("seed", [23, 31])
def test_rows_of_the_camera_are_no_evidence_on_glass(seed: int) -> None:
    """Two tiles on bare glass matched with a probability of 1e-4 to 1e-6 of being false."""
    tiles, _ = grid(seed, 3, 3, blank=(7, 8))
    rows = np.random.default_rng(seed).normal(0, 4, SIZE)[:, None]
    found = located(replace(tiles, stack=np.rint(tiles.stack + rows)))
    assert found.edges.accepted.sum() > 5
    ends = np.stack([found.edges.tile_a, found.edges.tile_b])[:, found.edges.accepted]
    assert not np.isin(ends, found.positions.tile[[7, 8]]).any()
    assert (found.positions.sigma_px[[7, 8]] > 1.0).all()
