"""Parts of the calibration of one channel by themselves."""

from pathlib import Path
from typing import Any

from tilewright.io.results.illumination import Illumination
from tilewright.io.results.positions import Positions
from tilewright.kernels.tile_positions.overlap_strips import plan_strips
from tilewright.stages.calibrate.channel_reading import read_channel
from tilewright.stages.illumination.binned_tiles import TileMeasures, measure_tiles
from tilewright.stages.illumination.estimate import estimate_channels
from tilewright.stages.tile_planes import TileSource
from tilewright.stages.tile_positions.locate import TileLocations, locate


def place_tiles(
    tiles: TileSource,
    *,
    workers: int = 1,
    planes: int = 5,
    scratch: Path | None = None,
    **options: Any,
) -> TileLocations:
    """Find the positions of the tiles of one sample."""
    plans = plan_strips(tiles.nominal_px, (tiles.shape[1], tiles.shape[2]), None)
    reading = read_channel(tiles, plans, workers=workers, planes=planes, scratch=scratch)
    strips = plans, reading.firsts, reading.seconds
    (found,) = locate(tiles, *strips, workers=workers, **options).values()
    return found


def measure(
    tiles: TileSource,
    positions: Positions | None,
    planes: int = 5,
    saturation_counts: float | None = None,
    workers: int = 1,
) -> TileMeasures:
    """Measure what the flat-field of a channel is estimated from."""
    reading = read_channel(
        tiles, [], workers=workers, planes=planes, saturation_counts=saturation_counts
    )
    return measure_tiles(reading.binned, positions)


def estimate_illumination(
    tiles: TileSource,
    positions: Positions | None,
    *,
    workers: int = 1,
    flat_file: str | Path | None = None,
    dark_file: str | Path | None = None,
    planes: int = 5,
    saturation_counts: float | None = None,
    **options: Any,
) -> tuple[Illumination, dict[str, Any]]:
    """Do what ``estimate_channels`` does for a cycle of one channel."""
    measures = measure(tiles, positions, planes, saturation_counts, workers)
    files = [(flat_file, dark_file)]
    (estimate,) = estimate_channels([measures], files, **options)
    return estimate
