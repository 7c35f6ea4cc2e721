"""The tiles table: what is read, and how each row that is wrong is named."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.config.configs import refused
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.config.tables import Places, read_tiles
from tilewright.errors import ConfigError

HEAD = "sample,cycle,tile,y,x,unit,source,file,use\n"
GOOD = HEAD + "a,1,1,0,0,um,stage,c1/t1.tif,1\na,1,r0c1,0,70.5,um,stage,,0\n"


def read(folder: Path, text: str | bytes, pixel_um: float = 0.5) -> Places:
    path = folder / "tiles.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_tiles(path, ["a", "b"], pixel_um)


def test_positions_are_in_pixels_and_rows_have_names(tmp_path: Path) -> None:
    places = read(tmp_path, GOOD + "b,12,1,-3,4e1,px,,,\n")
    first, second = places["a", 1]
    assert (first.tile, first.y_px, first.x_px) == ("1", 0.0, 0.0)
    assert (second.tile, second.x_px, second.use, first.use) == ("r0c1", 141.0, False, True)
    assert second.row == f"{tmp_path / 'tiles.csv'}, row 3"
    (third,) = places["b", 12]
    assert (third.y_px, third.x_px, third.use) == (-3.0, 40.0, True)
    assert [place.x_px for place in read(tmp_path, GOOD, 0.25)["a", 1]] == [0.0, 282.0]


def test_tables_as_spreadsheets_write_them(tmp_path: Path) -> None:
    """A byte order mark, CRLF, quotes, spaces, empty lines, other columns' order, backslashes."""
    plain = read(tmp_path, GOOD)
    text = GOOD.replace("a,1,", '"a", 1 ,').replace("\n", "\r\n")
    assert read(tmp_path, b"\xef\xbb\xbf" + text.encode() + b"\r\n,,,,,,,,\r\n") == plain
    turned = [",".join(line.split(",")[::-1]) for line in GOOD.splitlines()]
    assert read(tmp_path, "\n".join(turned)) == plain
    for written, use in (("TRUE", True), ("False", False), ("0", False), ("1", True), ("", True)):
        (place,) = read(tmp_path, HEAD + f"a,1,1,5,10,um,,,{written}\n")["a", 1]
        assert place.use is use
    short = read(tmp_path, "sample,cycle,tile,y,x,unit\na,1,1,5,10,px\n")["a", 1]
    assert short[0].use


def test_a_tile_that_is_not_used_needs_no_position(tmp_path: Path) -> None:
    (place,) = read(tmp_path, HEAD + "a,1,1,,7,px,,,0\n")["a", 1]
    assert math.isnan(place.y_px)
    assert (place.x_px, place.use) == (7.0, False)


def test_a_table_may_be_empty_before_its_rows_are_added(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD) == {}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("c,1,9,0,0,um,,,1", "row 4: sample 'c' is not in the samples table"),
        ("a,²,9,0,0,um,,,1", "row 4: cycle '²' must be a number"),
        (f"a,1,{'x' * 51},0,0,um,,,1", "xxx' must be a name of 1 to 50 characters"),
        ("a,1,9,0,0,mm,,,1", "row 4: unit 'mm' must be um or px"),
        ("a,1,9,0,0,um,,,2", "row 4: use '2' must be 1, or 0 to leave the tile out"),
        ("a,1,9,nan,0,um,,,1", "row 4: y 'nan' must be a position"),
        ('a,1,9,"1,5",0,um,,,1', "row 4: y '1,5' must be a position"),
        ("a,1,9,1,5,0,um,,,1", "row 4: 10 cells for 9 columns"),
        ("a,1,r0c1,0,0,um,,,1", "duplicate sample 'a' cycle '1' tile 'r0c1' (rows 3 and 4); remov"),
        ('a,1,"9,0,0,um,,,1', "line 4: the line cannot be read"),
        ("a,1,\x07,0,0,um,,,1", "line 4: '\\x07' holds the character U+0007"),
    ],
)
def test_each_row_that_is_wrong_is_named(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD + row + "\n")
    assert len(caught.value.args) == 1
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "tiles.csv"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace(",", ";"), "is separated by semicolons; separate it by commas"),
        (GOOD.replace(",use", ",used"), "unknown column 'used'; did you mean 'use'?"),
        (GOOD.replace(",file,", ",y,"), "duplicate column 'y'; remove one"),
        ("sample,cycle,tile,y,x\na,1,1,0,0\n", "the column 'unit' is missing"),
        (GOOD.replace("um", "µm").encode("latin-1"), "line 2: the text is not UTF-8"),
        (b"PK\x03\x04 a workbook", "is a workbook of a spreadsheet program"),
        (None, "the table of the key 'tiles': "),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str | bytes | None, said: str) -> None:
    path = tmp_path / "tiles.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_tiles(path, ["a"], 0.5)
    assert said in str(caught.value)
    assert str(tmp_path / "tiles.csv") in str(caught.value)


def check(config: dict[str, Any]) -> None:
    experiment = load_experiment(config)
    check_raw(experiment, Layout(experiment.settings.results))


def test_rows_of_cycles_that_the_markers_table_lacks_are_passed_over(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """They are of cycles that come later; wrong rows are named all the same."""
    path = Path(config["tiles"])
    path.write_text(path.read_text() + "tonsil,3,1,0,0,um,,no_such_file.tif,1\n")
    said = str(refused({**config, "results": str(tmp_path / "results")}, check))
    assert "holds no file" in said  # the raw folder is empty
    assert "cycle 3" not in said
    path.write_text(path.read_text() + "tonsil,3,2,0,0,feet,,,1\n")
    assert "row 11: unit 'feet' must be" in str(refused(config, check))
    path.unlink()
    assert f"the table of the key 'tiles': {path} cannot be read: No such file" in str(
        refused(config, check)
    )
