"""What names say: the right reading or a question, never a wrong one without a question."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tilewright.init.file_names import Names
from tilewright.init.recognise import names_of
from tilewright.io.formats.common import clean_token
from tilewright.io.formats.names import compile_pattern

WORDS = ("DAPI", "CD3", "CD45RO", "Vimentin", "PanCK", "BETA AMYLOID", "Ki-67", "FITC", "TRITC",
         "Cy5", "HLA-DR", "aSMA", "E-Cadherin", "PD1", "BETA_AMYLOID")  # fmt: skip
LETTERS = {
    "cycle": ("cyc", "Cycle", "cycle ", "round", "R"),
    "channel": ("ch", "CH", "C", "w"),
    "tile": ("t", "tile", "s", "Pos", "fov", "m"),
    "row": ("r", "Y", "row"),
    "col": ("c", "X", "col"),
    "z": ("z", "Z", "slice"),
    "region": ("reg", "roi"),
}


class Plane(NamedTuple):
    """What a file is, by what its name was made of; 1 where that says nothing."""

    cycle: int
    channel: str
    tile: tuple[int, ...]
    z: int
    region: str


def read(path: str, pattern: str) -> Plane:
    """Return what a file is by the pattern."""
    match = compile_pattern(pattern).fullmatch(path)
    assert match is not None, (path, pattern)
    values = match.groupdict()
    tile = [int(values[name]) for name in ("tile", "row", "col") if name in values]
    return Plane(
        int(values.get("cycle", 1)), clean_token(values.get("channel", "1")), tuple(tile) or (1,),
        int(values.get("z", 1)), values.get("region", "1"),
    )  # fmt: skip


class Template:
    """Names of a random template: 2 to 5 parts that vary, words, gaps, padded or not."""

    def __init__(self, seed: int, *, letters: bool) -> None:
        self.rng = rng = np.random.default_rng(seed)
        grid = rng.random() < 0.5
        fields = ["row", "col"] if grid else ["tile"]
        others = ["cycle", "channel", "z", "region"]
        chances = (0.7, 0.9, 0.3, 0.1)
        fields += [name for name, chance in zip(others, chances, strict=True)
                   if rng.random() < chance]  # fmt: skip
        self.words = "channel" in fields and rng.random() < 0.6
        self.values = {name: self._numbers(name) for name in fields}
        if self.words:  # a cycle stains other markers than the one before
            nuclei = ["DAPI"] * (rng.random() < 0.8)
            size = int(rng.integers(2, 4))
            self.values["channel"] = list(range(size + len(nuclei)))
            self.stains = {
                cycle: nuclei + rng.choice(WORDS[1:], size=size, replace=False).tolist()
                for cycle in self.values.get("cycle", [1])
            }
        self.letters = {
            name: str(rng.choice(LETTERS[name])) if letters or rng.random() < 0.6 else ""
            for name in fields
        }
        if "row" in fields and any(self.letters[name] in "XY" for name in ("row", "col")):
            self.letters |= {"row": "Y", "col": "X"}
        self.order = list(rng.permutation(fields))
        self.separator = str(rng.choice(["_", "_", "_", "-", ".", " "]))
        self.constant = str(rng.choice(["", "", "tonsil", "20240101", "exp7"]))
        self.folder = str(rng.choice(["", "", "cycle", "region", "channel"]))
        self.padded = {name: int(rng.choice([0, 2, 4])) for name in fields}
        self.counter = not letters and rng.random() < 0.15
        self.stamp = "cycle" in fields and rng.random() < 0.2
        self.lost = rng.random() < 0.2

    def _numbers(self, name: str) -> list[object]:
        first, most = int(self.rng.integers(0, 2)), {"cycle": 3, "z": 5, "region": 2}.get(name, 6)
        numbers: list[object] = [*range(first, first + int(self.rng.integers(2, most + 1)))]
        if name == "tile" and len(numbers) > 3 and self.rng.random() < 0.2:
            del numbers[1]
        return numbers

    def _text(self, name: str, value: object) -> str:
        if name == "channel" and self.words:
            return str(value)
        return f"{self.letters[name]}{value:0{self.padded[name]}}"

    def files(self) -> Iterator[tuple[str, Plane]]:
        """Yield paths and what they are."""
        names = [*self.values]
        combinations = list(itertools.product(*self.values.values()))
        for number, one in enumerate(combinations):
            if self.lost and self.rng.random() < 0.05:
                continue
            now = dict(zip(names, one, strict=True))
            if self.words:
                now["channel"] = self.stains[now.get("cycle", 1)][now["channel"]]
            in_folder = self.folder in now
            parts = [self.constant] * bool(self.constant)
            if self.stamp:
                parts.append(f"{1200 + 3 * int(str(now['cycle']))}")
            parts += [
                self._text(name, now[name]) for name in self.order
                if not (in_folder and name == self.folder)
            ]  # fmt: skip
            parts += [f"{number:05}"] * self.counter
            path = self.separator.join(parts) + ".tif"
            if in_folder:
                path = f"{self._text(self.folder, now[self.folder])}/{path}"
            yield path, self._plane(now)

    def _plane(self, now: dict[str, object]) -> Plane:
        channel = "1"
        if "channel" in now:
            plain = f"{now['channel']:0{self.padded['channel']}}" if not self.words else ""
            channel = clean_token(str(now["channel"])) if self.words else plain
        region = f"{now['region']:0{self.padded['region']}}" if "region" in now else "1"
        tile = [int(str(now[name])) for name in ("tile", "row", "col") if name in now]
        return Plane(
            int(str(now.get("cycle", 1))), channel, tuple(tile), int(str(now.get("z", 1))), region
        )


def reading(seed: int, *, letters: bool) -> tuple[Names, bool]:
    """Return what is read from the names of a template, and whether it is right."""
    files = dict(Template(seed, letters=letters).files())
    names = names_of([*files])
    if names.pattern is None:
        assert names.question or len(files) < 2, (seed, [*files][:5])
        return names, False
    found = {path: read(path, names.pattern) for path in files}
    wrong = [(path, plane, found[path]) for path, plane in files.items() if found[path] != plane]
    assert not wrong, (seed, names.pattern, wrong[:3])
    return names, True


@pytest.mark.parametrize("letters", [True, False], ids=["letters that are known", "any"])
def test_2000_random_templates_are_read_rightly_or_asked_for(letters: bool) -> None:
    right = [reading(seed, letters=letters)[1] for seed in range(1000)]
    assert sum(right) > (920 if letters else 480)


def test_what_was_seen_is_said() -> None:
    paths = [f"Cycle {c}/{n}_{t:03}.tif" for c in (1, 2, 3) for n in ("DAPI", "CD3")
             for t in range(1, 13)]  # fmt: skip
    names = names_of(paths)
    assert names.pattern == "Cycle {cycle}/{channel}_{tile}.tif"
    assert names.fields == ("cycle ← 1 … 3", "channel ← CD3, DAPI", "tile ← 001 … 012")


def test_what_is_open_is_asked_with_the_fields() -> None:
    names = names_of([f"a_{i}_{j}.tif" for i in (1, 2) for j in (1, 2, 3)])
    assert names.pattern is None
    assert re.match(r"names like a_\{\?\}_\{\?\}.tif hold numbers 1, 2; numbers 1 … 3: give --pat",
                    names.question)  # fmt: skip


def test_rows_and_columns_stand_in_one_name_and_a_region_holds_tiles() -> None:
    names = names_of(
        [f"R{r}/well_xy{x}c{c}.tif" for r in (1, 2) for x in (1, 2, 3) for c in (1, 2)]
    )
    assert names.question.startswith("names like R{cycle}/well_xy{region}c{channel}.tif hold")


def test_a_file_unlike_most_is_named() -> None:
    paths = [f"t{t}_ch{c}.tif" for t in range(1, 10) for c in (0, 1)]
    assert names_of(paths).pattern == "t{tile}_ch{channel}.tif"
    question = names_of([*paths, "overview.tif"]).question
    assert "move away overview.tif, named unlike most, or give --pattern" in question


@pytest.mark.parametrize("side", [2, 3])
def test_an_overview_beside_the_tiles_makes_no_channel_of_each_tile(side: int) -> None:
    paths = [
        f"cycle{cycle}/tile_r{row}_c{col}_{word}.tif"
        for cycle, row, col, word in itertools.product(
            (1, 2), range(side), range(side), ("DAPI", "FITC")
        )
    ]
    assert names_of(paths).pattern == "cycle{cycle}/tile_r{row}_c{col}_{channel}.tif"
    found = names_of([*paths, "cycle1/overview.tif"])
    assert found.pattern is None
    assert ("move away cycle1/overview.tif" in found.question) == (side == 3)


def test_a_number_beside_words_that_is_not_theirs_is_open() -> None:
    names = names_of([f"c{k}/x{x}_y{y}_{word}.tif" for k in (1, 2) for x in (0, 44) for y in (0, 44)
                      for word in ("DAPI", "CD3")])  # fmt: skip
    assert names.question.startswith("names like c{?}/x{?}_y{?}_{channel}.tif hold")


@pytest.mark.parametrize(
    "name",
    ["Step{c}/t{t}_{n}.tif", "2024-05-1{c}/t{t}_{n}.tif", "day{c}_t{t}_{n}.tif",
     "C{c}/t{t}_{n}.tif"],
)  # fmt: skip
def test_a_part_that_several_channels_share_may_be_the_cycle(name: str) -> None:
    stains = {1: ("DAPI", "CD3"), 2: ("Nuc", "CD8")}
    paths = [name.format(c=c, t=t, n=n) for c, of in stains.items() for t in range(9) for n in of]
    assert names_of(paths).question
    one = [path.replace("DAPI", "DAPI_50ms").replace("CD3", "CD3_90ms") for path in paths[:18]]
    assert names_of([f"cycle1/{Path(path).name}" for path in one]).pattern


@pytest.mark.parametrize(
    "name",
    ["{s}/cycle{c}/t{t:02}_{n}.tif", "sec{s}_cycle{c}_t{t:02}_{n}.tif",
     "Slice {s}/Cycle {c}/tile{u:02}_{n}.tif", "R{c}/t{u}_{n}_x.tif"],
)  # fmt: skip
def test_parts_that_may_be_samples_or_regions_are_open(name: str) -> None:
    markers = ("DAPI", "CD3")
    paths = {
        name.format(s=1 + (t > 6), c=c, t=t, u=(t - 1) % 6 + 1, n=n)
        for c in (1, 2) for t in range(1, 13) for n in markers
    }  # fmt: skip
    assert names_of(sorted(paths)).question


def test_rounds_of_filters_are_cycles() -> None:
    paths = [f"R{c}/t{t}_{n}.tif" for c in (1, 2) for t in range(6) for n in ("DAPI", "FITC")]
    assert names_of(paths).pattern == "R{cycle}/t{tile}_{channel}.tif"


def test_a_copy_of_one_file_is_no_channel() -> None:
    paths = [f"cycle{c}/tile_{t:02}_{n}.tif" for c in (1, 2, 3) for t in range(1, 13)
             for n in ("DAPI", "CD3")]  # fmt: skip
    copy = "cycle1/tile_05_DAPI - Copy.tif"
    assert f"move away {copy}" in names_of([*paths, copy]).question
