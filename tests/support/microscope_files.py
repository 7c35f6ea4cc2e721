"""One specimen in the formats of microscopes, written as their software writes it.

CZI by ZEISS' own library and NDTiff by Micro-Manager's; ND2, LIF, Harmony's index,
CellVoyager's, OME companion files and MetaXpress's TIFFs by hand to their published layouts.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

Stack = NDArray[np.uint16]
OME = "http://www.openmicroscopy.org/Schemas/OME/2016-06"


@dataclass(frozen=True)
class Specimen:
    """Tiles (channel, z, y, x) of one cycle by (row, col), and what a microscope knows of them."""

    tiles: Mapping[tuple[int, int], Stack]
    step_px: int
    names: tuple[str, ...]
    emission_nm: tuple[float, ...]
    pixel_um: float = 0.325
    z_step_um: float = 1.5
    aperture: float = 0.75
    exposure_ms: float = 50.0

    @property
    def places(self) -> list[tuple[int, int]]:
        return sorted(self.tiles)

    @property
    def step_um(self) -> float:
        return self.step_px * self.pixel_um

    @property
    def shape(self) -> tuple[int, int, int, int]:
        channels, planes, height, width = next(iter(self.tiles.values())).shape
        return channels, planes, height, width

    def channels(self) -> Iterator[tuple[int, str, float]]:
        """Yield (channel, name, emission in nm)."""
        yield from zip(range(len(self.names)), self.names, self.emission_nm, strict=True)

    def planes(self) -> Iterator[tuple[int, tuple[int, int], int, int, Stack]]:
        """Yield (tile, (row, col), channel, z, plane), z running fastest."""
        for tile, place in enumerate(self.places):
            for channel, z in np.ndindex(*self.shape[:2]):
                yield tile, place, channel, z, self.tiles[place][channel, z]


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tag(name: str, inside: str | Iterable[str] = "", /, **told: object) -> str:
    """Return an element of XML, of what is inside it and of its attributes."""
    head = "".join(f' {key}="{value}"' for key, value in told.items())
    return f"<{name}{head}>{''.join(inside)}</{name.partition(' ')[0]}>"


def write_czi(raw: Path, cycle: int, specimen: Specimen) -> None:
    czi = pytest.importorskip("pylibCZIrw.czi")
    path = made(raw) / f"cycle{cycle}.czi"
    with czi.create_czi(str(path), compression_options="zstd1:") as document:
        for _, (row, col), channel, z, plane in specimen.planes():
            at = (col * specimen.step_px, row * specimen.step_px)
            document.write(plane[..., None], location=at, plane={"C": channel, "Z": z, "T": 0})
        document.write_metadata(
            document_name="specimen",
            channel_names=dict(enumerate(specimen.names)),
            scale_x=specimen.pixel_um * 1e-6,
            scale_y=specimen.pixel_um * 1e-6,
            scale_z=specimen.z_step_um * 1e-6,
        )


def write_ndtiff(raw: Path, cycle: int, specimen: Specimen) -> None:
    # The library leaves its files open: a process of its own closes them.
    process = get_context("fork").Process(target=_write_ndtiff, args=(raw, cycle, specimen))
    process.start()
    process.join()
    assert process.exitcode == 0


def _write_ndtiff(raw: Path, cycle: int, specimen: Specimen) -> None:
    from ndstorage import NDTiffDataset

    summary = {"PixelSize_um": specimen.pixel_um, "z-step_um": specimen.z_step_um}
    name = f"cycle{cycle}"
    dataset = NDTiffDataset(str(made(raw)), name=name, summary_metadata=summary, writable=True)
    for tile, (row, col), channel, z, plane in specimen.planes():
        told = {
            "XPosition_um_intended": col * specimen.step_um,
            "YPosition_um_intended": row * specimen.step_um,
            "PixelSizeUm": specimen.pixel_um,
            "Exposure": specimen.exposure_ms,
        }
        axes = {"position": tile, "channel": specimen.names[channel], "z": z}
        dataset.put_image(axes, plane, told)
    dataset.finish()
    dataset.close()


def write_phenix(raw: Path, cycle: int, specimen: Specimen) -> None:
    """Harmony's ``Images`` folder; its stage runs upwards and in metres from the well's middle."""
    folder = made(raw / f"cycle{cycle}/Images")
    images = []
    for tile, (row, col), channel, z, plane in specimen.planes():
        name = f"r02c03f{tile + 1:02}p{z + 1:02}-ch{channel + 1}sk1fk1fl1.tiff"
        tifffile.imwrite(folder / name, plane, compression="lzw")
        told = {
            **{"id": f"0203K1F{tile + 1}P{z + 1}R{channel + 1}", "State": "Ok", "URL": name},
            **{"Row": 2, "Col": 3, "FieldID": tile + 1, "PlaneID": z + 1, "TimepointID": 0},
            "ChannelID": channel + 1,
        }
        at_um = {"X": col * specimen.step_um, "Y": -row * specimen.step_um}
        at_um["Z"] = z * specimen.z_step_um
        inside = [tag(key, str(value)) for key, value in told.items()]
        inside += [tag(f"Position{k}", f"{um * 1e-6:.9E}", Unit="m") for k, um in at_um.items()]
        images.append(tag("Image", inside, Version=1))
    metres = f"{specimen.pixel_um * 1e-6:.9E}"
    entries = []
    for channel, name, nm in specimen.channels():
        inside = [
            tag("ChannelName", name),
            *(tag(f"ImageResolution{axis}", metres, Unit="m") for axis in "XY"),
            tag("ObjectiveNA", str(specimen.aperture), Unit=""),
            tag("MainEmissionWavelength", f"{nm:g}", Unit="nm"),
            tag("ExposureTime", str(specimen.exposure_ms / 1000), Unit="s"),
        ]
        entries.append(tag("Entry", inside, ChannelID=channel + 1))
    well = tag("Well", [tag("Row", "2"), tag("Col", "3"), tag("Image", id="0203K1F1P1R1")])
    inside = [tag("Wells", well), tag("Maps", tag("Map", entries)), tag("Images", images)]
    space = "http://www.perkinelmer.com/PEHH/HarmonyV5"
    xml = tag("EvaluationInputData", inside, xmlns=space, Version=1)
    head = "<?xml version='1.0' encoding='utf-8'?>"
    (folder / "Index.idx.xml").write_text(head + xml, encoding="utf-8-sig")


def bts(name: str, inside: str | Iterable[str] = "", /, **told: object) -> str:
    return tag(f"bts:{name}", inside, **{f"bts:{key}": value for key, value in told.items()})


def write_cv8000(raw: Path, cycle: int, specimen: Specimen) -> None:
    """CellVoyager's index, details and settings; its stage runs upwards from the well's middle."""
    folder = made(raw / f"cycle{cycle}")
    um = specimen.step_um
    records = []
    for tile, (row, col), channel, z, plane in specimen.planes():
        name = f"plate_B03_T0001F{tile + 1:03}L01A{channel + 1:02}Z{z + 1:02}C{channel + 1:02}.tif"
        tifffile.imwrite(folder / name, plane)
        place: dict[str, object] = {
            **{"Column": 3, "Row": 2, "TimePoint": 1, "FieldIndex": tile + 1, "ZIndex": z + 1},
            **{"Ch": channel + 1, "X": col * um - 50, "Y": 50 - row * um},
            "Z": z * specimen.z_step_um,
        }
        records.append(bts("MeasurementRecord", name, Type="IMG", **place))
        if z == 0:
            place |= {"Type": "IMG", "ZImageProcessing": "Maximum"}
            records.append(bts("MeasurementRecord", f"projection_{name}", **place))
    # Wells that nobody copied, and a field whose focus was not found.
    records.append(records[0].replace('Row="2"', 'Row="4"').replace("_B03_", "_D03_"))
    records.append(records[0].replace('"IMG"', '"ERR"').replace("plate_B03", "failed"))
    pixels = {f"{way}PixelDimension": specimen.pixel_um for way in ("Horizontal", "Vertical")}
    exposure = {"ExposureTime": specimen.exposure_ms}
    settings = [
        bts("ActionAcquire3D", bts("Ch", "1"), SliceLength=specimen.z_step_um),
        *(
            bts("Channel", Ch=k + 1, Fluorophore=name, Acquisition=f"BP{nm:g}/45", **exposure)
            for k, name, nm in specimen.channels()
        ),
    ]
    detail = 'MeasurementDetail bts:MeasurementSettingFileName="two channels.mes"'
    for file, root, inside in (
        ("MeasurementData.mlf", "MeasurementData", records),
        ("MeasurementDetail.mrf", detail, [bts("MeasurementChannel", Ch=1, **pixels)]),
        ("two channels.mes", "MeasurementSetting", settings),
    ):
        space = {"xmlns:bts": "http://www.yokogawa.co.jp/BTS/BTSSchema/1.0"}
        xml = '<?xml version="1.0" encoding="utf-8"?>' + tag(f"bts:{root}", inside, **space)
        (folder / file).write_text(xml, encoding="utf-8-sig")


def write_companion(raw: Path, cycle: int, specimen: Specimen) -> None:
    """A file of all channels and planes per tile; ``.companion.ome`` beside them tells the rest."""
    folder = made(raw / f"cycle{cycle}")
    channels, planes, height, width = specimen.shape
    images = []
    for tile, (row, col) in enumerate(specimen.places):
        name = f"tile{tile}.ome.tif"
        beside = tag("BinaryOnly", MetadataFile="cycle.companion.ome", UUID="urn:uuid:0")
        pointer = {"description": tag("OME", beside, xmlns=OME), "metadata": None}
        stack = specimen.tiles[row, col].reshape(-1, height, width)
        tifffile.imwrite(folder / name, stack, photometric="minisblack", **pointer)
        uuid = tag("UUID", f"urn:uuid:{tile}", FileName=name)
        um = specimen.step_um
        at: dict[str, object] = {"PositionX": col * um, "PositionY": row * um}
        at |= {"ExposureTime": specimen.exposure_ms, "ExposureTimeUnit": "ms"}
        inside = [
            tag("Channel", ID=f"Channel:{tile}:{k}", Name=named, EmissionWavelength=f"{nm:g}",
                SamplesPerPixel=1)
            for k, named, nm in specimen.channels()
        ]  # fmt: skip
        inside += [
            tag("TiffData", uuid, FirstC=c, FirstZ=z, IFD=c * planes + z, PlaneCount=1)
            for c, z in np.ndindex(channels, planes)
        ]
        inside += [tag("Plane", TheC=c, TheZ=0, TheT=0, **at) for c in range(channels)]
        size = {
            **{"SizeX": width, "SizeY": height, "SizeZ": planes, "SizeC": channels, "SizeT": 1},
            **{f"PhysicalSize{axis}": specimen.pixel_um for axis in "XY"},
            "PhysicalSizeZ": specimen.z_step_um,
        }
        order = {"ID": f"Pixels:{tile}", "DimensionOrder": "XYZCT", "Type": "uint16"}
        images.append(tag("Image", tag("Pixels", inside, **order, **size), ID=f"Image:{tile}"))
    (folder / "cycle.companion.ome").write_text(tag("OME", images, xmlns=OME))


def write_macsima(raw: Path, cycle: int, specimen: Specimen) -> None:
    """A file per field and filter; the first plane, twice with a shorter exposure too."""
    folder = made(raw / f"{cycle:03}_AntigenCycle")
    um = specimen.step_um
    for tile, (row, col), channel, z, plane in specimen.planes():
        for exposure_ms in (specimen.exposure_ms, specimen.exposure_ms / 4) if z == 0 else ():
            name = (
                f"CYC-{cycle:03}_SCN-002_ST-S_R-01_W-B01_ROI-001_F-{tile + 1:03}_"
                f"A-{specimen.names[channel]}_C-REA_D-{('DAPI', 'FITC', 'PE')[channel]}_"
                f"EXP-{exposure_ms:g}.tif"
            )
            size = {"SizeZ": 1, "SizeC": 1, "SizeT": 1, "SizeX": plane.shape[1]}
            size |= {"SizeY": plane.shape[0]}
            pixel = {"PhysicalSizeX": specimen.pixel_um, "PhysicalSizeY": specimen.pixel_um}
            light = tag(
                "Channel",
                ID="Channel:0:0",
                EmissionWavelength=f"{specimen.emission_nm[channel]:g}",
            )
            order = {"ID": "Pixels:0", "DimensionOrder": "XYZCT", "Type": "uint16"}
            pixels = tag("Pixels", [light, tag("TiffData")], **order, **size, **pixel)
            at = tag("StageLabel", Name="field", X=col * um, XUnit="µm", Y=row * um, YUnit="µm")
            xml = tag("OME", tag("Image", pixels + at, ID="Image:0"), xmlns=OME)
            counts = plane if exposure_ms == specimen.exposure_ms else plane // 4
            tifffile.imwrite(folder / name, counts, metadata=None, description=xml.encode())


def write_imagexpress(raw: Path, cycle: int, specimen: Specimen) -> None:
    """MetaXpress's names in its own folders, with a projection; PlaneInfo tells the rest."""
    um = specimen.step_um
    for tile, (row, col), channel, z, plane in specimen.planes():
        told = (
            ("bool", "spatial-calibration-state", "on"),
            *(("float", f"spatial-calibration-{axis}", specimen.pixel_um) for axis in "xy"),
            ("string", "spatial-calibration-units", "um"),
            ("float", "stage-position-x", 68300 + col * um),
            ("float", "stage-position-y", 27625.5 + row * um),
            ("float", "z-position", 9319.5 + z * specimen.z_step_um),
            ("float", "wavelength", f"{specimen.emission_nm[channel]:g}"),
            ("string", "_IllumSetting_", specimen.names[channel]),
            ("float", "_MagNA_", specimen.aperture),
            ("float", "_MagRI_", 1),
            ("string", "Exposure Time", f"{specimen.exposure_ms:g} ms"),
        )
        props = [tag("prop", id=key, type=kind, value=value) for kind, key, value in told]
        xml = tag("MetaData", tag("PlaneInfo", props))
        name = f"plate_B02_s{tile + 1}_w{channel + 1}0A1B2C3D-0123-4567-89AB-0123456789AB.tif"
        for step in (f"ZStep_{z + 1}", *(["."] if z == 0 else [])):
            folder = made(raw / f"cycle{cycle}/2024-04-22/1697/TimePoint_1/{step}")
            options = {"metadata": None, "software": "MetaSeries", "description": xml}
            tifffile.imwrite(folder / name, plane, **options)


def write_lif(raw: Path, cycle: int, specimen: Specimen) -> None:
    """LAS X's container: an XML header, then a block of memory per image."""
    channels, planes, height, width = specimen.shape
    stack = np.stack([specimen.tiles[place] for place in specimen.places]).astype("<u2")
    metres, plane = specimen.pixel_um * 1e-6, 2 * width * height
    # axis as LAS X numbers it, elements, length in metres, bytes from one to the next
    sizes = (
        (1, width, metres * (width - 1), 2),
        (2, height, metres * (height - 1), 2 * width),
        (3, planes, specimen.z_step_um * 1e-6 * (planes - 1), plane),
        (10, len(stack), 0.0, plane * planes * channels),
    )
    dimensions = [
        tag("DimensionDescription", DimID=axis, NumberOfElements=count, Origin=0,
            Length=f"{length:.12E}", Unit="m", BitInc=0, BytesInc=step)
        for axis, count, length, step in sizes
    ]  # fmt: skip
    described = [
        tag("ChannelDescription", DataType=0, ChannelTag=0, Resolution=16, Unit="",
            NameOfMeasuredQuantity="", Min=0, Max=65535, LUTName="Gray", IsLUTInverted=0,
            BytesInc=number * plane * planes, BitInc=0)
        for number in range(channels)
    ]  # fmt: skip
    seconds = specimen.exposure_ms / 1000
    camera = [
        tag("WideFieldChannelInfo", UserDefName=name, EmissionWavelength=f"{nm:g}",
            ExposureTime=seconds)
        for _, name, nm in specimen.channels()
    ]  # fmt: skip
    step = specimen.step_px * metres
    tiles = [
        tag("Tile", FieldX=col, FieldY=row, PosX=f"{col * step:.12E}", PosY=f"{row * step:.12E}",
            PosZ=0)
        for row, col in specimen.places
    ]  # fmt: skip
    seen = [tag("Channels", described), tag("Dimensions", dimensions)]
    optics = {"NumericalAperture": specimen.aperture, "RefractionIndex": 1}
    channels_of = tag("WideFieldChannelConfigurator", camera)
    image = [
        tag("ImageDescription", seen),
        tag("Attachment", tiles, Name="TileScanInfo", FlipX=0, FlipY=0, SwapXY=0),
        tag("Attachment", tag("ATLCameraSettingDefinition", channels_of, **optics),
            Name="HardwareSetting"),
    ]  # fmt: skip
    memory = tag("Memory", Size=stack.nbytes, MemoryBlockID="MemBlock_1")
    scan = tag("Element", [tag("Data", tag("Image", image)), memory], Name="TileScan 1")
    inside = [tag("Data"), tag("Children", scan)]
    root = tag("Element", inside, Name="raw", Visibility=1)
    header = tag("LMSDataContainerHeader", root, Version=2)
    text, block = header.encode("utf-16-le"), "MemBlock_1".encode("utf-16-le")
    with (made(raw) / f"cycle{cycle}.lif").open("wb") as stream:
        stream.write(struct.pack("<IIBI", 0x70, 5 + len(text), 0x2A, len(header)) + text)
        stream.write(struct.pack("<IIBQBI", 0x70, 14 + len(block), 0x2A, stack.nbytes, 0x2A, 10))
        stream.write(block + stack.tobytes())


def write_nd2(raw: Path, cycle: int, specimen: Specimen) -> None:
    """NIS-Elements' chunks, version 3: points of the stage, planes in each, channels interleaved.

    The camera is turned by 180 degrees against the stage, as it often is.
    """
    channels, planes, height, width = specimen.shape
    um = specimen.step_um
    attributes = {
        **{"uiWidth": width, "uiHeight": height, "uiWidthBytes": 2 * width * channels},
        **{"uiComp": channels, "uiBpcInMemory": 16, "uiBpcSignificant": 16, "eCompression": 2},
        "uiSequenceCount": planes * len(specimen.places),
    }
    points = {
        f"i{number:010}": {"dPosX": -col * um, "dPosY": -row * um, "dPosZ": 0.0}
        for number, (row, col) in enumerate(specimen.places)
    }
    lift = {"uiCount": planes, "dZStep": specimen.z_step_um, "iType": 0, "dZHome": 0.0}
    lift |= {"dZLow": 0.0, "dZHigh": specimen.z_step_um * (planes - 1), "bZInverted": False}
    experiment = {
        "eType": 2,
        "uLoopPars": {"uiCount": len(points), "bUseZ": False, "Points": points},
        "ppNextLevelEx": {"i0000000000": {"eType": 4, "uLoopPars": lift}},
    }
    described = {
        f"a{number}": {
            **{"sDescription": name, "uiCompCount": 1, "uiSampleIndex": number},
            "pFluorescentProbe": {
                f"m_{way}Spectrum": _line(at)
                for way, at in (("Excitation", nm - 40), ("Emission", nm))
            },
        }
        for number, name, nm in specimen.channels()
    }
    metadata = {
        **{"bCalibrated": True, "dCalibration": specimen.pixel_um},
        **{"dObjectiveNA": specimen.aperture, "dRefractIndex1": 1.0},
        **{"dStgLgCT11": -1.0, "dStgLgCT12": 0.0, "dStgLgCT21": 0.0, "dStgLgCT22": -1.0},
        "sPicturePlanes": {"uiCount": channels, "sPlaneNew": described},
    }
    chunks = {
        "ImageAttributesLV!": _variant("SLxImageAttributes", attributes),
        "ImageMetadataLV!": _variant("SLxExperiment", experiment),
        "ImageMetadataSeqLV|0!": _variant("SLxPictureMetadata", metadata),
    }
    for number, (place, z) in enumerate(product(specimen.places, range(planes))):
        frame = np.ascontiguousarray(specimen.tiles[place][:, z].transpose(1, 2, 0))
        chunks[f"ImageDataSeq|{number}!"] = struct.pack("<d", 0.0) + frame.tobytes()
    _write_chunks(made(raw) / f"cycle{cycle}.nd2", chunks)


def _line(emission_nm: float) -> dict[str, Any]:
    point = {"eType": 1, "dWavelength": emission_nm, "dTValue": 1.0}
    return {"uiCount": 1, "pPoint": {"Point0": point}}


def _variant(name: str, value: Any) -> bytes:
    """Return a value as NIS-Elements' "lite variant": type, name, value; levels are nested."""
    text = (name + "\0").encode("utf-16-le")
    head = bytes([0, len(name) + 1]) + text
    if isinstance(value, dict):
        inside = [_variant(key, item) for key, item in value.items()]
        length = len(head) + 12 + sum(map(len, inside))
        level = struct.pack("<IQ", len(inside), length) + b"".join(inside)
        return bytes([11]) + head[1:] + level + bytes(8 * len(inside))
    kinds = ((bool, 1, "<?"), (int, 3, "<I"), (float, 6, "<d"))
    for kind, code, form in kinds:
        if isinstance(value, kind):
            return bytes([code]) + head[1:] + struct.pack(form, value)
    return bytes([8]) + head[1:] + f"{value}\0".encode("utf-16-le")


def _write_chunks(path: Path, chunks: Mapping[str, bytes]) -> None:
    magic, padding = 0x0ABECEDA, 4072
    places: dict[str, tuple[int, int]] = {}
    with path.open("wb") as stream:
        stream.write(struct.pack("<IIQ", magic, 32, 64))
        stream.write(b"ND2 FILE SIGNATURE CHUNK NAME01!" + b"Ver3.0".ljust(64, b"\0"))
        for name, data in chunks.items():
            stream.seek(-(-stream.tell() // 4096) * 4096)
            places[name] = stream.tell(), len(data)
            # The name's field fills the rest of the block, so that pixels begin at a fixed place.
            field = name.encode().ljust(padding, b"\0")
            stream.write(struct.pack("<IIQ", magic, len(field), len(data)) + field + data)
        at = stream.tell()
        table = b"".join(key.encode() + struct.pack("<QQ", *place) for key, place in places.items())
        end = b"ND2 CHUNK MAP SIGNATURE 0000001!" + struct.pack("<Q", at)
        head = struct.pack("<IIQ", magic, 32, len(table) + 40) + b"ND2 FILEMAP SIGNATURE NAME 0001!"
        stream.write(head + table + end)


WRITERS = {
    **{"czi": write_czi, "nd2": write_nd2, "lif": write_lif, "phenix": write_phenix},
    **{"cv8000": write_cv8000, "ndtiff": write_ndtiff, "ome_tiff": write_companion},
    **{"macsima": write_macsima, "imagexpress": write_imagexpress},
}
#: What a writer cannot tell: ZEISS' library writes no optics, NDTiff has no field for them.
UNTOLD = {"czi": {"emission", "exposure", "aperture"}, "ndtiff": {"emission", "aperture"}}
UNTOLD |= {"cv8000": {"aperture"}, "macsima": {"z", "aperture"}, "nd2": {"exposure"}}
UNTOLD |= {"ome_tiff": {"aperture"}}


def write_ome(path: Path, tiles: list[tuple[float, float]], channels: int = 2, z: int = 3) -> None:
    made(path.parent)
    with tifffile.TiffWriter(path, ome=True) as writer:
        for number, (y_um, x_um) in enumerate(tiles):
            planes = channels * z
            metadata = {
                "axes": "CZYX",
                **{"PhysicalSizeX": 500.0, "PhysicalSizeXUnit": "nm"},
                **{"PhysicalSizeY": 500.0, "PhysicalSizeYUnit": "nm", "PhysicalSizeZ": 1.5},
                "Channel": {"Name": ["DAPI", "CD8"][:channels]},
                "Plane": {"PositionX": [x_um] * planes, "PositionY": [y_um] * planes},
            }
            writer.write(np.full((channels, z, 16, 20), number, np.uint16), metadata=metadata)
