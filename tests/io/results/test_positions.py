import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tile_configuration import read_tile_configuration
from tilewright.errors import ResultFileError
from tilewright.io.results.positions import (
    Positions,
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


def test_positions_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "positions.csv"
    path.write_text(HEADER + "s,1,0,0,1,0,0,0\ns,2,0,1,one,0,0,0\n")
    with pytest.raises(ResultFileError, match="'one'"):
        read_positions(path)


def test_fiji_has_x_first(tmp_path: Path) -> None:
    path = tmp_path / "TileConfiguration.txt"
    write_tile_configuration(path, ["a.tif", "b.tif"], np.array([[1.5, 2.0], [-3.0, 4.25]]))
    assert "a.tif; ; (2.0000, 1.5000)" in path.read_text()
    names, yx = read_tile_configuration(path)
    assert names == ["a.tif", "b.tif"]
    np.testing.assert_array_equal(yx, [[1.5, 2.0], [-3.0, 4.25]])
