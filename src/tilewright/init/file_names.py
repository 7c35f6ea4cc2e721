"""What names of files say: which words and numbers are cycle, channel, tile, row and so on.

Names are split into parts at one separator, so that all have the same number of parts. A part that
varies is a number behind constant letters (``cyc002``, ``R1``, ``Z001``, ``007``), or a word
(``DAPI``, ``CD3``, ``BETA AMYLOID``). Letters that are known say what a number counts; words are
channels where one of them names a stain or a filter. What neither shows is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tilewright.io.formats.common import natural_key
from tilewright.io.formats.names import FIELDS, compile_pattern
from tilewright.runtime.text import few

#: Separators at which names are split into parts, tried in this order.
_SEPARATORS = ("_", "_ ", "_-", "_.", "-", " ", ".", "_ -.")
#: Words of stains and filters: a part that holds one of them is the channel.
_STAIN = re.compile(
    r"(?i)(?<![a-z])(dapi|hoechst\d*|draq ?[57]|sytox|dna|[fg]itc|tritc|gfp|rfp|yfp|cfp|mcherry"
    r"|txred|texas ?red|cy ?[2357](\.5)?|(af|alexa ?(fluor)?|atto|dy) ?-?\d{3}|pe|apc|bv\d{3}"
    r"|cd\d+[a-z]*|blank|autofluorescence|af|empty|panck|ki-?67|vim(entin)?|sma|a-?sma)(?![a-z])"
)

_NUCLEAR = re.compile(r"(?i)(?<![a-z])(dapi|hoechst|draq ?[57]|sytox)")
#: Share of all combinations of tiles with channels, and with z-planes, that files hold at least. A
#: number that counts files of two channels holds half of them, a scan that was stopped nearly all.
_COMPLETE = 0.75


@dataclass(frozen=True)
class Names:
    """What names of files say.

    Attributes
    ----------
    pattern : str or None
        As ``acquisition.pattern`` holds it; None where names leave it open.
    seen : tuple of str
        A sentence part for each field, such as ``cycle ← R1, R2``.
    question : str
        What the names leave open, with the patterns that fit; empty where nothing.
    """

    pattern: str | None
    seen: tuple[str, ...] = ()
    question: str = ""


@dataclass
class _Column:
    """Numbers or words at one place of all names.

    Attributes
    ----------
    letters : str
        Those before the number, in lower case; empty of a word.
    is_word : bool
        Whether it is a word, or a number behind letters that differ.
    field : str
        The field that it is; ``*`` where others say the same, empty where that is not known.
    """

    values: tuple[str, ...]
    letters: str = ""
    is_word: bool = False
    field: str = ""

    @property
    def numbers(self) -> list[int]:
        """Its distinct values as numbers."""
        return sorted({int(value) for value in self.values})


@dataclass
class _Layout:
    """Columns, and the texts before, between and behind them."""

    texts: list[str] = field(default_factory=lambda: [""])
    columns: list[_Column] = field(default_factory=list)

    def pattern(self, of_unknown: str = "?") -> str:
        """Return the pattern of all names."""
        fields = [one.field or of_unknown for one in self.columns]
        shown = ["*" if name == "*" else f"{{{name}}}" for name in fields]
        return "".join(text + one for text, one in zip(self.texts, [*shown, ""], strict=True))

    def of(self, *names: str) -> list[_Column]:
        """Return the columns of some fields."""
        return [one for one in self.columns if one.field in names]


def read_names(paths: Sequence[str], hints: Mapping[str, Iterable[str]]) -> Names:
    """Return what the names of all files say.

    Parameters
    ----------
    paths : sequence of str
        Relative to the raw folder, with ``/``.
    hints : mapping
        Field to the letters before its number.

    Examples
    --------
    >>> hints = {"cycle": ["cycle"], "row": ["r"], "col": ["c"], "channel": ["ch"]}
    >>> names = [f"cycle{i}/r{r}_c{c}_{word}.tif" for i in "12" for r in "01" for c in "01"
    ...          for word in ("DAPI", "CD3")]
    >>> read_names(names, hints).pattern
    'cycle{cycle}/r{row}_c{col}_{channel}.tif'
    >>> read_names([f"{a}_{b}.tif" for a in "12" for b in "12"], hints).question.partition(":")[0]
    'names like {?}_{?}.tif hold numbers 1, 2; numbers 1, 2'
    """
    if not paths or any(set(path) & set("{}*") for path in paths):
        return Names(None)
    of_letters = {word: name for name, words in hints.items() for word in words}
    layout = _split(paths, of_letters)
    if layout is None:
        forms = Counter(re.sub(r"\d+", "#", path) for path in paths)
        return Names(None, question=f"names have several forms: {few(sorted(forms), 5)}")
    _name_numbers(layout, of_letters)
    _name_words(layout)
    _agree(layout)
    _drop_repeated(layout, len(paths))
    _name_last_number(layout)
    if _is_sure(layout, len(paths)) and _reads_back(layout, paths):
        shown = {one.field: one.values for one in reversed(layout.columns) if one.field != "*"}
        order = [name for name in FIELDS if name in shown]
        return Names(layout.pattern(), tuple(f"{n} ← {_range(shown[n])}" for n in order))
    return Names(None, question=_question(layout))


def _split(paths: Sequence[str], of_letters: Mapping[str, str]) -> _Layout | None:
    """Return the columns of names; None where they have no common form."""
    if len({path.count("/") for path in paths}) != 1:
        return None
    levels = [list(level) for level in zip(*(path.split("/") for path in paths), strict=True)]
    suffixes = {_suffix(name) for name in levels[-1]}
    if len(suffixes) != 1:
        return None
    suffix = suffixes.pop()
    levels[-1] = [name.removesuffix(suffix) for name in levels[-1]]
    layout = _Layout()
    for number, names in enumerate(levels):
        layout.texts[-1] += "/" * (number > 0)
        for separator, values in _parts(names):
            layout.texts[-1] += separator
            for piece in _columns(values):
                if isinstance(piece, str):
                    layout.texts[-1] += piece
                    continue
                if not piece.is_word:  # those of "Cycle 1" and "tile_001" too
                    piece.letters = _letters_before(layout.texts[-1])
                if _varies(piece, of_letters):
                    layout.columns.append(piece)
                    layout.texts.append("")
                else:
                    layout.texts[-1] += piece.values[0]
    layout.texts[-1] += suffix
    return layout


def _letters_before(text: str) -> str:
    """Return the letters that end a text, but for separators, in its folder or file alone."""
    found = re.search(r"([a-z]+)[^a-z0-9]*$", text.rsplit("/", 1)[-1].lower())
    return found[1] if found else ""


def _varies(column: _Column, of_letters: Mapping[str, str]) -> bool:
    """Return whether a column is read: it varies, or names the only cycle or channel."""
    named = of_letters.get(column.letters) in ("cycle", "channel") and len(column.letters) > 1
    return named or len(set(column.values)) > 1


def _suffix(name: str) -> str:
    """Return ``.tif``, ``.ome.tif`` and so on."""
    found = re.search(r"(?i)(\.ome)?\.tiff?$", name)
    return found[0] if found else PurePosixPath(name).suffix


def _parts(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return separators and parts of names of one level; one part may hold the separator itself.

    Of the separators that give all names the same form, that which leaves fewest within words; if
    there is none, each name is one part.
    """
    found = [[("", tuple(names))]]
    for characters in _SEPARATORS:
        split = [re.split(f"([{re.escape(characters)}])", name) for name in names]
        if len({len(one) for one in split}) > 1:
            split = _joined(split)
        if split and len({tuple(one[1::2]) for one in split}) == 1:
            found.append([
                (split[0][k - 1] if k else "", tuple(one[k] for one in split))
                for k in range(0, len(split[0]), 2)
            ])  # fmt: skip
    return min(found, key=_separators_in_words)


def _separators_in_words(parts: Sequence[tuple[str, tuple[str, ...]]]) -> int:
    """Return how many separators the parts hold that are no numbers behind constant letters."""
    forms = ({re.sub(r"\d+", "#", value) for value in values} for _, values in parts)
    words = (one for one in forms if len(one) > 1 or "#" not in next(iter(one)))
    return sum(max(len(re.findall(r"[_. -]", form)) for form in one) for one in words)


def _joined(split: list[list[str]]) -> list[list[str]]:
    """Return names of different numbers of parts with those of one word joined; [] if unclear.

    All parts before and behind that word are numbers of the same form, or the same in all names.
    """
    least = min(len(one) for one in split)
    found = []
    for at in range(0, least, 2):
        after = least - at - 1
        parts = [
            [*one[:at], "".join(one[at : len(one) - after]), *one[len(one) - after :]]
            for one in split
        ]
        columns = list(zip(*parts, strict=True))
        regular = all(
            len({re.sub(r"\d+", "#", value) for value in column}) == 1
            for k, column in enumerate(columns) if k != at
        )  # fmt: skip
        if regular:
            found.append(parts)
    return found[0] if len(found) == 1 else []


def _columns(values: tuple[str, ...]) -> list[str | _Column]:
    """Return the texts and columns of one part of all names."""
    forms = {re.sub(r"\d+", "#", value) for value in values}
    form = next(iter(forms))
    if len(set(values)) == 1 and "#" not in form:
        return [values[0]]
    if len(forms) > 1 or "#" not in form:
        return [_Column(values, is_word=True)]
    if form.count("#") == 1 and _STAIN.search(values[0]) and len(set(values)) > 1:
        return [_Column(values, is_word=True)]  # CD3 and CD8 are words
    found: list[str | _Column] = []
    pieces = form.split("#")
    numbers = zip(*(re.findall(r"\d+", value) for value in values), strict=True)
    for piece, column in zip(pieces, numbers, strict=False):
        found += [piece, _Column(column)]
    return [*found, pieces[-1]]


def _name_numbers(layout: _Layout, of_letters: Mapping[str, str]) -> None:
    """Name numbers by the letters before them."""
    numbers = [one for one in layout.columns if not one.is_word]
    for one in numbers:
        one.field = of_letters.get(one.letters, "")
    # of two that may be rows, as R1 and Y2, the one with more letters is, or the y of x and y
    rows, columns = (
        sorted(layout.of(name), key=lambda one: (one.letters in ("r", "c"), -len(one.letters)))
        for name in ("row", "col")
    )
    for same in (rows, columns):
        if len({one.letters for one in same}) < len(same):  # C01 and c1: which is which?
            for one in same:
                one.field = ""
            return
    pairs = min(len(rows), len(columns), 1)
    for one in rows[pairs:]:  # R1, R2 beside other numbers or words are rounds
        alone = len(layout.columns) == 1 or bool(layout.of("cycle"))
        one.field = "cycle" if one.letters == "r" and not alone else ""
    for one in columns[pairs:]:
        one.field = "channel" if one.letters == "c" and not layout.of("channel") else ""
    for one in [*layout.of("row"), *layout.of("col")]:
        # more than twice as many numbers as there are values: places of the stage, as x1200
        if one.numbers[-1] - one.numbers[0] >= 2 * len(one.numbers) + 2:
            one.field = ""


def _name_words(layout: _Layout) -> None:
    """Name words that are channels, as one of them is a stain or a filter."""
    words = [one for one in layout.columns if one.is_word]
    stains = [one for one in words if any(map(_STAIN.search, one.values))]
    nuclear = [one for one in stains if any(map(_NUCLEAR.search, one.values))]
    for one in (nuclear or stains)[:1]:
        one.field = "channel"


def _agree(layout: _Layout) -> None:
    """Of columns of one field keep those that agree; a word names a channel, and no number."""
    for name in {one.field for one in layout.columns} - {""}:
        first, *others = sorted(layout.of(name), key=lambda one: not one.is_word)
        for one in others:
            if one.values != first.values:
                same = _follows(one, [first]) or (first.is_word and name == "channel")
                one.field = "*" if same else ""


def _drop_repeated(layout: _Layout, files: int) -> None:
    """Leave out columns that follow from others: of each cycle, channel or tile, or of each file.

    A part that is another one in each file, as a time, is left out where the others tell files
    apart.
    """
    named = [one for one in layout.columns if one.field not in ("", "*")]
    apart = _count(named) == files
    for one in layout.columns:
        follows = any(_follows(one, [other]) for other in named)
        follows = follows or _follows(one, layout.of("cycle", "channel"))
        if not one.field and (follows or (apart and len(set(one.values)) == files)):
            one.field = "*"


def _follows(one: _Column, others: Sequence[_Column]) -> bool:
    """Return whether the values of a column follow from those of others, which repeat."""
    keys = _count(others)
    return bool(others) and keys < len(one.values) and _count([*others, one]) == keys


def _count(columns: Sequence[_Column]) -> int:
    """Return how many combinations of values there are."""
    return len(set(zip(*(one.values for one in columns), strict=True)))


def _name_last_number(layout: _Layout) -> None:
    """Name the only number without a field: it is the tile's, where no tile or row is known."""
    open_ = layout.of("")
    if len(open_) == 1 and not open_[0].is_word and not layout.of("tile", "row"):
        lone = len(layout.columns) == 1 and open_[0].letters in ("r", "c", "x", "y")
        open_[0].field = "" if lone else "tile"


def _is_sure(layout: _Layout, files: int) -> bool:
    """Return whether all fields are known, tell all files apart, and combine as planes do."""
    fields = {one.field for one in layout.columns}
    grid = ("row" in fields) == ("col" in fields) and not {"row", "tile"} <= fields
    named = [one for one in layout.columns if one.field != "*"]
    alone = files == 1 and not fields
    if "" in fields or not (fields or alone) or not grid or (named and _count(named) != files):
        return False
    tiles = layout.of("cycle", "region", "tile", "row", "col")
    cycles = layout.of("cycle", "region")
    for name in ("channel", "z"):
        of_name = layout.of(name)
        # a number that counts files gives each tile one channel
        full = _count_of_each(cycles, tiles, of_name) if of_name and tiles else 0
        if full and _count([*tiles, *of_name]) < _COMPLETE * full:
            return False
    return True


def _reads_back(layout: _Layout, paths: Sequence[str]) -> bool:
    """Return whether the pattern finds in all names what the columns hold."""
    expression = compile_pattern(layout.pattern())
    for row, path in enumerate(paths):
        match = expression.fullmatch(path)
        held = {one.field: one.values[row] for one in layout.columns if one.field != "*"}
        if match is None or match.groupdict() != held:
            return False
    return True


def _count_of_each(
    groups: Sequence[_Column], tiles: Sequence[_Column], others: Sequence[_Column]
) -> int:
    """Return how many combinations of tiles and others within each group there are."""
    keys = list(zip(*(one.values for one in groups), strict=True)) or [()] * len(tiles[0].values)
    of_tiles, of_others = dict[object, set[object]](), dict[object, set[object]]()
    rows = zip(keys, *(zip(*(c.values for c in cs), strict=True) for cs in (tiles, others)),
               strict=True)  # fmt: skip
    for key, tile, other in rows:
        of_tiles.setdefault(key, set()).add(tile)
        of_others.setdefault(key, set()).add(other)
    return sum(len(of_tiles[key]) * len(of_others[key]) for key in of_tiles)


def _range(values: Sequence[str]) -> str:
    """Return values as a range of numbers, or the first of some words."""
    distinct = sorted(set(values), key=natural_key)
    if all(value.isdecimal() for value in distinct) and len(distinct) > 2:
        return f"{distinct[0]} … {distinct[-1]}"
    return few(distinct, 6)


def _question(layout: _Layout) -> str:
    """Return what names leave open."""
    parts = []
    for one in layout.columns:
        said = f" as {one.field}" if one.field not in ("", "*") else ""
        parts.append(f"{'words' if one.is_word else 'numbers'} {_range(one.values)}{said}")
    fields = ", ".join(f"{{{name}}}" for name in FIELDS)
    return (
        f"names like {layout.pattern()} hold {'; '.join(parts)}: give --pattern with one of "
        f"{fields}, or *, for each"
    )
