"""Tables that users write, read row by row into dataclasses whose types pydantic checks."""

import csv
import io
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tilewright.errors import ConfigError
from tilewright.io.text_file import read_content, read_text
from tilewright.runtime.text import printable, suggestion

#: No table has more: 100 bytes a row of 500,000 tiles.
MOST_MB = 50
_NAMES = {",": "commas", "\t": "tabs"}
_Row = TypeVar("_Row")
#: Columns whose values no two rows share, and what to do about rows that do.
Unique = dict[tuple[str, ...], str]


def read_table(
    path: Path,
    key: str,
    model: type[_Row],
    delimiter: str,
    unique: Unique,
    *,
    context: Any = None,
    may_be_empty: bool = False,
) -> list[tuple[int, _Row]]:
    """Return (line, row) of every row of a table.

    Parameters
    ----------
    path, key : Path, str
        The file, and the key of the configuration that names it.
    model : type
        A dataclass: its fields are the columns, needed where they have no default. Types take
        the text of a cell, which is not empty but where the column is needed. An error follows
        the column's name and that text: "must be" and the type's description, or what a
        validator says.
    delimiter : str
        A comma or a tab.
    unique : dict of tuple of str to str
        Columns whose values no two rows share, and what to do about rows that do.
    context : object, optional
        As validators see it.
    may_be_empty : bool
        Whether a table without rows is right.

    Raises
    ------
    ConfigError
        The table cannot be read, or with every row that is wrong.
    """
    lines = [*_lines(path, _read_text(path, key), delimiter, model)]
    if not lines and not may_be_empty:
        raise ConfigError(f"{path}: the table has no rows")
    adapter, rows, problems = TypeAdapter(model), list[tuple[int, _Row]](), list[str]()
    for line, cells in lines:
        try:
            rows.append((line, adapter.validate_python(cells, context=context)))
        except ValidationError as error:
            problems.append(f"{path}, row {line}: {_message(error, adapter, cells)}")
    problems += (f"{path}: duplicate {shared}" for shared in _duplicates(rows, unique))
    if problems:
        raise ConfigError(*problems)
    return rows


def _message(error: ValidationError, adapter: TypeAdapter[Any], cells: dict[str, str]) -> str:
    """Return what is wrong with the first cell that is not of its type."""
    problem = error.errors()[0]
    column = str(problem["loc"][0])
    description = adapter.json_schema()["properties"][column].get("description", "a text")
    reason = problem.get("ctx", {}).get("error") or f"must be {description}"
    return f"{column} {printable(repr(cells[column]), 200)} {reason}"


def _duplicates(rows: list[tuple[int, _Row]], unique: Unique) -> Iterator[str]:
    """Yield which values rows share, where no two may."""
    for columns, fix in unique.items():
        first: dict[tuple[Any, ...], int] = {}
        for line, row in rows:
            values = tuple(getattr(row, column) for column in columns)
            if first.setdefault(values, line) != line:
                name = " ".join(f"{c} '{v}'" for c, v in zip(columns, values, strict=True))
                yield f"{name} (rows {first[values]} and {line}); {fix}"


def _read_text(path: Path, key: str) -> str:
    """Return the text of a table, with or without a byte order mark."""
    try:
        content = read_content(path, MOST_MB, ConfigError)
    except ConfigError as error:
        raise ConfigError(f"the table of the key '{key}': {error}") from None
    if content[:2] == b"PK" or content[:4] == b"\xd0\xcf\x11\xe0":
        raise ConfigError(f"{path} is a workbook of a spreadsheet program; export it as text")
    return read_text(path, MOST_MB, ConfigError, utf16=False)


def _lines(
    path: Path, text: str, delimiter: str, model: type[Any]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, cell by column) of every row, without empty cells that no row needs."""
    needed = [field.name for field in fields(model) if field.default is MISSING]
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True, restval="")
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        while columns and not columns[-1]:  # as spreadsheet programs add
            columns.pop()
        _check_columns(path, columns, [field.name for field in fields(model)], needed, delimiter)
        reader.fieldnames = columns
        for row in reader:
            more: Any = row.pop(None, [])
            for cell in (*row.values(), *more):
                _check_cell(path, reader.line_num, cell)
            if any(cell.strip() for cell in more):
                raise ConfigError(
                    f"{path}, row {reader.line_num}: {len(columns) + len(more)} cells for "
                    f"{len(columns)} columns; quote a cell that holds the separator, and write "
                    "numbers with a decimal point"
                )
            cells = {column: cell.strip() for column, cell in row.items()}
            if any(cells.values()):
                yield reader.line_num, {c: text for c, text in cells.items() if text or c in needed}
    except csv.Error as error:
        raise ConfigError(
            f"{path}, line {reader.reader.line_num}: the line cannot be read ({error}); is a quote "
            "not closed?"
        ) from None


def _check_columns(
    path: Path, columns: list[str], known: list[str], needed: list[str], delimiter: str
) -> None:
    """Refuse columns that are unknown, missing or there twice."""
    if len(columns) == 1 and ";" in columns[0]:
        raise ConfigError(f"{path} is separated by semicolons; separate it by {_NAMES[delimiter]}")
    for column in columns:
        if column not in known:
            hint = suggestion(column, known)
            raise ConfigError(f"{path}: unknown column '{column[:40]}'; {hint}")
        if columns.count(column) > 1:
            raise ConfigError(f"{path}: duplicate column '{column}'; remove one")
    missing = [column for column in needed if column not in columns]
    if missing:
        raise ConfigError(f"{path}: the column '{missing[0]}' is missing")


def _check_cell(path: Path, line: int, cell: str) -> None:
    """Refuse a text that no cell has."""
    control = next((c for c in cell if not c.isprintable()), None)
    if control is not None:
        hint = "a quote is not closed" if control in "\r\n" else "write plain text"
        raise ConfigError(
            f"{path}, line {line}: {cell[:40]!r} holds the character U+{ord(control):04X}; {hint}"
        )
