"""Files of microscopes: every plane, place and number that the writer gave is read again."""

import re
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from scipy import ndimage

from tests.support.microscope_files import UNTOLD, WRITERS, Specimen
from tests.support.runs import Run, mark_references
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.errors import RawDataError
from tilewright.init.folder import create_experiment
from tilewright.init.metadata import read_metadata
from tilewright.init.recognise import recognise
from tilewright.io.formats import read_images, scan
from tilewright.io.formats.common import RawPlane
from tilewright.io.formats.ndtiff import read_index
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tiles import read_plane

STEP_PX = 40


@pytest.fixture(scope="module")
def specimen() -> Specimen:
    light = ndimage.gaussian_filter(np.random.default_rng(8).random((2, 3, 104, 152)), (0, 0, 2, 2))
    scene = np.rint(100 + 4000 * light / light.max()).astype(np.uint16)
    tiles = {
        (row, col): np.ascontiguousarray(
            scene[..., STEP_PX * row :, STEP_PX * col :][..., :64, :72]
        )
        for row, col in np.ndindex(2, 3)
    }
    return Specimen(tiles, STEP_PX, ("DAPI", "CD8"), (461.0, 519.0))


def edit(path: Path, old: str, new: str, count: int = -1) -> None:
    """Replace text of an index that begins with a byte order mark."""
    text = path.read_text("utf-8-sig")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8-sig")


def check_planes(planes: Sequence[RawPlane], specimen: Specimen) -> None:
    """Compare pixels with the tile whose place the plane has."""
    first_y = min(plane.y or 0.0 for plane in planes)
    first_x = min(plane.x or 0.0 for plane in planes)
    tiles = set()
    for plane in planes:
        assert plane.y is not None
        assert plane.x is not None
        pixel_um = specimen.pixel_um if plane.unit == "um" else 1.0
        at = np.array([plane.y - first_y, plane.x - first_x]) / (STEP_PX * pixel_um)
        row, col = np.round(at).astype(int)
        tiles.add((plane.tile_name, row, col))
        assert np.allclose(at, (row, col), atol=1e-3)
        truth = specimen.tiles[row, col][int(plane.channel) - 1, plane.z or 0]
        assert np.array_equal(read_plane(plane.path, plane.page or 0), truth)
    # each tile has one name, in all channels, planes and cycles
    assert len(tiles) == len({name for name, *_ in tiles}) == len(specimen.tiles)


@pytest.mark.parametrize("convention", WRITERS)
def test_what_was_written_is_read(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    for cycle in (1, 2):
        WRITERS[convention](tmp_path / "raw", cycle, specimen)
    planes = scan(convention, tmp_path / "raw")
    depth = 1 if convention == "macsima" else 3  # it has one plane per field
    assert len(planes) == 2 * 6 * 2 * depth
    check_planes(planes, specimen)
    headers = read_headers({plane.path: (plane.page or 0) + 1 for plane in planes})
    assert {header[2:5] for header in headers.values()} == {(64, 72, "uint16")}
    assert {header.problem for header in headers.values()} == {""}
    untold = UNTOLD.get(convention, set())
    told = read_metadata(recognise(tmp_path / "raw"))
    assert told.pixel_um == pytest.approx(specimen.pixel_um)
    assert told.z_step_um == (None if "z" in untold else pytest.approx(specimen.z_step_um))
    assert told.numerical_aperture == (None if "aperture" in untold else specimen.aperture)
    for number, marker in enumerate(told.markers):
        assert marker.marker == f"{specimen.names[number % 2]}_{number // 2 + 1}"
        emission = None if "emission" in untold else specimen.emission_nm[number % 2]
        assert marker.emission_nm == emission
        assert marker.exposure_ms == (None if "exposure" in untold else specimen.exposure_ms)
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    assert result.convention == convention
    counted = f"2 cycles, 2 channels, {depth} z-plane{'s' * (depth > 1)}, 1 region"
    assert counted in result.notes.findings[0]
    text = result.markers.read_text()
    assert "1,1,DAPI" in text
    assert "1,2,CD8" in text
    # the rows that init writes are those of the planes
    mark_references(result.markers)
    run = Run(result.config.parent, result.config)
    run.edit(acquisition={"z_step_um": specimen.z_step_um}, deconvolve={"method": "none"})
    run.edit(results=str(tmp_path / "results"))
    experiment = read_experiment(run.config)
    assert experiment.voxel_um[1] == pytest.approx(specimen.pixel_um)
    check_raw(experiment, Layout(str(tmp_path / "results")))


def test_a_bleach_is_a_cycle_of_its_own(tmp_path: Path, specimen: Specimen) -> None:
    """It comes before the stain of its cycle: with it the background can be subtracted."""
    WRITERS["macsima"](tmp_path, 1, specimen)
    for path in list(tmp_path.rglob("*_ST-S_*.tif")):
        shutil.copy(path, path.with_name(path.name.replace("_ST-S_", "_ST-B_")))
    planes = scan("macsima", tmp_path)
    assert {plane.cycle for plane in planes if "_ST-B_" in plane.path} == {1}
    assert {plane.cycle for plane in planes if "_ST-S_" in plane.path} == {2}


def test_cycles_are_told_by_names_or_by_their_order(tmp_path: Path, specimen: Specimen) -> None:
    WRITERS["nd2"](tmp_path, 1, specimen)
    data = (tmp_path / "cycle1.nd2").read_bytes()
    (tmp_path / "cycle0.nd2").write_bytes(data)
    assert {plane.cycle for plane in scan("nd2", tmp_path)} == {0, 1}
    (tmp_path / "blank.nd2").write_bytes(data)
    with pytest.raises(
        RawDataError, match=r"blank\.nd2 has no cycle in its name, but other files do"
    ):
        scan("nd2", tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    for name in ("exp_R1", "exp_R2", "exp_R10"):
        (tmp_path / f"{name}.nd2").write_bytes(data)
    order = {plane.cycle: Path(plane.path).stem for plane in scan("nd2", tmp_path)}
    assert order == {1: "exp_R1", 2: "exp_R2", 3: "exp_R10"}


def test_mixed_folders_are_told(tmp_path: Path, specimen: Specimen) -> None:
    WRITERS["nd2"](tmp_path / "raw", 1, specimen)
    (tmp_path / "raw/overview.qptiff").touch()
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    said = "1 file ignored: overview.qptiff; of another kind, or of a name that does not follow"
    assert any(said in warning for warning in result.notes.warnings)
    WRITERS["lif"](tmp_path / "raw", 2, specimen)
    with pytest.raises(RawDataError, match="name a folder of one format"):
        create_experiment(tmp_path / "raw", tmp_path / "out2")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "Data.mlf",
            '"1" bts:FieldIndex="2"',
            '"2" bts:FieldIndex="2"',
            "a well has several time points",
        ),
        ("Data.mlf", 'bts:FieldIndex="2"', "", "no 'FieldIndex'"),
        ("Data.mlf", ">plate_B03", ">other", "none of the planes that it lists is in the folder"),
        ("Detail.mrf", "</bts:MeasurementDetail>", "", "no element found"),
    ],
)
def test_a_measurement_that_cannot_be_read(
    tmp_path: Path, specimen: Specimen, file: str, old: str, new: str, said: str
) -> None:
    WRITERS["cv8000"](tmp_path, 1, specimen)
    edit(tmp_path / f"cycle1/Measurement{file}", old, new)
    with pytest.raises(RawDataError, match=rf"Measurement{file[:4]}.*{said}") as caught:
        scan("cv8000", tmp_path)
    assert "copy" in str(caught.value) or "save" in str(caught.value)


def test_sites_without_positions(tmp_path: Path, specimen: Specimen) -> None:
    """One is named; where no file is calibrated, sites are known by number."""
    WRITERS["imagexpress"](tmp_path / "none", 1, replace(specimen, pixel_um=0.0))
    planes = scan("imagexpress", tmp_path / "none")
    assert {plane.tile for plane in planes} == set(range(1, 7))
    assert {(plane.y, plane.x) for plane in planes} == {(None, None)}
    WRITERS["imagexpress"](tmp_path / "raw", 1, specimen)
    path = next(tmp_path.rglob("raw/**/ZStep_1/plate_B02_s3_w1*.tif"))
    tifffile.imwrite(path, np.zeros((64, 72), np.uint16))
    with pytest.raises(RawDataError, match=r"_s3_w1.* holds no stage position; copy it again"):
        scan("imagexpress", tmp_path / "raw")


def test_a_wavelength_keeps_its_number(tmp_path: Path, specimen: Specimen) -> None:
    """And what the microscope knows of it, also where an earlier one is not there."""
    WRITERS["imagexpress"](tmp_path / "raw", 1, specimen)
    for path in (tmp_path / "raw").rglob("*_w1*.tif"):
        path.unlink()
    assert {plane.channel for plane in scan("imagexpress", tmp_path / "raw")} == {"2"}
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    assert "1,2,CD8,TRUE,519,50\n" in result.markers.read_text()


def test_a_field_of_an_index_that_lacks_a_channel(tmp_path: Path, specimen: Specimen) -> None:
    """The other channels stay what they are."""
    WRITERS["phenix"](tmp_path, 1, specimen)
    index = tmp_path / "cycle1/Images/Index.idx.xml"
    for image in re.findall(r"<Image Version.*?</Image>", index.read_text("utf-8-sig")):
        if "<FieldID>2<" in image and "<ChannelID>1<" in image:
            edit(index, image, "")
    for plane in scan("phenix", tmp_path):
        assert f"-ch{plane.channel}sk" in plane.path
    edit(index, "<TimepointID>0<", "<TimepointID>1<", 1)
    with pytest.raises(RawDataError, match=r"Index\.idx\.xml holds several time points"):
        scan("phenix", tmp_path)


def test_numbers_in_other_units_are_turned_into_ours_or_unknown(
    tmp_path: Path, specimen: Specimen
) -> None:
    WRITERS["phenix"](tmp_path, 1, specimen)
    index = tmp_path / "cycle1/Images/Index.idx.xml"
    edit(index, 'MainEmissionWavelength Unit="nm"', 'MainEmissionWavelength Unit="furlong"')
    edit(index, 'ExposureTime Unit="s"', 'ExposureTime Unit="ms"')
    edit(index, 'ImageResolutionX Unit="m"', 'ImageResolutionX Unit="mm"')
    (image, *_) = [located.image for located in read_images("phenix", tmp_path) or []]
    assert {(c.emission_nm, c.exposure_ms) for c in image.channels} == {(None, 0.05)}
    assert image.pixel_um == pytest.approx(specimen.pixel_um / 1000)


def test_of_several_settings_it_is_unknown_which_were_used(
    tmp_path: Path, specimen: Specimen
) -> None:
    """Of an older measurement, or of a camera of other pixels."""
    WRITERS["cv8000"](tmp_path, 1, specimen)
    folder = tmp_path / "cycle1"
    shutil.copy(folder / "two channels.mes", folder / "older.mes")
    (image, *_) = [located.image for located in read_images("cv8000", tmp_path) or []]
    assert (image.z_step_um, image.pixel_um) == (None, specimen.pixel_um)
    assert {channel.name for channel in image.channels} == {None}
    detail = folder / "MeasurementDetail.mrf"
    (camera,) = re.findall("<bts:MeasurementChannel.*</bts:MeasurementChannel>", detail.read_text())
    edit(detail, camera, camera + camera.replace(str(specimen.pixel_um), "0.65"))
    (image, *_) = [located.image for located in read_images("cv8000", tmp_path) or []]
    assert image.pixel_um is None


@pytest.mark.parametrize("convention", ["phenix", "cv8000", "ndtiff"])
def test_an_index_is_found_in_folders_of_any_name(
    tmp_path: Path, specimen: Specimen, convention: str
) -> None:
    """Each is a cycle, in the order of their names."""
    for cycle, name in ((1, "plate 2"), (2, "plate 10")):
        WRITERS[convention](tmp_path / "written", cycle, specimen)
        (folder,) = (tmp_path / "written").iterdir()
        folder.rename(tmp_path / name)
    (tmp_path / "written").rmdir()
    (tmp_path / "plate 2/index.xml").write_text("<page/>")  # of another program
    planes = scan(convention, tmp_path)
    named = {plane.cycle: plane.path[len(str(tmp_path)) + 1 :].split("/")[0] for plane in planes}
    assert named == {1: "plate 2", 2: "plate 10"}
    assert recognise(tmp_path).convention == convention
    (tmp_path / "plate 10").rename(tmp_path / "cycle3")
    with pytest.raises(RawDataError, match=r"plate 2.* has no cycle in its name, but other files"):
        scan(convention, tmp_path)


@pytest.mark.parametrize("offset_um", [0.3, -0.4, 1.5])
def test_a_z_step_is_that_of_a_channel(
    tmp_path: Path, specimen: Specimen, offset_um: float
) -> None:
    """Channels of Harmony have heights of their own; a plane of the first field may be lost."""
    WRITERS["phenix"](tmp_path, 1, specimen)
    index = tmp_path / "cycle1/Images/Index.idx.xml"

    def lifted(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) + offset_um * 1e-6:.9E}<"

    in_channel = r"(<ChannelID>2<(?:(?!</Image>).)*?<PositionZ[^>]*>)([^<]*)<"
    text = index.read_text("utf-8-sig")
    index.write_text(re.sub(in_channel, lifted, text), encoding="utf-8-sig")
    assert index.read_text("utf-8-sig") != text
    for located in read_images("phenix", tmp_path) or []:
        assert located.image.z_step_um == specimen.z_step_um


def as_version(stack: Path, version: int) -> None:
    """Version 2 has no minor version, and its summary begins four bytes earlier."""
    data = bytearray(stack.read_bytes())
    (length,) = struct.unpack_from("<I", data, 24)
    data[12:16] = struct.pack("<I", version)
    if version == 2:
        data[16 : 24 + length] = data[20 : 28 + length]
    stack.write_bytes(data)


def test_ndtiff_that_cannot_be_read(tmp_path: Path, specimen: Specimen) -> None:
    """Without metadata of its images, of an older version, or reduced levels alone."""
    WRITERS["ndtiff"](tmp_path, 1, specimen)
    folder = tmp_path / "cycle1_1"
    (stack,) = folder.glob("*.tif")
    whole = stack.read_bytes()
    data = bytearray(whole)
    for entry in read_index(folder / "NDTiff.index"):
        place = slice(entry.metadata_offset, entry.metadata_offset + entry.metadata_length)
        data[place] = b"{}".ljust(entry.metadata_length)
    stack.write_bytes(data)
    with pytest.raises(RawDataError, match="no PositionX and PositionY"):
        scan("ndtiff", tmp_path)
    stack.write_bytes(whole)
    as_version(stack, 1)
    with pytest.raises(RawDataError, match="is of version 1, and versions 2 and 3 are read; save"):
        scan("ndtiff", tmp_path)
    level = folder / "Downsampled_x2"
    level.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(level / path.name)
    said = rf"{level} is a reduced level of .* copy the folder 'Full resolution' of that"
    for named in (tmp_path, folder, level):
        with pytest.raises(RawDataError, match=said):
            create_experiment(named, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"), [(2, 3, "'TileScan 1' of M x C x Z x X"), (10, 4, "T x C x Z x Y x X")]
)
def test_sections_and_time_series_of_a_lif_are_explained(
    tmp_path: Path, specimen: Specimen, old: int, new: int, told: str
) -> None:
    """Axes have LAS X's numbers: y (2) becomes z (3) in xz scans, the mosaic (10) time (4)."""
    if new == 3:
        flat = {place: stack[:, :1] for place, stack in specimen.tiles.items()}
        specimen = replace(specimen, tiles=flat)
    WRITERS["lif"](tmp_path, 1, specimen)
    path = tmp_path / "cycle1.lif"
    # As long as it was: the header tells its length.
    was, now = (f'DimID="{axis}"'.ljust(len(f'DimID="{old}"')) for axis in (old, new))
    data = path.read_bytes()
    assert data.count(was.encode("utf-16-le")) == 1
    path.write_bytes(data.replace(was.encode("utf-16-le"), now.encode("utf-16-le")))
    with pytest.raises(RawDataError, match=rf"its images are .*{told}.* mode xyz"):
        scan("lif", tmp_path)


@pytest.mark.parametrize("convention", ["czi", "nd2", "lif"])
def test_a_damaged_container_is_named(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    WRITERS[convention](tmp_path, 1, specimen)
    path = tmp_path / f"cycle1.{convention}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "cannot be read" in read_headers({str(path): 1})[str(path)].problem


def test_a_missing_library_is_one_sentence(
    tmp_path: Path, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS["nd2"](tmp_path, 1, specimen)
    monkeypatch.setitem(sys.modules, "nd2", None)
    monkeypatch.delitem(sys.modules, "tilewright.io.formats.containers.nd2", raising=False)
    with pytest.raises(RawDataError, match=r"needs nd2.*pip install 'tilewright\[nd2\]'"):
        scan("nd2", tmp_path)


def test_regions_of_a_slide(tmp_path: Path, specimen: Specimen) -> None:
    """Scenes of a CZI are samples of their own."""
    czi = pytest.importorskip("pylibCZIrw.czi")
    with czi.create_czi(str(tmp_path / "slide.czi")) as document:
        for scene in (0, 1):
            for (row, col), stack in specimen.tiles.items():
                at = (col * STEP_PX + 900 * scene, row * STEP_PX)
                document.write(stack[0, 0][..., None], location=at, plane={}, scene=scene)
    planes = scan("czi", tmp_path)
    assert [plane.region for plane in planes] == ["1"] * 6 + ["2"] * 6
    result = create_experiment(tmp_path, tmp_path.with_name(f"{tmp_path.name}_out"))
    config = result.config.read_text().replace("pixel_um: null", "pixel_um: 0.5")
    result.config.write_text(config)
    assert len(result.samples.read_text().splitlines()) == 3
    assert len(read_experiment(result.config).samples) == 2
