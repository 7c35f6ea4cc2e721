"""The illumination of one channel by itself."""

from pathlib import Path
from typing import Any

from tilewright.io.results.illumination import Illumination
from tilewright.io.results.positions import Positions
from tilewright.stages.illumination.estimate import estimate_channels
from tilewright.stages.tile_source import TileSource


def estimate_illumination(
    tiles: TileSource,
    positions: Positions | None,
    *,
    flat_file: str | Path | None = None,
    dark_file: str | Path | None = None,
    **options: Any,
) -> tuple[Illumination, dict[str, Any]]:
    """Do what ``estimate_channels`` does for a cycle of one channel."""
    files = [(flat_file, dark_file)]
    (estimate,) = estimate_channels([tiles], positions, files, **options)
    return estimate
