"""Files of real microscopes that nobody of this project wrote (``../shared/data/real-files``)."""

import csv
import re
from pathlib import Path

import pytest

from tests.init.raw_folders import config
from tilewright.errors import RawDataError
from tilewright.init.folder import InitResult, create_experiment
from tilewright.io.formats import scan
from tilewright.io.inputs.raw_headers import read_headers

pytestmark = pytest.mark.shared


@pytest.fixture
def real(shared: Path) -> Path:
    folder = shared / "data/real-files"
    if not folder.is_dir():
        pytest.skip("../shared/data/real-files is absent: files of real microscopes are not here")
    return folder


def markers(result: InitResult) -> list[str]:
    return result.markers.read_text().splitlines()[1:]


def rows_of(result: InitResult, cycle: int) -> list[dict[str, str]]:
    """Return the rows of a cycle in the tiles table."""
    with result.config.with_name("tiles.csv").open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["cycle"] == str(cycle)]


def test_metaxpress_asks_for_the_nuclear_channel_alone(real: Path, tmp_path: Path) -> None:
    result = create_experiment(real / "metaxpress", tmp_path)
    assert [line.split(": ")[1] for line in result.notes.unknown] == ["reference"]
    told = config(result)["acquisition"]
    assert (told["convention"], told["pixel_um"]) == ("imagexpress", 13.5504)
    for cycle in (1, 2):
        upper, lower = rows_of(result, cycle)
        for row, tile in ((upper, "1"), (lower, "2")):
            assert (row["tile"], row["unit"], row["use"]) == (tile, "um", "1")
            assert f"TimePoint_{cycle}/" in row["file"]
            assert f"_s{tile}_w1" in row["file"]
        assert upper["x"] == lower["x"]
        assert float(lower["y"]) - float(upper["y"]) == pytest.approx(256 * 13.5504, rel=1e-3)
    optics = {"numerical_aperture": 0.2, "immersion_refractive_index": 1.0}
    assert config(result)["optics"] == optics
    assert markers(result) == [
        f"{cycle},{channel},{marker}_{cycle},,{light}"
        for cycle in (1, 2)
        for channel, marker, light in (
            (1, "FITC", "536,80"), (2, "Cy3", "593,100"), (3, "Texas Red", "624,5")
        )
    ]  # fmt: skip


def test_cv8000_is_read_as_its_files_say(real: Path, tmp_path: Path) -> None:
    """Two of four fields of one of three wells were copied: the index is cut down to them."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for path in (real / "cv8000").iterdir():
        (raw / path.name).symlink_to(path)
    missing = read_headers({plane.path: 1 for plane in scan("cv8000", raw)})
    assert sum("No such file" in header.problem for header in missing.values()) == 16
    index = raw / "MeasurementData.mlf"
    lines = index.read_text("utf-8-sig").splitlines()
    index.unlink()
    index.write_text("\n".join(line for line in lines if not re.search("F00[34]L01", line)))
    result = create_experiment(raw, tmp_path)
    told = config(result)["acquisition"]
    assert (told["convention"], told["pixel_um"], told["z_step_um"]) == ("cv8000", 0.325, 3.0)
    first, second = rows_of(result, 1)
    assert float(second["x"]) - float(first["x"]) == pytest.approx(649.9)
    assert first["y"] == second["y"]
    assert "2 channels, 4 z-planes, 1 region" in result.notes.findings[0]
    assert markers(result) == ["1,1,BP445/45,,445,100", "1,2,BP525/50,,525,100"]
    planes = scan("cv8000", raw)
    assert {plane.region for plane in planes} == {"D08"}
    assert len(planes) == 16
    assert {plane.unit for plane in planes} == {"um"}
    left, right = sorted({plane.x or 0.0 for plane in planes})
    assert right - left == pytest.approx(649.9)


def test_ndtiff_version_2_by_its_full_resolution(real: Path, tmp_path: Path) -> None:
    result = create_experiment(real / "ndtiff-v2", tmp_path)
    assert config(result)["acquisition"]["pixel_um"] == 1.0
    assert markers(result) == ["1,1,cycle1_channel1,TRUE,,10"]
    planes = scan("ndtiff", real / "ndtiff-v2")
    assert sorted((plane.y, plane.x) for plane in planes) == [(-28, -28), (0, 0)]
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "Downsampled_x2").symlink_to(real / "ndtiff-v2/Downsampled_x2")
    with pytest.raises(RawDataError, match="_x2 is a reduced level of an NDTiff data set"):
        create_experiment(raw, tmp_path / "out")


def test_a_lif_of_sections_says_what_it_is(real: Path, tmp_path: Path) -> None:
    with pytest.raises(RawDataError, match=r"'xz' of C x Z x X.* mode xyz"):
        create_experiment(real / "lif", tmp_path)


def test_czi_mosaics_and_time_series(real: Path, tmp_path: Path) -> None:
    pytest.importorskip("aicspylibczi")
    for name in ("tiles_z", "mosaic_test", "tiles_time_z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.czi").symlink_to(real / f"czi/{name}.czi")
    planes = scan("czi", tmp_path / "tiles_z")
    assert len(planes) == 4 * 2 * 2
    assert len({(plane.y, plane.x) for plane in planes}) == 4
    assert len({(plane.y, plane.x) for plane in scan("czi", tmp_path / "mosaic_test")}) == 2
    with pytest.raises(RawDataError, match="is a time series; save one file"):
        scan("czi", tmp_path / "tiles_time_z")


def test_phenix_index_names_what_was_not_copied(real: Path) -> None:
    planes = scan("phenix", real / "phenix-v1")
    headers = read_headers({plane.path: 1 for plane in planes})
    assert len(headers) == 6
    assert sum("No such file" in header.problem for header in headers.values()) == 4
