"""Rows of the tiles table for cycles that it lacks: of ``tilewright init --add`` and ``follow``."""

from collections.abc import Collection
from pathlib import Path

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import cycles_text
from tilewright.config.tile_table import Places, read_tiles, tiles_text
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata
from tilewright.init.place_samples import PlacedSample, add_sentences, below, place_cycles
from tilewright.init.place_tiles import GridOptions
from tilewright.io.formats import scan
from tilewright.io.formats.common import select_region
from tilewright.io.inputs.manifest import scan_options
from tilewright.runtime.files import write_text_atomic


def add_cycles(configfile: Path, options: GridOptions) -> str:
    """Add the rows of all cycles that the tiles table lacks; return what was found.

    Rows that exist stay byte for byte.

    Raises
    ------
    ConfigError
        The configuration or a table is wrong.
    RawDataError
        The raw folder of a sample cannot be read.
    """
    experiment = read_experiment(configfile)
    return "\n".join(add_rows(experiment, experiment.cycles, options)) or "no cycle is new"


def add_rows(experiment: Experiment, cycles: Collection[int], options: GridOptions) -> list[str]:
    """Add the rows of some cycles where the tiles table has none; return what was found.

    Parameters
    ----------
    cycles : collection of int
        Of the markers table.
    """
    settings = experiment.settings
    if settings.tiles is None:
        raise ConfigError("stitched images have no tiles table; nothing to add")
    path = Path(settings.tiles)
    pixel_um = settings.acquisition.pixel_um
    known = read_tiles(path, experiment.samples, pixel_um)
    metadata = Metadata([], experiment.reference_cycle, pixel_um=pixel_um)
    lines, text = [], ""
    for name, sample in experiment.samples.items():
        new = [cycle for cycle in cycles if (name, cycle) not in known]
        if not new:
            continue
        found = scan_options(sample.acquisition.model_dump())
        raw_dir = sample.raw_dir.resolve()
        planes = select_region(
            scan(sample.acquisition.convention, raw_dir, found), found.region, raw_dir
        )
        placed = place_cycles(
            [plane for plane in planes if plane.cycle in new],
            experiment.reference_channels,
            metadata,
            options,
            _earlier(known, name, experiment.reference_cycle),
        )
        result = PlacedSample(name, raw_dir, None)
        add_sentences(result, placed)
        lines += [f"{name}: {cycles_text([*placed])}"] if placed else []
        lines += result.findings + [f"warning: {line}" for line in result.warnings]
        lines += [f"fill in: {line}" for line in result.unknown]
        text += tiles_text(
            (
                row | {"sample": name, "cycle": cycle, "file": below(raw_dir, row)}
                for cycle, tiles in placed.items()
                for row in tiles.rows
            ),
            header=False,
        )
    if text:
        before = path.read_text("utf-8")
        write_text_atomic(path, before + "\n" * (not before.endswith("\n")) + text)
    return lines


def _earlier(
    known: Places, sample: str, reference_cycle: int
) -> dict[str, tuple[float, float]] | None:
    """Return the positions of the reference cycle, or of the first that the table has."""
    cycles = sorted(
        (cycle for name, cycle in known if name == sample),
        key=lambda cycle: (cycle != reference_cycle, cycle),
    )
    if not cycles:
        return None
    return {place.tile: (place.y_px, place.x_px) for place in known[sample, cycles[0]]}
