from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.support.microscope_files import write_ome
from tilewright.errors import RawDataError
from tilewright.io.formats import scan
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    select_region,
)
from tilewright.io.formats.fiji import parse_tile_configuration
from tilewright.io.formats.located_images import number_cycles, raw_planes
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, parse_ome_xml


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def plane(cycle: int, channel: str, z: int | None, **place: Any) -> RawPlane:
    return RawPlane(cycle, channel, z, "", **place)


GUID = "0A1B2C3D-0123-4567-89AB-0123456789AB"
#: A convention, its pattern, and files with the plane that each is.
NAMES: dict[str, tuple[str, str | None, dict[str, RawPlane | None]]] = {
    "the region of the file where the folder names none": ("codex", None, {
        "cyc001/1_00001_Z001_CH1.tif": plane(1, "1", 0, tile=1, region="1"),
        "cyc001/2_00001_Z001_CH1.tif": plane(1, "1", 0, tile=1, region="2"),
    }),
    "what is no plane": ("codex", None, {
        "Cyc1_reg1/1_00001_Z001_CH1.tif": plane(1, "1", 0, tile=1),
        "Cyc1_reg1/._1_00001_Z001_CH1.tif": None,
        "Cyc1_reg1/1_00001_Z001_CH1.tif.part": None,
        "Cyc1_reg1/Thumbs.db": None,
        "Cyc1_reg1/overview.tif": None,
        "recycled/1_00001_Z001_CH1.tif": None,
    }),
    "every field": (
        "pattern", "{region}/cycle{cycle}/tile_r{row}_c{col}_z{z}_ch{channel}.tif", {
            f"A/cycle2/tile_r07_c03_z{z + 4}_chDAPI.tif":
            plane(2, "DAPI", z, row=7, col=3, region="A") for z in (0, 1)
        },
    ),
    "missing fields mean one and pages are planes": ("pattern", "x+y {tile:04}.tif", {
        "x+y 0007.tif": plane(1, "1", None, tile=7), "x+y 0008.tiff": None,
    }),
    "repeated fields must agree": ("pattern", "c{cycle}/c{cycle}_t{tile}_c{cycle}_*.tif", {
        "c1/c1_t1_c1_any.tif": plane(1, "1", None, tile=1),
        "c1/c2_t1_c2_any.tif": None,
        "c2/c2_t1_c1_any.tif": None,
    }),
    "sites, wavelengths, wells and z": ("imagexpress", None, {
        f"TimePoint_1/ZStep_1/plate_B02_s3_w2{GUID}.tif": plane(1, "2", 0, tile=3, region="B02"),
        f"TimePoint_1/ZStep_2/plate_B02_s3_w2{GUID}.TIF": plane(1, "2", 1, tile=3, region="B02"),
        "TimePoint_1/ZStep_0/plate_B02_s3_w2.tif": None,
        f"TimePoint_1/ZStep_1/plate_B02_s3_w2_thumb{GUID}.tif": None,
    }),
    # A wavelength without a stack keeps its one plane, which is then missing in depth.
    "projections beside stacks": ("imagexpress", None, {
        "TimePoint_1/ZStep_1/p_s1_w1.tif": plane(1, "1", 0, tile=1),
        "TimePoint_1/ZStep_2/p_s1_w1.tif": plane(1, "1", 1, tile=1),
        "TimePoint_1/p_s1_w1.tif": None,
        "TimePoint_1/p_s1_w2.tif": plane(1, "2", 0, tile=1),
    }),
    "cycle folders": ("imagexpress", None, {
        f"cycle{cycle}/TimePoint_1/a_s1_w1.tif": plane(cycle, "1", None, tile=1) for cycle in (1, 2)
    }),
    "flat files": ("imagexpress", None, {
        "a_s10_w2.tif": plane(1, "2", None, tile=10),
        "a_s10.tif": plane(1, "1", None, tile=10),
        "a_w2.tif": plane(1, "2", None, tile=1),
        "a.tif": None,
    }),
}  # fmt: skip


@pytest.mark.parametrize(("convention", "pattern", "files"), NAMES.values(), ids=NAMES)
def test_names_are_planes_or_passed_over(
    tmp_path: Path, convention: str, pattern: str | None, files: dict[str, RawPlane | None]
) -> None:
    touch(tmp_path, *files)
    expected = [found._replace(path=str(tmp_path / name)) for name, found in files.items() if found]
    assert sorted(scan(convention, tmp_path, ScanOptions(pattern=pattern))) == sorted(expected)


@pytest.mark.parametrize(
    ("folder", "region"),
    [
        ("Cyc2_reg3", "3"),
        ("cyc002_reg003_211206_105217", "3"),
        ("cyc02", "1"),
        ("CYC2_REG3", "3"),
    ],
)
@pytest.mark.parametrize("below", [".", "data/raw", "raw"])
def test_codex_spellings(tmp_path: Path, folder: str, region: str, below: str) -> None:
    root = tmp_path / below
    touch(root, f"{folder}/1_00012_Z003_CH4.tif", f"{folder}/1_00012_Z001_CH4.tif")
    touch(tmp_path, "notes/other.tif")
    last, first = plane(2, "4", 2, tile=12, region=region), plane(2, "4", 0, tile=12, region=region)
    path = str(root / folder / "1_00012_Z003_CH4.tif")
    found = scan("codex", tmp_path)
    assert last._replace(path=path) in found
    assert first._replace(path=path.replace("Z003", "Z001")) in found
    assert len(found) == 2


def test_a_region_is_selected_by_its_name(tmp_path: Path) -> None:
    planes = [plane(1, "1", 0, region=region) for region in "12"]
    assert [plane.region for plane in select_region(planes, "2", tmp_path)] == ["2"]
    with pytest.raises(RawDataError, match="regions 1, 2"):
        select_region(planes, None, tmp_path)
    with pytest.raises(RawDataError, match="no region '3', only 1, 2"):
        select_region(planes, "3", tmp_path)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (None, "acquisition.pattern"),
        ("tile_{row}.tif", "must hold"),
        ("tile_{row}_{col}_{tile}.tif", "must hold"),
        ("{tile}_{colour}.tif", "colour"),
        ("{tile}_{.tif", "unknown field '{'"),
    ],
)
def test_pattern_that_cannot_work_is_refused(
    tmp_path: Path, pattern: str | None, said: str
) -> None:
    with pytest.raises(RawDataError, match=said):
        scan("pattern", tmp_path, ScanOptions(pattern=pattern))


def test_fiji_positions_cycles_and_split_channels(tmp_path: Path) -> None:
    touch(tmp_path, *(f"cycle{n}/C{c}-t{t}.tif" for n in (1, 2) for c in (1, 2) for t in (1, 2)))
    touch(tmp_path, "cycle1/C1-overview.tif")
    text = "# comment\ndim = 2\nC1-t1.tif; ; (90.5, -3)\nC1-t2.tif ;; (0.0,1e1)\n"
    for cycle in (1, 2):
        (tmp_path / f"cycle{cycle}" / "TileConfiguration.txt").write_text(text)
    planes = scan("fiji", tmp_path)
    assert len(planes) == 8
    assert {(p.cycle, p.channel) for p in planes} == {(1, "1"), (1, "2"), (2, "1"), (2, "2")}
    found = {(p.tile_name, p.y, p.x, p.unit) for p in planes}
    assert found == {("1", -3.0, 90.5, "px"), ("2", 10.0, 0.0, "px")}
    listed = "".join(f"C{c}-t{t}.tif; ; ({t}, 0)\n" for c in (1, 2) for t in (1, 2))
    (tmp_path / "cycle1/TileConfiguration.txt").write_text(listed)
    of_first = [p for p in scan("fiji", tmp_path) if p.cycle == 1]
    assert len(of_first) == 4
    assert {(p.tile, p.x) for p in of_first} == {(1, 1.0), (2, 2.0)}
    deep = "# comment\ndim = 3\nmultiseries = true\na b.tif; ; (1e1, -2, 7)\n"
    assert parse_tile_configuration(deep) == [("a b.tif", -2.0, 10.0)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a.tif; 3; (1, 2)", "line 2: .* for series in one file"),
        ("a.tif; ; (1)", "line 2: .* is not 'file; ; "),
        ("a.tif; ; (e, 1)", "line 2: .* correct the line"),
    ],
)
def test_fiji_line_that_cannot_be_read(line: str, said: str) -> None:
    with pytest.raises(RawDataError, match=said):
        parse_tile_configuration(f"dim = 2\n{line}\n", "T.txt")


def test_ome_tiff_one_file_per_cycle(tmp_path: Path) -> None:
    for name in ("a.ome.tif", "b.ome.tif"):
        write_ome(tmp_path / name, [(0.0, 0.0), (0.0, 9.0), (7.0, 9.0)])
    planes = scan("ome_tiff", tmp_path)
    assert len(planes) == 2 * 3 * 2 * 3
    assert {p.cycle for p in planes if p.path.endswith("b.ome.tif")} == {2}
    path = str(tmp_path / "a.ome.tif")
    assert RawPlane(1, "2", 2, path, page=11, tile=2, y=0.0, x=9.0) in planes
    assert RawPlane(1, "2", 2, path, page=17, tile=3, y=7.0, x=9.0, unit="um") in planes
    with tifffile.TiffFile(path) as tiff:
        assert tiff.pages[11].asarray().max() == 1


def image_file(path: Path, x: float | None, *names: str) -> tuple[int | None, str, list[OmeImage]]:
    """Return a file of cycle 1 whose one image has channels of some names, at y 5 and x."""
    planes = [OmePlane(channel, 0, channel, None) for channel in range(len(names))]
    channels = [OmeChannel(name, None, None) for name in names]
    return 1, str(path), [OmeImage(channels, planes, None if x is None else 5.0, x)]


@pytest.mark.parametrize(
    ("files", "tiles"),
    [
        # one file of each channel
        ([("t1_a", 0.0, "a"), ("t1_b", 0.0, "b"), ("t2_a", 9.0, "a"), ("t2_b", 9.0, "b")], "1122"),
        # taken again: never one tile of two planes
        ([("t1", 0.0, "a"), ("t2", 9.0, "a"), ("t3", 0.0, "a")], "123"),
        ([("t1a", 0.0, "a"), ("t1b", 0.0, "b"), ("t9a", 0.0, "a"), ("t9b", 0.0, "b")], "1122"),
        ([("t1", 0.0, "a", "b"), ("t2", 0.0, "a", "b")], "12"),
        # natural order of the names
        ([("t10", 0.0, "a"), ("t2", 9.0, "a")], "21"),
    ],
)
def test_images_at_one_position_are_a_tile_unless_their_channels_are_the_same(
    tmp_path: Path, files: list[tuple[Any, ...]], tiles: str
) -> None:
    written = [image_file(tmp_path / name, x, *names) for name, x, *names in files]
    planes = raw_planes(number_cycles(written), ScanOptions())
    found = {Path(plane.path).name: plane.tile_name for plane in planes}
    assert found == {name: tile for (name, *_), tile in zip(files, tiles, strict=True)}
    assert len({(p.tile, p.channel, p.z) for p in planes}) == len(planes)


OME = """<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">
<Pixels DimensionOrder="{order}" SizeX="8" SizeY="8" SizeZ="3" SizeC="2" SizeT="{t}" {size}>
<Channel Name="DAPI" EmissionWavelength="461"/><Channel/>{data}{plane}</Pixels></Image></OME>"""


TURRET = (
    '<Objective ID="O:0" LensNA="0.1" Immersion="Air"/>'
    '<Objective ID="O:1" LensNA="1.2" Immersion="Water"/>'
)


def ome(order: str = "XYCZT", data: str = "<TiffData/>", plane: str = "", **fields: str) -> str:
    return OME.format(order=order, data=data, plane=plane, **{"size": "", "t": "1", **fields})


def test_ome_xml_dimension_order_and_planes_in_several_files() -> None:
    (image,) = parse_ome_xml(ome("XYCZT"), "a.tif")
    assert [(p.channel, p.z) for p in image.planes] == [(c, z) for z in range(3) for c in range(2)]
    (image,) = parse_ome_xml(ome("XYZCT"), "a.tif")
    assert [(p.channel, p.z) for p in image.planes] == [(c, z) for c in range(2) for z in range(3)]
    here = '<TiffData IFD="0" PlaneCount="5"/>'
    data = '<TiffData IFD="4" FirstC="1" FirstZ="2"><UUID FileName="b.tif">urn</UUID></TiffData>'
    (image,) = parse_ome_xml(ome(data=here + data), "a.tif")
    assert image.planes[4:] == [(0, 2, 4, None), (1, 2, 4, "b.tif")]
    assert [channel.name for channel in image.channels] == ["DAPI", None]
    assert image.channels[0].emission_nm == 461.0

    (image,) = parse_ome_xml(ome().replace("<Channel/>", ""), "a.tif")  # one told of two
    assert [(c.name, c.emission_nm) for c in image.channels] == [(None, None)] * 2


@pytest.mark.parametrize(("count", "stored"), [(5, 5), (1, 1), (0, 0)])
def test_ome_xml_of_an_acquisition_that_was_stopped(count: int, stored: int) -> None:
    """Fewer planes than stated are those that are stored."""
    data = f'<TiffData IFD="0" PlaneCount="{count}"/>' if count else ""
    (image,) = parse_ome_xml(ome(data=data), "a.tif")
    whole = [(c, z, 2 * z + c, None) for z in range(3) for c in range(2)]
    assert image.planes == whole[:stored]


@pytest.mark.parametrize(
    ("unit", "um"),
    [
        *(("pixel", None), ("reference frame", None), ("parsec", None), ("", None)),
        *(("Å", 2e-4), ("pm", 2e-6), ("nm", 2e-3), ("mm", 2e3), ("in", 50_800.0), ("thou", 50.8)),
    ],
)
def test_a_unit_that_is_no_length_is_no_micrometre(unit: str, um: float | None) -> None:
    size = " ".join(f'PhysicalSize{k}="2" PhysicalSize{k}Unit="{unit}"' for k in "XZ")
    at = f'PositionX="2" PositionXUnit="{unit}" PositionY="2" PositionYUnit="{unit}"'
    (image,) = parse_ome_xml(ome(plane=f"<Plane {at}/>", size=size), "a.tif")
    assert image.pixel_um == pytest.approx(um)
    assert image.z_step_um == pytest.approx(um)
    assert image.position_in_px is (unit == "pixel")
    assert image.x == (2.0 if unit == "pixel" else pytest.approx(um))
    mixed = at.replace("PositionYUnit=", 'PositionYUnit="mm" Was=')
    (image,) = parse_ome_xml(ome(plane=f"<Plane {mixed}/>"), "a.tif")
    assert (image.y, image.position_in_px) == (2000.0, False)
    assert image.x == pytest.approx(um)


def test_wavelengths_and_times_in_their_units() -> None:
    channel = 'EmissionWavelength="461" EmissionWavelengthUnit="{}"'
    for unit, nm in (("nm", 461.0), ("Å", 46.1), ("pixel", None)):
        xml = ome().replace('EmissionWavelength="461"', channel.format(unit))
        assert parse_ome_xml(xml, "a.tif")[0].channels[0].emission_nm == nm
    for unit, ms in (("s", 2000.0), ("ms", 2.0), ("µs", 0.002), ("fortnight", None)):
        plane = f'<Plane TheC="0" ExposureTime="2" ExposureTimeUnit="{unit}"/>'
        assert parse_ome_xml(ome(plane=plane), "a.tif")[0].channels[0].exposure_ms == ms


@pytest.mark.parametrize(
    ("lenses", "settings", "expected"),
    [
        ('<Objective LensNA="0.75" Immersion="Air"/>', "", (0.75, 1.0)),
        ('<Objective LensNA="0.8" Immersion="Glycerol"/>', "", (0.8, None)),
        (TURRET, '<ObjectiveSettings ID="O:1"/>', (1.2, 1.333)),
        (TURRET, '<ObjectiveSettings ID="O:1" RefractiveIndex="1.34"/>', (1.2, 1.34)),
        (TURRET, "", (None, None)),
    ],
)
def test_the_objective_in_use(
    lenses: str, settings: str, expected: tuple[float | None, float | None]
) -> None:
    xml = ome().replace('<Image ID="Image:0">', f'{lenses}<Image ID="Image:0">{settings}')
    (image,) = parse_ome_xml(xml, "a.tif")
    assert (image.numerical_aperture, image.immersion_refractive_index) == expected


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("t1.ome.tif", "t2.ome.tif"):
        tifffile.imwrite(tmp_path / name, np.zeros((8, 8), np.uint16), metadata={"axes": "YX"})
    with pytest.raises(RawDataError, match="PositionX"):
        scan("ome_tiff", tmp_path)
    with pytest.raises(RawDataError, match="not a folder"):
        scan("codex", tmp_path / "none")
    with pytest.raises(RawDataError, match=r"a.tif: the OME-XML cannot be read"):
        parse_ome_xml("<OME>", "a.tif")


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        (ome(data='<TiffData/><TiffData IFD="5"/>'), "two planes are stored in the same page"),
        (ome(data='<TiffData/><TiffData IFD="6"/>'), "6 planes are stored by 7 entries"),
        (ome(data='<TiffData IFD="-1" PlaneCount="6"/>'), "IFD is '-1'"),
        (ome(data='<TiffData FirstC="2"/>'), "a TiffData begins at"),
        (ome("XYABC"), "DimensionOrder is 'XYABC'"),
        (ome(t="2"), "SizeT is 2"),
        (ome().replace('SizeC="2"', 'SizeC="999999999"'), "which no image has"),
        (ome(size='PhysicalSizeX="wide"'), "PhysicalSizeX is 'wide'"),
        (ome(plane='<Plane PositionX="inf" PositionY="0"/>'), "PositionX is 'inf'"),
        (ome(plane='<Plane TheC="x" ExposureTime="1"/>'), "TheC is 'x'"),
    ],
)
def test_ome_xml_that_contradicts_itself(xml: str, said: str) -> None:
    with pytest.raises(RawDataError, match=said) as caught:
        parse_ome_xml(xml, "a.tif")
    assert str(caught.value).startswith("a.tif: in the OME-XML ")


def test_the_configuration_overrules_sizes_of_the_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_ome(tmp_path / "a.ome.tif", [(0.0, 0.0), (0.0, 9.0)])
    assert scan("ome_tiff", tmp_path, ScanOptions(pixel_um=0.5, z_step_um=1.5))
    assert scan("ome_tiff", tmp_path, ScanOptions(pixel_um=0.505))
    assert not caplog.messages
    asked = ScanOptions(pixel_um=0.377, z_step_um=1.0)
    assert scan("ome_tiff", tmp_path, asked) == scan("ome_tiff", tmp_path)
    pixel, step = caplog.messages
    assert f"{tmp_path}/a.ome.tif: its metadata give pixel_um as 0.5 µm, but " in pixel
    assert "acquisition.pixel_um is 0.377, which is used" in pixel
    assert "z_step_um as 1.5 µm, but acquisition.z_step_um is 1, which is used" in step
    scan("ome_tiff", tmp_path, asked)
    assert len(caplog.messages) == 2  # said once


def test_cycles_that_are_not_asked_for_are_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_ome(tmp_path / "cycle2.ome.tif", [(0.0, 0.0), (0.0, 9.0)])
    write_ome(tmp_path / "cycle1.ome.tif", [(0.0, 0.0)])
    found = scan("ome_tiff", tmp_path, ScanOptions(pixel_um=0.5, cycles=(1,)))
    assert {plane.cycle for plane in found} == {1}
    assert not caplog.messages


def test_cycles_of_hyperstacks_may_differ_in_depth_and_channels(tmp_path: Path) -> None:
    for cycle, shape in ((1, (3, 2)), (2, (5, 4)), (3, (4, 1))):
        (tmp_path / f"cycle{cycle}").mkdir()
        stack = np.zeros((*shape, 16, 20), np.uint16)
        for tile in (1, 2):
            path = tmp_path / f"cycle{cycle}/t{tile}.tif"
            tifffile.imwrite(path, stack, imagej=True, metadata={"axes": "ZCYX"})
    planes = scan("pattern", tmp_path, ScanOptions(pattern="cycle{cycle}/t{tile}.tif"))
    found = {
        cycle: {(p.channel, p.z) for p in planes if p.cycle == cycle and p.tile == 2}
        for cycle in (1, 2, 3)
    }
    assert found[1] == {(str(channel), z) for channel in (1, 2) for z in range(3)}
    assert found[2] == {(str(channel), z) for channel in (1, 2, 3, 4) for z in range(5)}
    assert found[3] == {("1", None)}  # its pages are planes


def test_a_tile_without_a_cycle_where_others_have_one_is_refused(tmp_path: Path) -> None:
    for name in ("cycle2_t1.ome.tif", "cycle2_t2.ome.tif", "t3.ome.tif"):
        write_ome(tmp_path / name, [(0.0, 0.0)])
    with pytest.raises(RawDataError, match=r"t3\.ome\.tif has no cycle in its name, but other fil"):
        scan("ome_tiff", tmp_path)
    (tmp_path / "t3.ome.tif").unlink()
    assert {plane.cycle for plane in scan("ome_tiff", tmp_path)} == {2}
