"""The tables of an experiment: samples, markers and tiles."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, ValidationInfo

from tilewright.config.table_file import Unique, read_table
from tilewright.errors import ConfigError
from tilewright.io.inputs.placed_planes import TilePlace
from tilewright.io.numbers import finite

#: Units of positions, also as spreadsheet programs and other software write them.
_UNITS = {"um": "um", "µm": "um", "μm": "um", "px": "px", "pixel": "px"}


def collect_errors(*checks: Callable[[], Any]) -> list[Any]:
    """Return the results of all checks; raise their errors as one."""
    results, errors = [], list[ConfigError]()
    for check in checks:
        try:
            results.append(check())
        except ConfigError as error:
            errors.append(error)
    if errors:
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else ConfigError
        # Two checks may report the same problem.
        raise kind(*dict.fromkeys(text for error in errors for text in error.args)) from None
    return results


def cycles_text(cycles: Sequence[int]) -> str:
    """Return cycles as text.

    >>> cycles_text([1]), cycles_text([1, 2, 4])
    ('cycle 1', 'cycles 1, 2, 4')
    """
    return f"{'cycles' if len(cycles) > 1 else 'cycle'} {', '.join(map(str, cycles))}"


def is_formula(text: str) -> bool:
    """Return whether spreadsheet programs compute a text, where they should show it.

    >>> is_formula("=A1"), is_formula("-CD3"), is_formula("-3"), is_formula("CD3-")
    (True, True, False, False)
    """
    return text[:1] in ("=", "+", "@") or (text[:1] == "-" and finite(text) is None)


def beside(table: Path, folder: str) -> str:
    """Return the path of a folder that a table names: beside the table, else as it is written."""
    path = table.parent / folder
    # Path.is_dir raises for names that are too long.
    return str(path) if folder and os.path.isdir(path) else folder  # noqa: PTH112


def _no_formula(text: str) -> str:
    if is_formula(text):
        raise ValueError(
            f"is computed by spreadsheet programs; write it without the '{text[0]}' at its "
            "beginning"
        )
    return text


def _raw_dir(text: str, info: ValidationInfo) -> str:
    """Return the path of a folder; the context is that of the table."""
    raw_dir = beside(cast(Path, info.context), text)
    # Path.is_dir raises for names that are too long and parents that are closed.
    if not raw_dir or not os.path.isdir(raw_dir):  # noqa: PTH112
        raise ValueError(
            "is not a folder that can be opened; correct it; '~' and '$' are not expanded"
        )
    return raw_dir


def _known(text: str, info: ValidationInfo) -> str:
    """Return the name of a sample; the context are those of the samples table."""
    if text not in cast(set[str], info.context):
        raise ValueError("is not in the samples table")
    return text


_Cycle = Annotated[int, Field(ge=0, le=999_999, description="a number")]
_Flag = Annotated[bool, Field(description="TRUE, or empty")]
#: NaN where it is to be filled in.
_Coordinate = Annotated[
    float,
    BeforeValidator(lambda text: "nan" if text == "" else finite(text)),
    Field(description="a position, written with a decimal point"),
]
_TOKEN = Field(pattern="^[A-Za-z0-9-]{1,50}$", description="letters, digits and '-', at most 50")


@dataclass(frozen=True)
class Sample:
    """A row of the samples table: one tissue, in the folder of its raw tiles.

    Attributes
    ----------
    scan : str
        Samples of one scan, without one those of one folder, share their flat-fields.
    region : str | None
        Its piece of tissue, where the folder has several.
    """

    sample: Annotated[
        str,
        Field(
            pattern="^[A-Za-z0-9_-]{1,100}$",
            description="letters, digits, '_' and '-', at most 100",
        ),
    ]
    raw_dir: Annotated[Path, BeforeValidator(_raw_dir)]
    scan: str = ""
    region: Annotated[str | None, _TOKEN] = None

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self.sample


@dataclass(frozen=True)
class Channel:
    """A row of the markers table: one channel of one cycle.

    ``background`` is the marker whose image is subtracted from this one's; a channel to
    ``remove`` is left out of the final image. Of each cycle one channel is its ``reference``, by
    which tiles are placed and cycles registered: usually nuclei.

    Attributes
    ----------
    shift_px : tuple[float, float]
        (y, x) by which the optics displace it against the reference channel.
    """

    cycle: _Cycle
    channel: Annotated[str, _TOKEN]
    marker: Annotated[
        str,
        Field(min_length=1, max_length=100, description="a name of 1 to 100 characters"),
        AfterValidator(_no_formula),
    ]
    reference: _Flag = False
    emission_nm: Annotated[
        float | None,
        Field(ge=200, le=2000, description="from 200 to 2000, written with a decimal point"),
    ] = None
    exposure_ms: Annotated[
        float | None,
        Field(gt=0, lt=1e15, description="a positive number, written with a decimal point"),
    ] = None
    background: str | None = None
    remove: _Flag = False
    shift_px: Annotated[
        tuple[FiniteFloat, FiniteFloat],
        BeforeValidator(str.split),
        Field(description="y and x in pixels, such as 0.4 -1.25"),
    ] = (0.0, 0.0)


@dataclass(frozen=True)
class TileRow:
    """A row of the tiles table: where one tile of one cycle lies, and whether it is used."""

    sample: Annotated[str, BeforeValidator(_known)]
    cycle: _Cycle
    tile: Annotated[
        str, Field(min_length=1, max_length=50, description="a name of 1 to 50 characters")
    ]
    y: _Coordinate
    x: _Coordinate
    unit: Annotated[
        Literal["um", "px"],
        BeforeValidator(lambda text: _UNITS.get(text.lower())),
        Field(description="um or px"),
    ]
    source: str = ""
    file: str = ""
    use: Annotated[bool, Field(description="1, or 0 to leave the tile out")] = True


TILE_COLUMNS = tuple(field.name for field in fields(TileRow))

#: Tiles by sample and cycle.
Places = dict[tuple[str, int], list[TilePlace]]


def read_samples(path: Path) -> dict[str, Sample]:
    r"""Return the samples in a tab-separated samples table by name.

    Raises
    ------
    ConfigError
        The table is missing, or one of its rows is wrong; the message names the row.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "samples.tsv")
    >>> _ = path.write_text(f"sample\traw_dir\tregion\ntonsil\t{path.parent}\t2\n")
    >>> read_samples(path)["tonsil"].region
    '2'
    """
    rows = read_table(path, "samples", Sample, "\t", {("sample",): "remove one"}, context=path)
    return {sample.name: sample for _, sample in rows}


def read_markers(path: Path) -> tuple[Channel, ...]:
    r"""Return the channels in a markers table, ordered by cycle.

    Raises
    ------
    ConfigError
        The table is missing, or one of its rows is wrong; the message names the row.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "markers.csv")
    >>> _ = path.write_text("cycle,channel,marker,reference\n1,1,DAPI,TRUE\n1,2,CD3\n")
    >>> [channel.marker for channel in read_markers(path)]
    ['DAPI', 'CD3']
    >>> _ = path.write_text("cycle,channel,marker\n1,1,DAPI\n1,2,DAPI\n")
    >>> read_markers(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tilewright.errors.ConfigError: ... duplicate marker 'DAPI' (rows 2 and 3); rename one
    """
    unique: Unique = {("marker",): "rename one", ("cycle", "channel"): "remove one"}
    channels = [channel for _, channel in read_table(path, "markers", Channel, ",", unique)]
    _check_references(path, channels)
    return tuple(sorted(channels, key=lambda channel: channel.cycle))


def _check_references(path: Path, channels: Sequence[Channel]) -> None:
    """Refuse a table that does not mark one channel of each cycle as reference."""
    marked = Counter(channel.cycle for channel in channels if channel.reference)
    wrong = sorted({channel.cycle for channel in channels if marked[channel.cycle] != 1})
    if not wrong:
        return
    names = ", ".join(f"'{one.marker}'" for one in channels if one.cycle == wrong[0])
    raise ConfigError(
        f"{path}: {cycles_text(wrong)} {'has' if len(wrong) == 1 else 'have'} "
        f"{'several reference channels' if marked[wrong[0]] else 'no reference channel'}; "
        "write TRUE into the column 'reference' in the row of the one channel that shows nuclei "
        f"(cycle {wrong[0]} has {names})"
    )


def read_tiles(path: Path, samples: Iterable[str], pixel_um: float) -> Places:
    r"""Return the tiles of every sample and cycle in a tiles table, in pixels.

    ``samples`` are the names in the samples table.

    Raises
    ------
    ConfigError
        The table is missing, or one of its rows is wrong; the message names the row.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "tiles.csv")
    >>> _ = path.write_text("sample,cycle,tile,y,x,unit\na,1,1,0,0,um\na,1,2,0,70,um\n")
    >>> [(place.tile, place.x_px) for place in read_tiles(path, ["a"], 0.5)["a", 1]]
    [('1', 0.0), ('2', 140.0)]
    """
    unique: Unique = {("sample", "cycle", "tile"): "remove one"}
    places: Places = {}
    for line, row in read_table(
        path, "tiles", TileRow, ",", unique, context=set(samples), may_be_empty=True
    ):
        scale = pixel_um if row.unit == "um" else 1
        place = TilePlace(row.tile, row.y / scale, row.x / scale, row.use, f"{path}, row {line}")
        places.setdefault((row.sample, row.cycle), []).append(place)
    return places
