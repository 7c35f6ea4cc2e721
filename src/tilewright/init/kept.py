"""What the user of an experiment folder filled in, kept when ``tilewright init`` writes it anew."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.config.config_file import read_config
from tilewright.config.tables import EARLIER_KEYS, MARKER_COLUMNS
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata
from tilewright.init.place_tiles import GridOptions


@dataclass(frozen=True)
class Kept:
    """Content of the files of an experiment folder, also of an earlier version.

    Attributes
    ----------
    config : dict
        Keys that this version knows.
    earlier : dict
        Keys of the section ``acquisition`` that the tables have replaced.
    samples, markers : str
        Text of the tables to write; "" where there are none.
    """

    config: dict[str, Any] = field(default_factory=dict)
    earlier: dict[str, Any] = field(default_factory=dict)
    sample_rows: Sequence[Mapping[str, str]] = ()
    marker_rows: Sequence[Mapping[str, str]] = ()
    tile_rows: Sequence[Mapping[str, str]] = ()

    @property
    def pattern(self) -> str | None:
        """The pattern of the files."""
        pattern = self.config.get("acquisition", {}).get("pattern")
        return None if pattern is None else str(pattern)

    def grid(self, options: GridOptions) -> GridOptions:
        """Return the options, with what an earlier configuration says where they are silent."""
        old = self.earlier
        columns = {key: row[key] for row in self.sample_rows for key in row if row[key]}
        rows, cols = (old.get(key, columns.get(key)) for key in ("rows", "cols"))
        overlap = old.get("overlap", columns.get("overlap"))
        try:
            return replace(
                options,
                rows=options.rows or (int(rows) if rows else None),
                cols=options.cols or (int(cols) if cols else None),
                layout=options.layout or old.get("layout", columns.get("layout")),
                overlap=float(overlap) if options.overlap is None and overlap else options.overlap,
                flip_y=options.flip_y or old.get("flip_y") is True,
                flip_x=options.flip_x or old.get("flip_x") is True,
                fill=options.fill or old.get("missing") == "fill",
            )
        except (TypeError, ValueError):
            raise ConfigError(
                f"rows, cols and overlap of the configuration are {rows}, {cols} and {overlap}; "
                "correct them"
            ) from None

    def metadata(self, found: Metadata) -> Metadata:
        """Return metadata with the pixel size and the reference of the configuration."""
        acquisition = self.config.get("acquisition", {})
        pixel_um = acquisition.get("pixel_um")
        markers = found.markers
        if self.marker_rows and "reference" in self.marker_rows[0]:
            marked = {
                (row["cycle"].lstrip("0"), row["channel"])
                for row in self.marker_rows
                if row["reference"].lower() == "true"
            }
            markers = [replace(m, reference=(str(m.cycle), m.channel) in marked) for m in markers]
        elif "reference_channel" in self.earlier:
            channel = str(self.earlier["reference_channel"])
            markers = [replace(m, reference=m.channel == channel) for m in markers]
        return replace(found, pixel_um=pixel_um or found.pixel_um, markers=markers)

    def named(
        self, samples: Sequence[tuple[str, Path, str | None]]
    ) -> list[tuple[str, Path, str | None]]:
        """Return the samples with the names, and only those, that the samples table has."""
        if not self.sample_rows:
            return list(samples)
        of_region = self.config.get("acquisition", {}).get("region")
        kept = []
        for row in self.sample_rows:
            region = row.get("region") or of_region
            kept.append((row["sample"], Path(row["raw_dir"]).resolve(), region and str(region)))
        return kept

    def leave_out(self, rows: list[dict[str, Any]]) -> None:
        """Set use to 0 in rows of the tiles table where it was."""
        names = ("sample", "cycle", "tile")
        unused = {
            tuple(row[name] for name in names)
            for row in self.tile_rows
            if row.get("use", "").lower() in ("0", "false")
        }
        for row in rows:
            if tuple(str(row[name]) for name in names) in unused:
                row["use"] = 0

    @property
    def samples(self) -> str:
        """Text of the samples table."""
        return _table(self.sample_rows, EARLIER_KEYS, "\t")

    def markers_of(self, found: Metadata) -> str:
        """Return the text of the markers table, with the reference where it has no such column."""
        marked = {(str(m.cycle), m.channel) for m in found.markers if m.reference}
        rows = [
            {"reference": "TRUE" * ((row["cycle"].lstrip("0"), row["channel"]) in marked), **row}
            for row in self.marker_rows
        ]
        ordered = [
            {column: row[column] for column in MARKER_COLUMNS if column in row} for row in rows
        ]
        return _table(ordered, (), ",")


def read_kept(config: Path, samples: Path, tiles: Path, markers: Path) -> Kept:
    """Return what is filled in of the files that exist.

    Raises
    ------
    ConfigError
        One of them cannot be read.
    """
    content = read_config(config) if config.is_file() else {}
    acquisition = content.get("acquisition")
    section = dict(acquisition) if isinstance(acquisition, dict) else {}
    earlier = {key: section.pop(key) for key in EARLIER_KEYS if key in section}
    filled = {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in {**content, "acquisition": section}.items()
    }
    return Kept(
        filled,
        earlier,
        _rows(samples, "\t", "sample", "raw_dir"),
        _rows(markers, ",", "cycle", "channel", "marker"),
        _rows(tiles, ",", "sample", "cycle", "tile"),
    )


def _rows(path: Path, delimiter: str, *needed: str) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        text = path.read_text("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read ({error}); correct it or move it away") from None
    for row in rows:
        if None in row or None in row.values() or any(column not in row for column in needed):
            raise ConfigError(f"{path}: a row has other columns; correct it or move it away")
    return rows


def _table(rows: Sequence[Mapping[str, str]], left_out: Sequence[str], delimiter: str) -> str:
    if not rows:
        return ""
    columns = [column for column in rows[0] if column not in left_out]
    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, columns, delimiter=delimiter, lineterminator="\n", extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
