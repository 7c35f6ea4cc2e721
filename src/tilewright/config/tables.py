"""The two tables of an experiment, samples and markers, checked line by line."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tilewright.config.settings import Settings
from tilewright.config.value_types import EMISSION_NM, suggestion
from tilewright.errors import ConfigError
from tilewright.installed import shipped
from tilewright.io.numbers import finite, positive
from tilewright.io.text_file import read_content, read_text
from tilewright.runtime.text import printable

#: No table has more: 100 bytes a row of 500,000 tiles.
MOST_MB = 50
_LONGEST_CELL = 1000
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,100}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,100}")
_SAMPLE_COLUMNS = ("sample", "raw_dir", "scan", "region")
MARKER_COLUMNS = (
    "cycle", "channel", "marker", "reference", "emission_nm", "exposure_ms", "background", "remove",
    "shift_px",
)  # fmt: skip


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


@dataclass(frozen=True)
class Sample:
    """One tissue: the folder of its raw tiles, and its region there if there are several.

    Samples of one ``scan``, by default those of one folder, share their flat-fields.
    """

    name: str
    raw_dir: Path
    region: str | None = None
    scan: str = ""


@dataclass(frozen=True)
class Channel:
    """One channel of one cycle.

    ``background`` is the marker whose image is subtracted from this one's; a channel to
    ``remove`` is left out of the final image. Of each cycle one channel is its ``reference``, by
    which tiles are placed and cycles registered: usually nuclei.
    """

    cycle: int
    channel: str
    marker: str
    emission_nm: float | None
    exposure_ms: float | None
    background: str | None = None
    remove: bool = False
    reference: bool = False
    shift_px: tuple[float, float] = (0.0, 0.0)
    """(y, x) by which the optics displace it against the reference channel."""


def _model_at(location: tuple[str, ...]) -> type[BaseModel]:
    """Return the model that holds the key at ``location``."""
    model: type[BaseModel] = Settings
    for part in location[:-1]:
        # Names of rules and metrics are no fields.
        if field := model.model_fields.get(part):
            kinds = (field.annotation, *get_args(field.annotation))
            model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return model


def cycles_text(cycles: Sequence[int]) -> str:
    """Return cycles as text.

    >>> cycles_text([1]), cycles_text([1, 2, 4])
    ('cycle 1', 'cycles 1, 2, 4')
    """
    return f"cycle{'s' * (len(cycles) > 1)} {', '.join(map(str, cycles))}"


_NAMES = {",": "commas", "\t": "tabs"}
#: Parts that pydantic adds to a key whose value has several types.
_VALUE_TYPE = re.compile(r"constrained-|literal\[|tuple\[")


def key_of(problem: Any) -> tuple[str, ...]:
    """Return the parts of the key of a pydantic problem, without types of values."""
    first, *rest = map(str, problem["loc"])
    return first, *(part for part in rest if not _VALUE_TYPE.match(part))


def problem_message(problem: Any) -> str:
    """Return the message for one pydantic problem."""
    location = key_of(problem)
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        hint = suggestion(location[-1], _model_at(location).model_fields, "known keys")
        return f"unknown key '{key}'; {hint}"
    if problem["type"] == "missing":
        return f"the key '{key}' is missing; {shipped('config') / 'README.md'} describes it"
    value = problem.get("input")
    if value is None:
        return f"'{key}' is not filled in; {shipped('config') / 'README.md'} describes it"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"'{key}' is {printable(repr(value), 200)}: {message}"


def _read_text(path: Path, key: str) -> str:
    """Return the text of a table, with or without a byte order mark."""
    try:
        content = read_content(path, MOST_MB, ConfigError)
    except ConfigError as error:
        raise ConfigError(f"the table of the key '{key}': {error}") from None
    if content[:2] == b"PK" or content[:4] == b"\xd0\xcf\x11\xe0":
        raise ConfigError(f"{path} is a workbook of a spreadsheet program; export it as text")
    return read_text(path, MOST_MB, ConfigError, utf16=False)


def _cells(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of every line that is not empty."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            for cell in cells:
                if len(cell) > _LONGEST_CELL:
                    raise csv.Error(f"a cell of {len(cell)} characters")
                control = next((c for c in cell if not c.isprintable()), None)
                if control is not None:
                    hint = "a quote is not closed" if control in "\r\n" else "write plain text"
                    raise ConfigError(
                        f"{path}, line {reader.line_num}: {cell[:40]!r} holds the character "
                        f"U+{ord(control):04X}; {hint}"
                    )
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ConfigError(
            f"{path}, line {reader.line_num}: the line cannot be read ({error}); is a quote not "
            "closed?"
        ) from None


def table_rows(
    path: Path,
    key: str,
    delimiter: str,
    known: tuple[str, ...],
    needed: int,
    *,
    may_be_empty: bool = False,
) -> list[Any]:
    """Return (line, row) items of a table whose first ``needed`` columns must be present."""
    lines = list(_cells(path, _read_text(path, key), delimiter))
    columns = [column.strip() for column in lines[0][1]] if lines else []
    while columns and not columns[-1]:  # as spreadsheet programs add
        columns.pop()
    if len(columns) == 1 and ";" in columns[0]:
        raise ConfigError(f"{path} is separated by semicolons; separate it by {_NAMES[delimiter]}")
    for column in columns:
        if column not in known:
            hint = suggestion(column, known, "known")
            raise ConfigError(f"{path}: unknown column '{column[:40]}'; {hint}")
        if columns.count(column) > 1:
            raise ConfigError(f"{path}: duplicate column '{column}'; remove one")
    missing = [column for column in known[:needed] if column not in columns]
    if missing:
        raise ConfigError(f"{path}: the column '{missing[0]}' is missing")
    if len(lines) == 1 and not may_be_empty:
        raise ConfigError(f"{path}: the table has no rows")
    for line, cells in lines[1:]:
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise ConfigError(
                f"{path}, row {line}: {len(cells)} cells for {len(columns)} columns; quote a "
                "cell that holds the separator, and write numbers with a decimal point"
            )
    return [
        (line, {c: t.strip() for c, t in zip_longest(columns, cells[: len(columns)], fillvalue="")})
        for line, cells in lines[1:]
    ]


def read_rows(path: Path, rows: list[Any], read: Callable[[Any], Any]) -> list[Any]:
    """Return all rows as ``read`` returns them; errors name their row."""

    def read_row(number: int, row: Any) -> Any:
        try:
            return read(row)
        except ValidationError as error:
            message = problem_message(error.errors()[0])
            raise ConfigError(f"{path}, row {number}: {message}") from None
        except ValueError as error:
            raise ConfigError(f"{path}, row {number}: {error}") from None

    return collect_errors(*(partial(read_row, *row) for row in rows))


def refuse_duplicates(path: Path, rows: list[Any], *columns: str, fix: str = "remove one") -> None:
    """Refuse rows that have the same values in some columns."""

    def cell(row: dict[str, str], column: str) -> str:
        text = row[column]
        return text.lstrip("0").rjust(1, "0") if text and column == "cycle" else text

    first: dict[tuple[str, ...], int] = {}
    problems = []
    for number, row in rows:
        key = tuple(cell(row, column) for column in columns)
        if all(key) and first.setdefault(key, number) != number:
            name = " ".join(f"{column} '{text}'" for column, text in zip(columns, key, strict=True))
            problems.append(f"{path}: duplicate {name} (rows {first[key]} and {number}); {fix}")
    if problems:
        raise ConfigError(*problems)


def positive_number(row: dict[str, str], column: str) -> float | None:
    """Read an optional positive number."""
    text = row.get(column)
    value = positive(text)
    if text and value is None:
        raise ValueError(f"{column} is '{text}'; give a positive number with a decimal point")
    return value


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
    rows = table_rows(path, "markers", ",", MARKER_COLUMNS, 3)
    channels, *_ = collect_errors(
        lambda: read_rows(path, rows, _channel),
        lambda: refuse_duplicates(path, rows, "marker", fix="rename one"),
        lambda: refuse_duplicates(path, rows, "cycle", "channel"),
    )
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


def _channel(row: dict[str, str]) -> Channel:
    """Return the channel of a row; ValueError if the row is wrong."""
    marker, token, cycle = row["marker"], row["channel"], row["cycle"]
    if not re.fullmatch(r"[0-9]{1,6}", cycle):
        raise ValueError(f"cycle '{cycle}' is not a number")
    if not re.fullmatch(r"[A-Za-z0-9-]{1,50}", token):
        raise ValueError(f"channel '{token}' must be letters, digits and '-', at most 50")
    if not 0 < len(marker) <= 100:
        what = "a name of over 100 characters; shorten it" if marker else "no name; give one"
        raise ValueError(f"the marker has {what}")
    if is_formula(marker):
        raise ValueError(
            f"a spreadsheet program computes the marker '{marker}'; write it without the "
            f"'{marker[0]}' at its beginning"
        )
    emission_nm = positive_number(row, "emission_nm")
    problem = None if emission_nm is None else EMISSION_NM.message(emission_nm)
    if problem:
        raise ValueError(f"emission_nm is {row['emission_nm']}: {problem}")
    exposure_ms, background = positive_number(row, "exposure_ms"), row.get("background") or None
    flags = _flag(row, "remove"), _flag(row, "reference")
    shift_px = _shift(row.get("shift_px", ""))
    return Channel(
        int(cycle), token, marker, emission_nm, exposure_ms, background, *flags, shift_px
    )


def is_formula(text: str) -> bool:
    """Return whether spreadsheet programs compute a text, where they should show it.

    >>> is_formula("=A1"), is_formula("-CD3"), is_formula("-3"), is_formula("CD3-")
    (True, True, False, False)
    """
    return text[:1] in ("=", "+", "@") or (text[:1] == "-" and finite(text) is None)


def _shift(text: str) -> tuple[float, float]:
    """Return the (y, x) of a cell; none where it is empty.

    >>> _shift("0.4 -1.25"), _shift("")
    ((0.4, -1.25), (0.0, 0.0))
    """
    numbers = [finite(part) for part in text.split()] or [0.0, 0.0]
    match numbers:
        case [float(y), float(x)]:
            return y, x
    raise ValueError(f"shift_px is '{text}'; write y and x in pixels, such as 0.4 -1.25")


def _flag(row: dict[str, str], column: str) -> bool:
    """Return whether a cell holds TRUE, as spreadsheet programs write it."""
    text = row.get(column, "").lower()
    if text not in ("true", "false", ""):
        raise ValueError(f"{column} is '{row[column]}'; write TRUE, or leave the cell empty")
    return text == "true"


def beside(table: Path, folder: str) -> str:
    """Return the path of a folder that a table names: beside the table, else as it is written."""
    path = table.parent / folder
    # Path.is_dir raises for names that are too long.
    return str(path) if folder and os.path.isdir(path) else folder  # noqa: PTH112


def read_samples(path: Path) -> dict[str, Sample]:
    r"""Return the samples in a tab-separated samples table.

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

    def read(row: dict[str, str]) -> Sample:
        name, raw_dir, region = row["sample"], beside(path, row["raw_dir"]), row.get("region")
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"sample '{name}' must be letters, digits, '_' and '-', at most 100")
        if region and not _REGION.fullmatch(region):
            raise ValueError(f"region '{region}' must be letters, digits and '-', at most 100")
        # Path.is_dir raises for names that are too long and parents that are closed.
        if not raw_dir or not os.path.isdir(raw_dir):  # noqa: PTH112
            raise ValueError(
                f"the raw_dir '{raw_dir[:200]}' is not a folder that can be opened; correct "
                "it; '~' and '$' are not expanded"
            )
        scan = row.get("scan") or str(Path(raw_dir).resolve())
        return Sample(name, Path(raw_dir), region or None, scan)

    rows = table_rows(path, "samples", "\t", _SAMPLE_COLUMNS, 2)
    samples, _ = collect_errors(
        lambda: read_rows(path, rows, read), lambda: refuse_duplicates(path, rows, "sample")
    )
    return {sample.name: sample for sample in samples}
