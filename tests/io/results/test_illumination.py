from pathlib import Path

import numpy as np
import pytest
import tifffile

from tilewright.errors import ResultFileError
from tilewright.io.results.illumination import Illumination, read_illumination, write_illumination
from tilewright.io.results.result_file import checksum_path


def fields() -> Illumination:
    y, x = np.mgrid[0:12, 0:17]
    return Illumination.from_fields(1.0 + 0.05 * x + 0.01 * y, np.full((12, 17), 99.7))


def test_written_fields_read_back_exactly_and_are_the_same_bytes(tmp_path: Path) -> None:
    first = write_illumination(
        tmp_path / "new" / "c1.5", {"1": (fields(), {"method": "x", "a": 2})}
    )
    names = [path.name for path in first]
    assert names == ["c1.5-ffp.tif", "c1.5-dfp.tif", "c1.5.json"]
    flat, dark, numbers = first
    again, told = read_illumination(flat, dark, numbers, "1")
    np.testing.assert_allclose(again.flat, fields().flat, rtol=2e-7)
    np.testing.assert_array_equal(again.dark, fields().dark)
    assert again.flat.dtype == again.dark.dtype == np.float32
    assert again.pedestal == 100.0
    assert told == {"channel": "1", "method": "x", "a": 2, "pedestal_counts": 100.0}
    second = write_illumination(tmp_path / "b", {"1": (fields(), {"a": 2, "method": "x"})})
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert len(list(flat.parent.iterdir())) == 6


def test_damaged_results_are_to_be_made_again(tmp_path: Path) -> None:
    written = write_illumination(tmp_path / "a", {"0": (fields(), {}), "1": (fields(), {})})
    for path in written:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ResultFileError, match=rf"{path} is not what was written; delete"):
            read_illumination(*written, "1")
        path.write_bytes(whole)
    with pytest.raises(ResultFileError, match="record of flat-fields"):
        read_illumination(*written, "2")
    dark = written[1]
    checksum_path(dark).unlink()
    tifffile.imwrite(dark, np.zeros((2, 3, 3), dtype=np.float32), photometric="minisblack")
    with pytest.raises(ResultFileError, match=rf"{dark} is no dark-field of that flat-field"):
        read_illumination(*written, "1")
