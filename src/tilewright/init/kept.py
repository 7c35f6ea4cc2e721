"""What the user of an experiment folder filled in, kept when ``tilewright init`` writes it anew."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.config.config_file import read_config
from tilewright.config.table_file import MOST_MB
from tilewright.config.tables import MARKER_COLUMNS, Channel, beside
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata
from tilewright.io.formats.common import RawPlane
from tilewright.io.numbers import finite, positive
from tilewright.io.text_file import read_text
from tilewright.runtime.files import csv_text


@dataclass(frozen=True)
class Kept:
    """Content of the files of an experiment folder."""

    config: dict[str, Any] = field(default_factory=dict)
    sample_rows: Sequence[Mapping[str, str]] = ()
    marker_rows: Sequence[Mapping[str, str]] = ()
    tile_rows: Sequence[Mapping[str, str]] = ()
    samples_table: Path = Path()

    @property
    def pattern(self) -> str | None:
        """The pattern of the files."""
        pattern = self.config.get("acquisition", {}).get("pattern")
        return None if pattern is None else str(pattern)

    def metadata(self, found: Metadata) -> Metadata:
        """Return metadata with the pixel size and the markers that were filled in."""
        pixel_um = self.config.get("acquisition", {}).get("pixel_um")
        markers = found.markers
        if rows := {_channel_of(row): row for row in self.marker_rows}:
            found_rows = [(m, rows.get((str(m.cycle), m.channel))) for m in markers]
            markers = [_filled_in(marker, row) for marker, row in found_rows if row]
        return replace(found, pixel_um=pixel_um or found.pixel_um, markers=markers)

    def named(
        self, samples: Sequence[tuple[str, Path, str | None]], planes: Sequence[RawPlane]
    ) -> list[tuple[str, Path, str | None]]:
        """Return the samples of the samples table that are in the raw folder, or those given."""
        if not self.sample_rows:
            return list(samples)
        regions = {plane.region for plane in planes}
        kept = []
        for row in self.sample_rows:
            region = row.get("region") or None
            raw = Path(beside(self.samples_table, row["raw_dir"])).resolve()
            own = raw in {path for _, path, _ in samples}
            if own and (region is None or region in regions):
                kept.append((row["sample"], raw, region))
        if not kept:
            names = ", ".join(row["sample"] for row in self.sample_rows)
            raise ConfigError(
                f"the samples table has no sample of this raw folder, only {names}; name another "
                "--output, or add a row for it"
            )
        return kept

    def tiles(self, rows: Sequence[dict[str, Any]], names: Collection[str]) -> list[dict[str, Any]]:
        """Return the rows of the tiles table, with what its user had filled in.

        That are tiles that were left out, positions where none is found, and rows of samples that
        are not in ``names``.
        """
        old = {_tile_of(row): row for row in self.tile_rows}
        merged = []
        for row in rows:
            before = old.get(_tile_of(row), {})
            if before.get("use", "").lower() in ("0", "false"):
                row = {**row, "use": 0}
            if not row["y"] and before.get("y"):
                row = {**row, **{key: before.get(key, "") for key in ("y", "x", "unit", "source")}}
            merged.append(row)
        return merged + [dict(row) for row in self.tile_rows if row["sample"] not in names]

    def known_tiles(self, pixel_um: float | None) -> dict[str, NDArray[np.float64]]:
        """Return the positions (n, 2) in px of the tiles of each sample."""
        known: dict[str, list[tuple[float, float]]] = {}
        for row in self.tile_rows:
            scale = pixel_um or 1.0 if row.get("unit") in ("um", "µm") else 1.0
            y, x = (finite(row.get(axis)) for axis in "yx")
            if y is not None and x is not None:
                known.setdefault(row["sample"], []).append((y / scale, x / scale))
        return {name: np.array(places) for name, places in known.items()}

    @property
    def samples(self) -> str:
        """Text of the samples table; "" where there is none."""
        rows = self.sample_rows
        return csv_text(list(rows[0]), rows, "\t") if rows else ""

    def markers_of(self, found: Metadata) -> str:
        """Return the text of the markers table, with the reference where it has no such column."""
        marked = {(str(m.cycle), m.channel) for m in found.markers if m.reference}
        rows = [
            {"reference": "TRUE" * (_channel_of(row) in marked), **row} for row in self.marker_rows
        ]
        ordered = [
            {column: row[column] for column in MARKER_COLUMNS if column in row} for row in rows
        ]
        return csv_text(list(ordered[0]), ordered) if ordered else ""


def read_kept(config: Path, samples: Path, tiles: Path, markers: Path) -> Kept:
    """Return what is filled in of the files that exist.

    Raises
    ------
    ConfigError
        One of them cannot be read.
    """
    content = read_config(config) if config.is_file() else {}
    filled = {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in content.items()
    }
    return Kept(
        filled,
        _rows(samples, "\t", "sample", "raw_dir"),
        _rows(markers, ",", "cycle", "channel", "marker"),
        _rows(tiles, ",", "sample", "cycle", "tile"),
        samples,
    )


def _rows(path: Path, delimiter: str, *needed: str) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        text = read_text(path, MOST_MB, ConfigError, utf16=False)
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path} cannot be read ({error}); correct it or move it away") from None
    for row in rows:
        # Spreadsheet programs may add empty cells to every row.
        more = row.pop(None, [])
        if any(more) or None in row.values() or any(column not in row for column in needed):
            raise ConfigError(f"{path}: a row has other columns; correct it or move it away")
    return [{key.strip(): text.strip() for key, text in row.items() if key} for row in rows]


def _filled_in(marker: Channel, row: Mapping[str, str]) -> Channel:
    """Return a marker as its row in the markers table has it."""
    return replace(
        marker,
        marker=row["marker"],
        emission_nm=positive(row.get("emission_nm")),
        exposure_ms=positive(row.get("exposure_ms")),
        reference=row["reference"].lower() == "true" if "reference" in row else marker.reference,
    )


def _channel_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Return cycle and channel of a row of the markers table."""
    return row["cycle"].lstrip("0") or "0", row["channel"]


def _tile_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return sample, cycle and tile of a row of the tiles table."""
    return row["sample"], str(row["cycle"]).lstrip("0") or "0", row["tile"]
