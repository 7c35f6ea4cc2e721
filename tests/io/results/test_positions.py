import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tile_configuration import read_tile_configuration
from tilewright.errors import ResultFileError
from tilewright.io.results.positions import (
    Edges,
    Positions,
    read_edges,
    read_positions,
    write_table,
    write_tile_configuration,
)

HEADER = "sample,tile,row,col,y_px,x_px,sigma_px,island\n"
PX = st.floats(-1e6, 1e6).map(lambda value: round(value, 4))


@given(st.lists(st.tuples(PX, PX, st.integers(0, 5)), min_size=1, max_size=9))
def test_positions_come_back(rows: list[tuple[float, float, int]]) -> None:
    n = len(rows)
    y, x, island = (np.array(column) for column in zip(*rows, strict=True))
    names = np.array([f"t{k}" for k in range(n)][::-1])
    at = np.arange(n)
    written = Positions(names, at // 3, at % 3, y, x, np.full(n, 0.25), island)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep" / "positions.csv"
        write_table(path, {"s": written})
        found = read_positions(path)
        assert sorted(p.name for p in path.parent.iterdir()) == [
            ".positions.csv.sfv",
            "positions.csv",
        ]
    for name in ("tile", "row", "col", "y_px", "x_px", "sigma_px", "island"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))


def test_positions_are_known_by_the_names_of_tiles(tmp_path: Path) -> None:
    path = tmp_path / "positions.csv"
    rows = ["s,7,1,0,5,1,0,0", "s,r0c1,0,1,4,2,0,0", "t,7,0,0,9,9,0,0", "s,01,0,0,3,3,0,1"]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    found = read_positions(path, "s")
    assert found.places() == {"7": (5.0, 1.0), "r0c1": (4.0, 2.0), "01": (3.0, 3.0)}
    assert found.island.tolist() == [0, 0, 1]
    assert found.row.dtype == np.int64
    assert read_positions(path, "t").places() == {"7": (9.0, 9.0)}
    with pytest.raises(ResultFileError, match="no tile of sample u"):
        read_positions(path, "u")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sample,tile,row,col,y_px\ns,1,0,0,1\n", "no 'x_px'"),
        (HEADER + "s,1,0,0,1,0,0,0\ns,2,0,1,one,0,0,0\n", "'one'"),
        (HEADER + "s,1,0,0\n", "'None'"),
        (HEADER + "s,1,0.5,0,1,0,0,0\n", "'0.5'"),
        (HEADER + "s,1,0,0,1,0,0,0\ns,1,0,1,2,9,0,0\n", "duplicate tile"),
    ],
)
def test_bad_positions_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "positions.csv"
    path.write_text(text)
    with pytest.raises(ResultFileError, match=says):
        read_positions(path)


def test_edges_come_back_and_an_empty_table_too(tmp_path: Path) -> None:
    ints, floats = np.array([0, 1]), np.array([0.5, -1.25])
    names = np.array(["01", "r1c2"])
    edges = Edges(names, names[::-1], floats, floats, floats, ints == 0, floats, floats)
    write_table(tmp_path / "edges.csv", {"s": edges})
    found = read_edges(tmp_path / "edges.csv")
    for name in Edges.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(edges, name))
    none = Edges(*(names[:0],) * 2, *(floats[:0],) * 3, ints[:0] == 0, *(floats[:0],) * 2)
    write_table(tmp_path / "none.csv", {"s": none})
    assert len(read_edges(tmp_path / "none.csv").score) == 0


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    zero, whole = np.array([-0.0]), np.array([0])
    table = Positions(np.array(["1"]), whole, whole, zero, zero, zero, whole)
    write_table(tmp_path / "p.csv", {"s": table})
    assert "-" not in (tmp_path / "p.csv").read_text()


def test_fiji_has_x_first(tmp_path: Path) -> None:
    path = tmp_path / "TileConfiguration.txt"
    write_tile_configuration(path, ["a.tif", "b.tif"], np.array([[1.5, 2.0], [-3.0, 4.25]]))
    assert "a.tif; ; (2.0000, 1.5000)" in path.read_text()
    names, yx = read_tile_configuration(path)
    assert names == ["a.tif", "b.tif"]
    np.testing.assert_array_equal(yx, [[1.5, 2.0], [-3.0, 4.25]])
