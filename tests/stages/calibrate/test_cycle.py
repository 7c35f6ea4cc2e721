"""One reading of a cycle's tiles: what it tells, and how often a plane is decoded."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.scenes.array_tiles import ArrayTiles
from tests.quality.qc_scenes import PEDESTAL, expose, section
from tests.support.quality.workbench import DESIGN, Bench
from tests.support.runs import make_run
from tilewright.io.inputs import tiles as raw_tiles
from tilewright.phantom.design import PhantomDesign
from tilewright.stages.calibrate.cycle import Calibration, CalibrationSettings, calibrate


def cut(counts: NDArray[Any], step: int, side: int) -> ArrayTiles:
    """Cut 3 x 3 or 2 x 2 tiles out of the counts (z, y, x) of a section."""
    count = (counts.shape[1] - side) // step + 1
    row, col = (axis.ravel() for axis in np.indices((count, count)))
    at = step * np.stack([row, col], axis=1)
    stack = np.stack([counts[:, y : y + side, x : x + side] for y, x in at])
    return ArrayTiles(stack, row, col, at.astype(np.float64))


def calibrated(*channels: ArrayTiles, **options: Any) -> Calibration:
    settings = CalibrationSettings(**({"offset_counts": PEDESTAL} | options))
    return calibrate(channels, 0, [(None, None)] * len(channels), settings, workers=2)


def numbers_of(found: Calibration, channel: int = 0) -> dict[str, Any]:
    return dict(found.channels[channel][1]["samples"][""])


@pytest.mark.parametrize("corner", [4, 0])
@pytest.mark.parametrize("offset_error", [-5.0, 0.0, 5.0])
def test_a_tile_without_light_is_told_wherever_the_offset_was_estimated(
    corner: int, offset_error: float
) -> None:
    # The shutter stayed closed; the camera offset was estimated five counts off.
    tiles = cut(expose(section().stack[2:3] / 4), 200, 236)
    black = np.random.default_rng(1).normal(PEDESTAL, 8, tiles.stack[corner].shape)
    tiles.stack[corner] = np.rint(black)
    told = numbers_of(calibrated(tiles, offset_counts=PEDESTAL + offset_error))
    assert told["bare"] == [str(corner)]
    dark = [tile for tile, value in told["brightness"].items() if value < np.log(0.1)]
    assert dark == [str(corner)]


@pytest.mark.parametrize("mirrored", [False, True])
def test_stacks_that_start_at_other_heights_show_the_same(*, mirrored: bool) -> None:
    tiles = cut(expose(section().stack, 10), 296, 340)
    stack = np.stack([tiles.stack[k, first : first + 3] for k, first in enumerate((2, 0, 0, 2))])
    if mirrored:
        stack[3] = stack[3][:, ::-1]
    told = numbers_of(calibrated(ArrayTiles(stack, tiles.row, tiles.col, tiles.nominal_px)))
    assert told["unlike"] == ([["2", "3"], ["1", "3"]] if mirrored else [])
    assert mirrored or max(map(abs, told["brightness"].values())) < 0.15


def test_padding_and_noise_are_no_other_place() -> None:
    tiles = cut(expose(section().stack), 296, 340)
    padded = tiles.stack.copy()
    padded[:, :, :6] = 0
    told = numbers_of(calibrated(ArrayTiles(padded, tiles.row, tiles.col, tiles.nominal_px)))
    assert (told["textured"], told["unlike"]) == (4, [])
    noise = np.random.default_rng(0).poisson(9.0, tiles.stack.shape) + 100
    empty = ArrayTiles(noise.astype(np.uint16), tiles.row, tiles.col, tiles.nominal_px)
    told = numbers_of(calibrated(tiles, empty), 1)
    assert told["textured"] == 0
    assert told["bare"] == ["0", "1", "2", "3"]


def test_defects_are_found_and_each_plane_is_read_once() -> None:
    reads = Counter[tuple[int, int, int]]()

    class Counted(ArrayTiles):
        def read(self, tile: int, z: int) -> NDArray[Any]:
            reads[id(self), tile, z] += 1
            return super().read(tile, z)

    tiles = cut(expose(section().stack), 200, 236)
    tiles.stack[:, :, 30, 40] += 9000
    channels = [Counted(**vars(tiles)) for _ in range(2)]
    found = calibrated(*channels)
    assert [numbers["defects"] for _, numbers in found.channels] == [[30 * 236 + 40]] * 2
    assert set(reads.values()) == {1}
    assert len(reads) == 2 * 9 * 5
    positions = found.located[""].positions
    assert (positions.island == 0).all()
    assert np.abs(found.located[""].yx_px - tiles.nominal_px).max() < 0.2


def test_a_run_decodes_a_raw_plane_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check before the run, calibration and stitching; quality reads what these told."""
    bench = Bench(make_run(tmp_path, **DESIGN), PhantomDesign(**DESIGN))
    reads, read_plane = Counter[tuple[str, int]](), raw_tiles.read_plane

    def count(path: Path, page: int) -> NDArray[Any]:
        reads[str(path), page] += 1
        return read_plane(path, page)

    monkeypatch.setattr(raw_tiles, "read_plane", count)
    bench.manifests()
    bench.calibrate(1)
    for channel in ("1", "2"):
        bench.stitch(1, channel)
    for stage in ("illumination", "tile_positions", "stitch"):
        bench.quality(stage, 1, drawn=False)
    places = [(channel, tile) for channel in ("1", "2") for tile in range(9)]
    times = [reads[str(path), 0] for place in places for path in bench.raw(1, *place)]
    assert min(times) == 2
    assert max(times) == 3
