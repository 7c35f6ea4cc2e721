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

HEADER = "tile,row,col,y_px,x_px,sigma_px,island\n"
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
        write_table(path, written)
        found = read_positions(path)
        assert sorted(p.name for p in path.parent.iterdir()) == [
            ".positions.csv.sfv",
            "positions.csv",
        ]
    for name in ("tile", "row", "col", "y_px", "x_px", "sigma_px", "island"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))


def test_positions_are_known_by_the_names_of_tiles(tmp_path: Path) -> None:
    path = tmp_path / "positions.csv"
    path.write_text(HEADER + "7,1,0,5,1,0,0\nr0c1,0,1,4,2,0,0\n01,0,0,3,3,0,1\n")
    found = read_positions(path)
    assert found.places() == {"7": (5.0, 1.0), "r0c1": (4.0, 2.0), "01": (3.0, 3.0)}
    assert found.island.tolist() == [0, 0, 1]
    assert found.row.dtype == np.int64


def test_neighbours_meet_and_corners_do_not(tmp_path: Path) -> None:
    path = tmp_path / "positions.csv"
    rows = [("a", 0, 0, 0.0, 0.0), ("b", 0, 1, 2.0, 80.0), ("c", 1, 0, 90.0, 1.0)]
    rows += [("d", 1, 1, 92.0, 81.0), ("far", 0, 3, 0.0, 190.0)]
    lines = [",".join(map(str, (*row, 0, 0))) for row in rows]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    found = set(read_positions(path).neighbours((100, 100)))
    assert found == {("a", "b", 1), ("c", "d", 1), ("a", "c", 0), ("b", "d", 0)}
    # a gap of up to a twentieth of a side: b ends at 180
    path.write_text(path.read_text().replace("190.0", "184.0"))
    assert ("b", "far", 1) in read_positions(path).neighbours((100, 100))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tile,row,col,y_px\n1,0,0,1\n", "no 'x_px'"),
        (HEADER + "1,0,0,1,0,0,0\n2,0,1,one,0,0,0\n", "'one'"),
        (HEADER + "1,0,0\n", "'None'"),
        (HEADER + "1,0.5,0,1,0,0,0\n", "'0.5'"),
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
    write_table(tmp_path / "edges.csv", edges)
    found = read_edges(tmp_path / "edges.csv")
    for name in Edges.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(edges, name))
    none = Edges(*(names[:0],) * 2, *(floats[:0],) * 3, ints[:0] == 0, *(floats[:0],) * 2)
    write_table(tmp_path / "none.csv", none)
    assert len(read_edges(tmp_path / "none.csv").score) == 0


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    zero, whole = np.array([-0.0]), np.array([0])
    write_table(
        tmp_path / "p.csv", Positions(np.array(["1"]), whole, whole, zero, zero, zero, whole)
    )
    assert "-" not in (tmp_path / "p.csv").read_text()


def test_fiji_has_x_first(tmp_path: Path) -> None:
    path = tmp_path / "TileConfiguration.txt"
    write_tile_configuration(path, ["a.tif", "b.tif"], np.array([[1.5, 2.0], [-3.0, 4.25]]))
    assert "a.tif; ; (2.0000, 1.5000)" in path.read_text()
    names, yx = read_tile_configuration(path)
    assert names == ["a.tif", "b.tif"]
    np.testing.assert_array_equal(yx, [[1.5, 2.0], [-3.0, 4.25]])
