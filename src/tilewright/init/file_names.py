"""What names of files say: which words and numbers are cycle, channel, tile, row and so on.

Names are split into parts at their separators; where these differ, one part is a word that holds
some. A part that varies is a number behind constant letters (``cyc002``, ``R1``, ``Z001``,
``007``), or a word (``DAPI``, ``CD3``, ``BETA AMYLOID``). Letters that are known say what a number
counts; words are channels where one of them names a stain or a filter. What neither shows is asked
for.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.init.notes import values_text
from tilewright.io.formats.names import FIELDS, compile_pattern, form_of
from tilewright.runtime.text import few

_SEPARATORS = re.compile(r"([/_ .-]+)")
#: Words of nuclear stains, dyes and filters, and of channels without a stain: in each cycle again.
_DYES = (
    r"dapi|hoechst\d*|draq ?[57]|sytox|dna|[fg]itc|tritc|gfp|rfp|yfp|cfp|mcherry|txred|texas ?red"
    r"|cy ?[2357](\.5)?|(af|alexa ?(fluor)?|atto|dy) ?-?\d{3}|pe|apc|bv\d{3}"
    r"|blank|autofluorescence|af|empty"
)
_DYE = re.compile(rf"(?i)(?<![a-z])({_DYES})(?![a-z])")
#: A part that holds one of them, or of some usual markers, is the channel.
_STAIN = re.compile(
    rf"(?i)(?<![a-z])({_DYES}|cd\d+[a-z]*|panck|ki-?67|vim(entin)?|sma|a-?sma)(?![a-z])"
)
#: Share of all combinations of tiles with channels, and with z-planes, that files hold at least. A
#: number that counts files of two channels holds half of them, a scan that was stopped nearly all.
_COMPLETE = 0.75
#: Share of the tiles of a cycle that each channel has at least; a copy of a file has one of 12.
_LEAST = 0.5
#: A file is unlike the others where another form of name has this many times as many files.
_UNLIKE = 10


@dataclass(frozen=True)
class Names:
    """What names of files say.

    Attributes
    ----------
    pattern : str or None
        As ``acquisition.pattern`` holds it; None where names leave it open.
    fields : tuple of str
        A sentence part for each field, such as ``cycle ← 1, 2``.
    question : str
        What the names leave open, with the patterns that fit; empty where nothing.
    """

    pattern: str | None
    fields: tuple[str, ...] = ()
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
    level : int
        How many folders are above it.
    field : str
        The field that it is; ``*`` where others say the same, empty where that is not known.
    """

    values: tuple[str, ...]
    letters: str = ""
    is_word: bool = False
    field: str = ""
    level: int = 0

    @property
    def is_place(self) -> bool:
        """Whether it is a place of the stage, as x1200: of far more numbers than there are."""
        numbers = {int(value) for value in self.values}
        return max(numbers) - min(numbers) >= 2 * len(numbers) + 2


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
        Field to the letters before its number; of two rows the earlier letters are the row's.

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
    _name_numbers(layout, hints, of_letters)
    _name_words(layout)
    _agree(layout)
    _drop_repeated(layout, len(paths))
    _name_last_number(layout)
    if _is_sure(layout, len(paths)) and _reads_back(layout, paths):
        shown = {one.field: one.values for one in reversed(layout.columns) if one.field != "*"}
        order = [name for name in FIELDS if name in shown]
        return Names(layout.pattern(), tuple(f"{n} ← {values_text(shown[n])}" for n in order))
    return Names(None, question=_question(layout, paths))


def _split(paths: Sequence[str], of_letters: Mapping[str, str]) -> _Layout:
    """Return the columns of names, and the texts that are the same in all."""
    layout = _Layout()
    for separator, values in _parts(paths):
        layout.texts[-1] += separator
        for piece in _columns(values):
            if isinstance(piece, str):
                layout.texts[-1] += piece
                continue
            piece.level = "".join(layout.texts).count("/")
            if not piece.is_word:  # those of "Cycle 1" and "tile_001" too
                piece.letters = _letters_before(layout.texts[-1])
            # the only cycle or channel is read too, where it is named
            named = of_letters.get(piece.letters) in ("cycle", "channel")
            if (named and len(piece.letters) > 1) or len(set(piece.values)) > 1:
                layout.columns.append(piece)
                layout.texts.append("")
            else:
                layout.texts[-1] += piece.values[0]
    return layout


def _letters_before(text: str) -> str:
    """Return the letters that end a text, but for separators, in its folder or file alone."""
    found = re.search(r"([a-z]+)[^a-z0-9]*$", text.rsplit("/", 1)[-1].lower())
    return found[1] if found else ""


def _parts(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return separators and parts of all names; one part may hold separators itself.

    Where separators differ, it is what is between the parts that are alike at both ends.

    >>> _parts(["r1_BETA_AMYLOID", "r2_DAPI"])
    [('', ('r1', 'r2')), ('_', ('BETA_AMYLOID', 'DAPI'))]
    """
    split = [_SEPARATORS.split(name) for name in names]
    if len({tuple(one[1::2]) for one in split}) > 1:
        first = _count_alike(split)
        last = _count_alike([one[first:][::-1] for one in split])
        split = [
            [*one[:first], "".join(one[first : len(one) - last]), *one[len(one) - last :]]
            for one in split
        ]
    values = [*zip(*(one[::2] for one in split), strict=True)]
    return [*zip(["", *split[0][1::2]], values, strict=True)]


def _count_alike(split: Sequence[Sequence[str]]) -> int:
    """Return how many parts and separators at the beginning are alike in all names."""
    least = min(map(len, split))
    for k in range(0, least - 1, 2):
        if len({(form_of(one[k]), one[k + 1]) for one in split}) > 1:
            return k
    return least - 1


def _is_word(values: Sequence[str]) -> bool:
    """Return whether a part varies, and not only in its numbers."""
    return len({form_of(value) for value in values}) > 1


def _columns(values: tuple[str, ...]) -> list[str | _Column]:
    """Return the texts and columns of one part of all names."""
    form = form_of(values[0])
    if len(set(values)) == 1 and "#" not in form:
        return [values[0]]
    stained = form.count("#") == 1 and _STAIN.search(values[0]) and len(set(values)) > 1
    if _is_word(values) or stained:  # CD3 and CD8 are words
        return [_Column(values, is_word=True)]
    found: list[str | _Column] = []
    pieces = form.split("#")
    numbers = zip(*(re.findall(r"\d+", value) for value in values), strict=True)
    for piece, column in zip(pieces, numbers, strict=False):
        found += [piece, _Column(column)]
    return [*found, pieces[-1]]


def _name_numbers(
    layout: _Layout, hints: Mapping[str, Iterable[str]], of_letters: Mapping[str, str]
) -> None:
    """Name numbers by the letters before them."""
    numbers = [one for one in layout.columns if not one.is_word]
    counts = Counter(one.letters for one in numbers)
    grid = [next((it for it in hints[name] if counts[it] == 1), "") for name in ("row", "col")]
    one_name = len({one.level for one in numbers if one.letters in grid}) == 1
    for one in numbers:
        one.field = of_letters.get(one.letters, "")
        in_grid = one_name and all(grid) and one.letters in grid and not one.is_place
        if one.field in ("row", "col") and not in_grid:
            one.field = ""
    # R1, R2 next to other numbers or words are rounds, C1, C2 channels
    for letters, name in (("r", "cycle"), ("c", "channel")):
        left = [one for one in numbers if one.letters == letters and not one.field]
        if len(left) == 1 < len(layout.columns) and not layout.of(name) and not left[0].is_place:
            left[0].field = name


def _name_words(layout: _Layout) -> None:
    """Name words that are channels, as one of them is a stain or a filter."""
    words = (one for one in layout.columns if one.is_word)
    if stained := next((one for one in words if any(map(_STAIN.search, one.values))), None):
        stained.field = "channel"


def _agree(layout: _Layout) -> None:
    """Of columns of one field keep those that agree, and the first one; words first."""
    for name in {one.field for one in layout.columns} - {""}:
        first, *others = sorted(layout.of(name), key=lambda one: not one.is_word)
        for one in others:
            if one.values != first.values:
                one.field = "*" if _is_renamed(one, first) else ""


def _drop_repeated(layout: _Layout, files: int) -> None:
    """Leave out columns that follow from others: of each cycle, channel or tile, or of each file.

    A part that is another one in each file, as a time, is left out where the others distinguish
    files. One that several channels share may be the cycle where none is named, and one that
    several tiles share the region, unless it is a place of the stage: these stay.
    """
    named = [one for one in layout.columns if one.field not in ("", "*")]
    distinct = _count(named) == files
    cycle, of_cycle = layout.of("cycle"), layout.of("cycle", "channel")
    for one in layout.columns:
        place = not one.is_word and (one.is_place or one.letters in ("x", "y"))
        follows = any(_follows(one, [other]) for other in (named if place else cycle))
        follows = follows or any(_is_renamed(one, other) for other in named)
        follows = follows or (bool(cycle) and _follows(one, of_cycle))
        if not one.field and (follows or (distinct and len(set(one.values)) == files)):
            one.field = "*"


def _is_renamed(one: _Column, other: _Column) -> bool:
    """Return whether each value of a column stands for one of another, which repeats."""
    return _follows(one, [other]) and _count([one]) == _count([other])


def _follows(one: _Column, others: Sequence[_Column]) -> bool:
    """Return whether the values of a column follow from those of others, which repeat."""
    keys = _count(others)
    return bool(others) and keys < len(one.values) and _count([*others, one]) == keys


def _keys(columns: Sequence[_Column]) -> list[tuple[str, ...]]:
    """Return the combination of values of each file."""
    return [*zip(*(one.values for one in columns), strict=True)]


def _count(columns: Sequence[_Column]) -> int:
    """Return how many combinations of values there are."""
    return len({*_keys(columns)})


def _name_last_number(layout: _Layout) -> None:
    """Name the only number without a field: it is the tile's, where no tile or row is known."""
    open_ = layout.of("")
    if len(open_) == 1 and not open_[0].is_word and not layout.of("tile", "row"):
        lone = len(layout.columns) == 1 and open_[0].letters in ("r", "c", "x", "y")
        open_[0].field = "" if lone else "tile"


def _is_sure(layout: _Layout, files: int) -> bool:
    """Return whether all fields are known, distinguish all files, and combine as planes do."""
    fields = {one.field for one in layout.columns}
    grid = ("row" in fields) == ("col" in fields) and not {"row", "tile"} <= fields
    named = [one for one in layout.columns if one.field != "*"]
    alone = files == 1 and not fields
    if "region" in fields and not fields & {"tile", "row"}:
        return False  # positions may be pieces of tissue or tiles
    if _is_of_sections(layout) or _stains_twice(layout):
        return False
    if "" in fields or not (fields or alone) or not grid or (named and _count(named) != files):
        return False
    if not fields & {"tile", "row"} and any(map(_counts_files, layout.of("channel"))):
        return False
    return _combine(layout, "channel") and _combine(layout, "z")


def _is_of_sections(layout: _Layout) -> bool:
    """Return whether folders numbered as z-planes are above those of the cycles."""
    return any(z.level < one.level for z in layout.of("z") for one in layout.of("cycle"))


def _stains_twice(layout: _Layout) -> bool:
    """Return whether folders R1, R2 hold the same markers: a round stains others, a region not."""
    rounds, channels = layout.of("cycle"), layout.of("channel")
    if not (rounds and channels and channels[0].is_word and rounds[0].letters == "r"):
        return False
    count = len(set(rounds[0].values))
    shared = Counter(channel for _, channel in {*_keys([rounds[0], channels[0]])})
    return any(n == count and not _DYE.search(channel) for channel, n in shared.items())


def _counts_files(channel: _Column) -> bool:
    """Return whether words of a channel are whole names, such as ``r0_c1_DAPI`` and ``r1_c0_DAPI``.

    They are where another file, such as an overview, has no parts like theirs.
    """
    forms = Counter(form_of(value) for value in {*channel.values} if _SEPARATORS.search(value))
    return any("#" in form and count > 1 for form, count in forms.items())


def _combine(layout: _Layout, field: str) -> bool:
    """Return whether most tiles of each cycle have most channels, or z-planes, of the cycle.

    A number that counts files gives each tile one channel, a copy of a file one tile a channel.
    """
    tiles, others = layout.of("cycle", "region", "tile", "row", "col"), layout.of(field)
    if not others or not tiles:
        return True
    cycles = _keys(layout.of("cycle", "region")) or [()] * len(tiles[0].values)
    of_cycle, found = defaultdict[object, set[object]](set), defaultdict[Any, set[object]](set)
    for cycle, tile, other in zip(cycles, _keys(tiles), _keys(others), strict=True):
        of_cycle[cycle].add(tile)
        found[cycle, other].add(tile)
    shares = [len(of_other) / len(of_cycle[cycle]) for (cycle, _), of_other in found.items()]
    least = _LEAST if field == "channel" else 0.0
    return min(shares) >= least and sum(shares) >= _COMPLETE * len(shares)


def _reads_back(layout: _Layout, paths: Sequence[str]) -> bool:
    """Return whether the pattern finds in all names what the columns hold."""
    expression = compile_pattern(layout.pattern())
    for row, path in enumerate(paths):
        match = expression.fullmatch(path)
        held = {one.field: one.values[row] for one in layout.columns if one.field != "*"}
        if match is None or match.groupdict() != held:
            return False
    return True


def _question(layout: _Layout, paths: Sequence[str]) -> str:
    """Return what names leave open."""
    parts = []
    for one in layout.columns:
        if one.field != "*":
            kind = "words" if one.is_word else "numbers"
            parts.append(f"{kind} {values_text(one.values)}" + f" as {one.field}" * bool(one.field))
    forms = Counter(map(form_of, paths))
    unlike = [path for path in paths if _UNLIKE * forms[form_of(path)] < max(forms.values())]
    away = f"move away {few(unlike, 3)}, named unlike most, or " * bool(unlike)
    fields = ", ".join(f"{{{name}}}" for name in FIELDS)
    return (
        f"names like {layout.pattern()} hold {'; '.join(parts)}: {away}give --pattern with one of "
        f"{fields}, or *, for each"
    )
