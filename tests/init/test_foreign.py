"""``tilewright init`` on folders of other programs: read right, or explained in one sentence."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.init.raw_folders import (
    SIZE,
    STEP,
    filled_in,
    grid_of,
    initiated,
    specimen_tiles,
    tile_rows,
)
from tests.support.microscope_files import write_ome
from tilewright.errors import RawDataError
from tilewright.init.folder import create_experiment
from tilewright.kernels.tile_positions.tile_order import tile_places


def refused(folder: Path) -> str:
    with pytest.raises(RawDataError) as caught:
        create_experiment(folder, folder.parent / "out")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a/b/NDTiff.index", "its index holds no image"),
        ("Images/r01c02f03p01-ch1sk1fk1fl1.tiff", "an Opera Phenix or Operetta export"),
        ("p_D08_T0001F001L01A01Z01C01.tif", "without MeasurementData.mlf"),
        ("reg001_X01_Y01_t001_z001_c001.tif", "output of the CODEX Processor"),
        ("tiles/reg001_X01_Y01_t001_z001_c001.tif", "output of the CODEX Processor"),
        ("C-001_S-000_S_APC_R-01_W-B-1_ROI-01_A-CD4_C-REA.tif", "a MACSima export"),
        (
            "CYC-001_SCN-001_ST-S_R-01_W-A-1_ROI-001_F-001_A-DAPI_C-None_D-DAPI.tif",
            "holds no stage position",
        ),
        ("S001_mono_dapi_reg_pyr16_region_001.tif", "a Cell DIVE export"),
        ("s_1.0.4_R000_DAPI__FINAL_AFR_F.ome.tif", "a Cell DIVE export"),
        ("Scan1/scan.oir", ".oir files of Olympus FluoView (see Scan1/scan.oir)"),
        ("plate.ome.zarr/0/.zarray", ".zarr files of OME-Zarr"),
    ],
)
def test_folders_that_are_explained(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / "raw" / name
    path.parent.mkdir(parents=True)
    path.touch()
    if name.startswith("CYC"):
        tifffile.imwrite(path, np.zeros((64, 64), np.uint16))
    if not name.endswith((".oir", ".zarray")):
        for tile in range(4):
            tifffile.imwrite(tmp_path / f"raw/t_{tile}_DAPI.tif", np.zeros((64, 64), np.uint16))
    message = refused(tmp_path / "raw")
    assert said in message
    assert message.count("\n") == 0
    assert not (tmp_path / "out").exists()


def test_other_names_are_nobody_elses(tmp_path: Path) -> None:
    """A form of another program must not be seen in names that are read right."""
    for name in ("C-1_S-{}.tif", "S{:03}_DAPI.tif", "mono_{}.tif", "index_{}.tif", "r1c1f{}.tif"):
        raw = tmp_path / name[:5]
        raw.mkdir()
        for number in range(1, 5):
            tifffile.imwrite(raw / name.format(number), np.zeros((64, 64), np.uint16))
        assert create_experiment(raw, tmp_path / f"out{name[:5]}").convention == "pattern"


def test_an_mcmicro_root_is_read_below_raw(tmp_path: Path) -> None:
    root = tmp_path / "exemplar"
    for cycle in (1, 2):
        write_ome(root / f"raw/e-cycle-0{cycle}.ome.tiff", [(0, 0), (0, 9), (7, 0), (7, 9)], z=1)
    (root / "markers.csv").write_text("channel_number,cycle_number,marker_name\n1,1,DNA\n")
    result = create_experiment(root, tmp_path / "out")
    assert result.convention == "ome_tiff"
    assert "2 cycles, 2 channels, 1 z-plane," in result.notes.findings[0]
    assert "\t../exemplar/raw\n" in result.samples.read_text()
    assert result.samples.read_text().splitlines()[1].startswith("exemplar\t")
    filled_in(result)


def test_channels_in_ome_tiffs_without_positions_are_those_of_numbered_tiles(
    tmp_path: Path,
) -> None:
    (tmp_path / "raw").mkdir()
    for number, tile in enumerate(specimen_tiles(2, 2).reshape(-1, SIZE, SIZE)):
        planes = np.stack([tile, tile // 2, tile // 3])
        told = {"axes": "CYX", "Channel": {"Name": ["DAPI", "CD3", "CD8"]}, "PhysicalSizeX": 0.3}
        path = tmp_path / f"raw/tile_{number}.ome.tif"
        tifffile.imwrite(path, planes, photometric="minisblack", metadata=told)
    result, acquisition = initiated(tmp_path / "raw")
    assert (acquisition["convention"], acquisition["pixel_um"]) == ("pattern", 0.3)
    assert "1,1,DAPI,TRUE,,\n1,2,CD3,,,\n1,3,CD8,,," in result.markers.read_text()
    filled_in(result)


def test_keyence_in_xy_folders(tmp_path: Path) -> None:
    tiles = specimen_tiles(2, 3)
    for position in (1, 2):
        folder = tmp_path / f"raw/XY0{position}"
        folder.mkdir(parents=True)
        for number, place in enumerate(tile_places("snake_right_down", 2, 3), start=1):
            for z, channel in np.ndindex(2, 2):
                name = f"Image_XY0{position}_{number:05}_Z{z + 1:03}_CH{channel + 1}.tif"
                tifffile.imwrite(folder / name, tiles[place])
    result, acquisition = initiated(tmp_path / "raw")
    assert acquisition["pattern"] == ("XY{region}/Image_XY{region}_{tile}_Z{z}_CH{channel}.tif")
    rows = tile_rows(result)
    places = tile_places("snake_right_down", 2, 3)
    for name in "12":
        of_sample = [row for row in rows if row["sample"].endswith(name)]
        assert list(grid_of(of_sample).values()) == places
    assert len(filled_in(result).samples) == 2
    shutil.rmtree(tmp_path / "raw/XY02")
    one, acquisition = initiated(tmp_path / "raw", "one")
    assert len(tile_rows(one)) == 6
    assert len(filled_in(one).samples) == 1


def test_stitched_cycles_of_different_sizes_are_read_or_explained(tmp_path: Path) -> None:
    raw, split = tmp_path / "raw", tmp_path / "split"
    for folder in (raw, split):
        folder.mkdir()
    for cycle in (1, 2, 3):
        image = np.zeros((2, SIZE + cycle, SIZE), np.uint16)
        tifffile.imwrite(raw / f"cycle{cycle}.tif", image, photometric="minisblack")
        for channel, plane in enumerate(image, start=1):
            tifffile.imwrite(split / f"cycle{cycle}_ch{channel}.tif", plane)
    result, acquisition = initiated(raw)
    assert acquisition["convention"] == "stitched"
    asked = [key.split(": ")[1] for key in result.notes.unknown]
    assert asked == ["pixel_um", "reference"]
    shutil.rmtree(result.config.parent)
    result, _ = initiated(split)
    with pytest.raises(RawDataError, match="where most are 129 x 128"):
        filled_in(result)


def test_tiles_with_a_pyramid_each_are_no_stitched_images(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    tiles = specimen_tiles(2, 2)
    for number, place in enumerate(tile_places("snake_right_down", 2, 2)):
        at = {"PositionX": [place[1] * STEP * 0.5], "PositionY": [place[0] * STEP * 0.5]}
        metadata = {"axes": "YX", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5, "Plane": at}
        with tifffile.TiffWriter(tmp_path / f"raw/t{number}.ome.tif", ome=True) as writer:
            writer.write(tiles[place], subifds=1, metadata=metadata)
            writer.write(tiles[place][::2, ::2], subfiletype=1)
    assert initiated(tmp_path / "raw")[1]["convention"] == "ome_tiff"
