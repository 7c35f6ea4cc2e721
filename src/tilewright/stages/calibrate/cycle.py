"""Calibrate one cycle: where its tiles lie, and what its camera does, from one reading.

The tiles of each channel are read once. Those of the reference channel place the tiles; at these
places overlaps tell flat-fields and camera offsets, and whether neighbours show the same.

Numbers of a channel, with those of :mod:`tilewright.stages.illumination.estimate`: ``defects``
(flat indices of the camera's defective pixels, null where too few tiles tell) and ``samples``, by
the name of each:

- ``bare``: tiles without structure,
- ``textured``: overlaps with structure enough to compare,
- ``unlike``: those in which the two tiles named show different places,
- ``corner_px``: displacement at a tile's corner against the reference channel by another
  magnification, and its standard error; null of fewer than four overlaps,
- ``brightness``: log of each tile's brightness over that of its neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ProcessingError
from tilewright.io.results.illumination import Illumination
from tilewright.io.results.positions import Positions
from tilewright.kernels.camera import CameraDefects
from tilewright.kernels.noise import mad_sigma
from tilewright.kernels.tile_positions.overlap_strips import StripPlan, plan_strips
from tilewright.kernels.tile_positions.position_solve import FALSE_MATCH_PROBABILITY
from tilewright.stages.calibrate.agreement import (
    LEAST_VALUES,
    Overlap,
    compare_tiles,
    tile_brightness,
)
from tilewright.stages.calibrate.channel_reading import (
    ChannelReading,
    read_channel,
)
from tilewright.stages.illumination.binned_tiles import TileMeasures, measure_tiles
from tilewright.stages.illumination.estimate import Method, estimate_channels
from tilewright.stages.tile_planes import TileSource
from tilewright.stages.tile_positions.locate import TileLocations, locate


@dataclass(frozen=True)
class Calibration:
    """What is known of a cycle.

    Attributes
    ----------
    located : dict[str, TileLocations]
        By sample.
    channels : list[tuple[Illumination, dict[str, Any]]]
        Of each channel its fields and numbers.
    """

    located: dict[str, TileLocations]
    channels: list[tuple[Illumination, dict[str, Any]]]


@dataclass(frozen=True)
class CalibrationSettings:
    """How a cycle is calibrated.

    ``max_shift_px``, ``false_match_probability``, ``method``, ``offset_counts`` and
    ``saturation_counts`` are keys of the configuration, see :mod:`tilewright.config.settings`; None
    is ``auto``. ``planes`` is how many evenly spaced z-planes are read.
    """

    max_shift_px: float | None = None
    false_match_probability: float = FALSE_MATCH_PROBABILITY
    method: Method = "auto"
    offset_counts: float | None = None
    saturation_counts: float | None = None
    planes: int = 5


def calibrate(
    channels: Sequence[TileSource],
    reference: int,
    files: Sequence[tuple[str | Path | None, str | Path | None]],
    settings: CalibrationSettings,
    *,
    workers: int = 1,
    scratch: Path | None = None,
) -> Calibration:
    """Calibrate the channels of one cycle of a scan.

    Parameters
    ----------
    channels : sequence of TileSource
        Raw tiles of all channels: the same tiles in the same order.
    reference : int
        The channel by which tiles are placed.
    files : sequence of (path or None, path or None)
        For each channel the flat-field and dark-field TIFF of method ``file``.
    settings : CalibrationSettings
        Keys of the configuration.
    workers : int
        Threads.
    scratch : Path, optional
        Folder for more than 256 MB of strips; without one memory holds all.

    Returns
    -------
    Calibration
        Positions by sample, and fields and numbers in the order of ``channels``.

    Raises
    ------
    ProcessingError
        There are no tiles.
    RawDataError
        A file cannot be used.
    ValueError
        A position is not finite, or an option is out of range.
    """
    located, measured = _measure_channels(channels, reference, settings, workers, scratch)
    measures, offset = [one.measures for one in measured], settings.offset_counts
    fields = estimate_channels(measures, files, method=settings.method, offset_counts=offset)
    numbered = [
        (illumination, numbers | _numbers(tiles, one, illumination))
        for tiles, one, (illumination, numbers) in zip(channels, measured, fields, strict=True)
    ]
    return Calibration(located, numbered)


class _Measured(NamedTuple):
    """What is stored of a channel until its flat-field is known."""

    measures: TileMeasures
    overlaps: list[Overlap]
    defects: CameraDefects | None
    bare: NDArray[np.bool_]


def _measure_channels(
    channels: Sequence[TileSource],
    reference: int,
    settings: CalibrationSettings,
    workers: int,
    scratch: Path | None,
) -> tuple[dict[str, TileLocations], list[_Measured]]:
    """Place the tiles by the reference channel, and measure all channels at these places.

    The reading of one channel is in memory at a time.
    """
    tiles = channels[reference]
    if not len(tiles.row):
        raise ProcessingError("there is no tile to place; check the manifest")
    plans = plan_strips(tiles.nominal_px, (tiles.shape[1], tiles.shape[2]), settings.max_shift_px)
    read = partial(
        read_channel,
        plans=plans,
        workers=workers,
        planes=settings.planes,
        saturation_counts=settings.saturation_counts,
        scratch=scratch,
    )
    reading = read(tiles, places_tiles=True)
    located = locate(
        tiles,
        plans,
        reading.firsts,
        reading.seconds,
        workers=workers,
        false_match_probability=settings.false_match_probability,
    )
    positions = _of_scan(located)
    measured = {reference: _measured(reading, plans, positions)}
    del reading
    for k, other in enumerate(channels):
        if k != reference:
            measured[k] = _measured(read(other, places_tiles=False), plans, positions)
    return located, [measured[k] for k in range(len(channels))]


def _measured(
    reading: ChannelReading, plans: Sequence[StripPlan], positions: Positions
) -> _Measured:
    place_px = np.stack([positions.y_px, positions.x_px], axis=1)
    return _Measured(
        measure_tiles(reading.binned, positions),
        compare_tiles(reading, plans, place_px),
        reading.defects,
        reading.bare,
    )


def _of_scan(located: Mapping[str, TileLocations]) -> Positions:
    """Return the positions of all samples in their scan, with islands of their own."""
    moved, islands = list[Positions](), 0
    for found in located.values():
        own, (y, x) = found.positions, found.origin_px
        moved.append(
            replace(own, y_px=own.y_px + y, x_px=own.x_px + x, island=own.island + islands)
        )
        islands += len(own.island)
    columns = zip(*(vars(own).values() for own in moved), strict=True)
    return Positions(*(np.concatenate(column) for column in columns))


def _numbers(tiles: TileSource, one: _Measured, illumination: Illumination) -> dict[str, Any]:
    """Return the numbers of a channel: see the module."""
    unlike = [overlap.tiles for overlap in one.overlaps if overlap.unlike]
    brightness = tile_brightness(one.measures, illumination, unlike)
    names, samples = tiles.name.tolist(), tiles.sample.tolist()
    found = {}
    for sample in dict.fromkeys(samples):
        overlaps = [overlap for overlap in one.overlaps if samples[overlap.tiles[0]] == sample]
        found[sample] = {
            "bare": tiles.name[one.bare & (tiles.sample == sample)].tolist(),
            "textured": sum(overlap.textured for overlap in overlaps),
            "unlike": [[names[k] for k in o.tiles] for o in overlaps if o.unlike],
            "corner_px": _median_corner([o.corner_px for o in overlaps if o.alike]),
            "brightness": {names[k]: v for k, v in brightness.items() if samples[k] == sample},
        }
    defects = None if one.defects is None else one.defects.pixel.tolist()
    return {"defects": defects, "samples": found}


def _median_corner(corner_px: list[float]) -> list[float] | None:
    """Return the median of displacements and its standard error; None of fewer than four."""
    if len(corner_px) < LEAST_VALUES:
        return None
    middle = float(np.median(corner_px))
    spread = float(mad_sigma(np.array(corner_px) - middle))
    # A median's standard error is 1.25 times a mean's.
    return [round(middle, 4), round(1.25 * spread / len(corner_px) ** 0.5, 4)]
