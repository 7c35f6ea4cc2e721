"""One specimen in the formats of microscopes, written as their software writes it.

CZI by ZEISS' own library and NDTiff by Micro-Manager's; ND2, LIF, Harmony's index,
CellVoyager's, OME companion files and MetaXpress's TIFFs by hand to their published layouts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

Stack = NDArray[np.uint16]


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
    def shape(self) -> tuple[int, int, int, int]:
        channels, planes, height, width = next(iter(self.tiles.values())).shape
        return channels, planes, height, width

    def planes(self) -> Iterator[tuple[int, tuple[int, int], int, int, Stack]]:
        """Yield (tile, (row, col), channel, z, plane), z running fastest."""
        for tile, place in enumerate(self.places):
            for channel, z in np.ndindex(*self.shape[:2]):
                yield tile, place, channel, z, self.tiles[place][channel, z]


def write_czi(raw: Path, cycle: int, specimen: Specimen) -> None:
    from pylibCZIrw import czi

    raw.mkdir(parents=True, exist_ok=True)
    um = specimen.pixel_um * 1e-6
    with czi.create_czi(str(raw / f"cycle{cycle}.czi"), compression_options="zstd1:") as document:
        for _, (row, col), channel, z, plane in specimen.planes():
            at = (col * specimen.step_px, row * specimen.step_px)
            document.write(plane[..., None], location=at, plane={"C": channel, "Z": z, "T": 0})
        document.write_metadata(
            document_name="specimen",
            channel_names=dict(enumerate(specimen.names)),
            scale_x=um,
            scale_y=um,
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

    raw.mkdir(parents=True, exist_ok=True)
    summary = {"PixelSize_um": specimen.pixel_um, "z-step_um": specimen.z_step_um}
    dataset = NDTiffDataset(str(raw), name=f"cycle{cycle}", summary_metadata=summary, writable=True)
    for tile, (row, col), channel, z, plane in specimen.planes():
        axes = {"position": tile, "channel": specimen.names[channel], "z": z}
        told = {
            "XPosition_um_intended": col * specimen.step_px * specimen.pixel_um,
            "YPosition_um_intended": row * specimen.step_px * specimen.pixel_um,
            "PixelSizeUm": specimen.pixel_um,
            "Exposure": specimen.exposure_ms,
        }
        dataset.put_image(axes, plane, told)
    dataset.finish()
    dataset.close()


def write_phenix(raw: Path, cycle: int, specimen: Specimen) -> None:
    """Harmony's ``Images`` folder; its stage runs upwards and in metres from the well's middle."""
    folder = raw / f"cycle{cycle}/Images"
    folder.mkdir(parents=True, exist_ok=True)
    metres = specimen.step_px * specimen.pixel_um * 1e-6
    images = []
    for tile, (row, col), channel, z, plane in specimen.planes():
        name = f"r02c03f{tile + 1:02}p{z + 1:02}-ch{channel + 1}sk1fk1fl1.tiff"
        tifffile.imwrite(folder / name, plane, compression="lzw")
        images.append(
            f"<Image Version='1'><id>0203K1F{tile + 1}P{z + 1}R{channel + 1}</id><State>Ok</State>"
            f"<URL>{name}</URL><Row>2</Row><Col>3</Col><FieldID>{tile + 1}</FieldID>"
            f"<PlaneID>{z + 1}</PlaneID><TimepointID>0</TimepointID>"
            f"<ChannelID>{channel + 1}</ChannelID>"
            f"<PositionX Unit='m'>{col * metres:.9E}</PositionX>"
            f"<PositionY Unit='m'>{-row * metres:.9E}</PositionY>"
            f"<PositionZ Unit='m'>{z * specimen.z_step_um * 1e-6:.9E}</PositionZ></Image>"
        )
    entries = "".join(
        f"<Entry ChannelID='{number}'><ChannelName>{name}</ChannelName>"
        f"<ImageResolutionX Unit='m'>{specimen.pixel_um * 1e-6:.9E}</ImageResolutionX>"
        f"<ImageResolutionY Unit='m'>{specimen.pixel_um * 1e-6:.9E}</ImageResolutionY>"
        f"<ObjectiveNA Unit=''>{specimen.aperture}</ObjectiveNA>"
        f"<MainEmissionWavelength Unit='nm'>{emission:g}</MainEmissionWavelength>"
        f"<ExposureTime Unit='s'>{specimen.exposure_ms / 1000}</ExposureTime></Entry>"
        for number, (name, emission) in enumerate(
            zip(specimen.names, specimen.emission_nm, strict=True), start=1
        )
    )
    xml = (
        "<?xml version='1.0' encoding='utf-8'?><EvaluationInputData xmlns='http://www.perkinelmer."
        "com/PEHH/HarmonyV5' Version='1'><Wells><Well><Row>2</Row><Col>3</Col>"
        "<Image id='0203K1F1P1R1'/></Well></Wells>"
        f"<Maps><Map>{entries}</Map></Maps><Images>{''.join(images)}</Images></EvaluationInputData>"
    )
    (folder / "Index.idx.xml").write_text(xml, encoding="utf-8-sig")


def write_cv8000(raw: Path, cycle: int, specimen: Specimen) -> None:
    """CellVoyager's index, details and settings; its stage runs upwards from the well's middle."""
    folder = raw / f"cycle{cycle}"
    folder.mkdir(parents=True, exist_ok=True)
    um = specimen.step_px * specimen.pixel_um
    records = []
    for tile, (row, col), channel, z, plane in specimen.planes():
        name = f"plate_B03_T0001F{tile + 1:03}L01A{channel + 1:02}Z{z + 1:02}C{channel + 1:02}.tif"
        tifffile.imwrite(folder / name, plane)
        place = f'bts:Column="3" bts:Row="2" bts:TimePoint="1" bts:FieldIndex="{tile + 1}"'
        at = f'bts:X="{col * um - 50}" bts:Y="{50 - row * um}" bts:Z="{z * specimen.z_step_um}"'
        layer = f'bts:ZIndex="{z + 1}" bts:Ch="{channel + 1}" {at}'
        records.append(f'<bts:MeasurementRecord bts:Type="IMG" {place} {layer}>{name}')
        if z == 0:
            projection = f'bts:Type="IMG" bts:ZImageProcessing="Maximum" {place} {layer}'
            records.append(f"<bts:MeasurementRecord {projection}>projection_{name}")
    # Wells that nobody copied, and a field whose focus was not found.
    records.append(records[0].replace('Row="2"', 'Row="4"').replace("_B03_", "_D03_"))
    records.append(records[0].replace('"IMG"', '"ERR"').replace("plate_B03", "failed"))
    pixel = f'PixelDimension="{specimen.pixel_um}"'
    _write_bts(
        folder / "MeasurementData.mlf",
        "MeasurementData",
        "".join(f"{record}</bts:MeasurementRecord>" for record in records),
    )
    _write_bts(
        folder / "MeasurementDetail.mrf",
        'MeasurementDetail bts:MeasurementSettingFileName="two channels.mes"',
        f'<bts:MeasurementChannel bts:Ch="1" bts:Horizontal{pixel} bts:Vertical{pixel}/>',
    )
    _write_bts(
        folder / "two channels.mes",
        "MeasurementSetting",
        f'<bts:ActionAcquire3D bts:SliceLength="{specimen.z_step_um}"><bts:Ch>1</bts:Ch>'
        "</bts:ActionAcquire3D>"
        + "".join(
            f'<bts:Channel bts:Ch="{number}" bts:Fluorophore="{name}" '
            f'bts:Acquisition="BP{nm:g}/45" bts:ExposureTime="{specimen.exposure_ms}"/>'
            for number, (name, nm) in enumerate(
                zip(specimen.names, specimen.emission_nm, strict=True), start=1
            )
        ),
    )


def _write_bts(path: Path, root: str, inside: str) -> None:
    space = 'xmlns:bts="http://www.yokogawa.co.jp/BTS/BTSSchema/1.0"'
    head = '<?xml version="1.0" encoding="utf-8"?>'
    name = root.partition(" ")[0]
    path.write_text(f"{head}<bts:{root} {space}>{inside}</bts:{name}>", encoding="utf-8-sig")


def write_companion(raw: Path, cycle: int, specimen: Specimen) -> None:
    """A file of all channels and planes per tile; ``.companion.ome`` beside them tells the rest."""
    folder = raw / f"cycle{cycle}"
    folder.mkdir(parents=True, exist_ok=True)
    channels, planes, height, width = specimen.shape
    um = specimen.step_px * specimen.pixel_um
    images = []
    for tile, (row, col) in enumerate(specimen.places):
        name = f"tile{tile}.ome.tif"
        pointer = (
            "<OME xmlns='http://www.openmicroscopy.org/Schemas/OME/2016-06'>"
            "<BinaryOnly MetadataFile='cycle.companion.ome' UUID='urn:uuid:0'/></OME>"
        )
        stack = specimen.tiles[row, col].reshape(-1, height, width)
        tifffile.imwrite(
            folder / name, stack, photometric="minisblack", metadata=None, description=pointer
        )
        described = "".join(
            f"<Channel ID='Channel:{tile}:{number}' Name='{named}' EmissionWavelength='{nm:g}' "
            "SamplesPerPixel='1'/>"
            for number, (named, nm) in enumerate(
                zip(specimen.names, specimen.emission_nm, strict=True)
            )
        )
        stored = "".join(
            f"<TiffData FirstC='{c}' FirstZ='{z}' IFD='{c * planes + z}' PlaneCount='1'>"
            f"<UUID FileName='{name}'>urn:uuid:{tile}</UUID></TiffData>"
            for c, z in np.ndindex(channels, planes)
        )
        seen = "".join(
            f"<Plane TheC='{c}' TheZ='0' TheT='0' PositionX='{col * um}' PositionY='{row * um}' "
            f"ExposureTime='{specimen.exposure_ms}' ExposureTimeUnit='ms'/>"
            for c in range(channels)
        )
        images.append(
            f"<Image ID='Image:{tile}'><Pixels ID='Pixels:{tile}' DimensionOrder='XYZCT' "
            f"Type='uint16' SizeX='{width}' SizeY='{height}' SizeZ='{planes}' SizeC='{channels}' "
            f"SizeT='1' PhysicalSizeX='{specimen.pixel_um}' PhysicalSizeY='{specimen.pixel_um}' "
            f"PhysicalSizeZ='{specimen.z_step_um}'>{described}{stored}"
            f"{seen}</Pixels></Image>"
        )
    xml = f"<OME xmlns='http://www.openmicroscopy.org/Schemas/OME/2016-06'>{''.join(images)}</OME>"
    (folder / "cycle.companion.ome").write_text(xml)


def write_macsima(raw: Path, cycle: int, specimen: Specimen) -> None:
    """A file per field and filter; the first plane, twice with a shorter exposure too."""
    folder = raw / f"{cycle:03}_AntigenCycle"
    folder.mkdir(parents=True, exist_ok=True)
    um = specimen.step_px * specimen.pixel_um
    for tile, place, channel, z, plane in specimen.planes():
        for exposure_ms in (specimen.exposure_ms, specimen.exposure_ms / 4) if z == 0 else ():
            dye = ("DAPI", "FITC", "PE")[channel]
            name = (
                f"CYC-{cycle:03}_SCN-002_ST-S_R-01_W-B01_ROI-001_F-{tile + 1:03}_"
                f"A-{specimen.names[channel]}_C-REA_D-{dye}_EXP-{exposure_ms:g}.tif"
            )
            xml = (
                "<OME xmlns='http://www.openmicroscopy.org/Schemas/OME/2016-06'>"
                "<Image ID='Image:0'>"
                "<Pixels ID='Pixels:0' DimensionOrder='XYZCT' Type='uint16' SizeZ='1' SizeC='1' "
                f"SizeT='1' SizeX='{plane.shape[1]}' SizeY='{plane.shape[0]}' "
                f"PhysicalSizeX='{specimen.pixel_um}' PhysicalSizeY='{specimen.pixel_um}'>"
                "<Channel ID='Channel:0:0' "
                f"EmissionWavelength='{specimen.emission_nm[channel]:g}'/>"
                "<TiffData/></Pixels><StageLabel Name='field' "
                f"X='{place[1] * um}' XUnit='µm' Y='{place[0] * um}' YUnit='µm'/></Image></OME>"
            )
            counts = plane if exposure_ms == specimen.exposure_ms else plane // 4
            tifffile.imwrite(folder / name, counts, metadata=None, description=xml.encode())


def write_imagexpress(raw: Path, cycle: int, specimen: Specimen) -> None:
    """MetaXpress's names in its own folders, with a projection; PlaneInfo tells the rest."""
    um = specimen.step_px * specimen.pixel_um
    for tile, (row, col), channel, z, plane in specimen.planes():
        told = {
            "spatial-calibration-state": ("bool", "on"),
            "spatial-calibration-x": ("float", specimen.pixel_um),
            "spatial-calibration-y": ("float", specimen.pixel_um),
            "spatial-calibration-units": ("string", "um"),
            "stage-position-x": ("float", 68300 + col * um),
            "stage-position-y": ("float", 27625.5 + row * um),
            "z-position": ("float", 9319.5 + z * specimen.z_step_um),
            "wavelength": ("float", f"{specimen.emission_nm[channel]:g}"),
            "_IllumSetting_": ("string", specimen.names[channel]),
            "_MagNA_": ("float", specimen.aperture),
            "_MagRI_": ("float", 1),
            "Exposure Time": ("string", f"{specimen.exposure_ms:g} ms"),
        }
        props = "".join(
            f'<prop id="{key}" type="{kind}" value="{value}"/>'
            for key, (kind, value) in told.items()
        )
        xml = f"<MetaData><PlaneInfo>{props}</PlaneInfo></MetaData>"
        name = f"plate_B02_s{tile + 1}_w{channel + 1}0A1B2C3D-0123-4567-89AB-0123456789AB.tif"
        for step in (f"ZStep_{z + 1}/", *([""] if z == 0 else [])):
            path = raw / f"cycle{cycle}/2024-04-22/1697/TimePoint_1/{step}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            options = {"metadata": None, "software": "MetaSeries", "description": xml}
            tifffile.imwrite(path, plane, **options)


def write_lif(raw: Path, cycle: int, specimen: Specimen) -> None:
    """LAS X's container: an XML header, then a block of memory per image."""
    raw.mkdir(parents=True, exist_ok=True)
    channels, planes, height, width = specimen.shape
    stack = np.stack([specimen.tiles[place] for place in specimen.places]).astype("<u2")
    metres = specimen.pixel_um * 1e-6
    sizes = (
        (1, width, metres * (width - 1), 2),
        (2, height, metres * (height - 1), 2 * width),
        (3, planes, specimen.z_step_um * 1e-6 * (planes - 1), 2 * width * height),
        (10, len(stack), 0.0, 2 * width * height * planes * channels),
    )
    dimensions = "".join(
        f'<DimensionDescription DimID="{axis}" NumberOfElements="{count}" Origin="0" '
        f'Length="{length:.12E}" Unit="m" BitInc="0" BytesInc="{step}"/>'
        for axis, count, length, step in sizes
    )
    described = "".join(
        '<ChannelDescription DataType="0" ChannelTag="0" Resolution="16" '
        'NameOfMeasuredQuantity="" '
        f'Min="0" Max="65535" Unit="" LUTName="Gray" IsLUTInverted="0" '
        f'BytesInc="{number * 2 * width * height * planes}" BitInc="0"/>'
        for number in range(channels)
    )
    camera = "".join(
        f'<WideFieldChannelInfo UserDefName="{name}" EmissionWavelength="{nm:g}" '
        f'ExposureTime="{specimen.exposure_ms / 1000}"/>'
        for name, nm in zip(specimen.names, specimen.emission_nm, strict=True)
    )
    step = specimen.step_px * metres
    tiles = "".join(
        f'<Tile FieldX="{col}" FieldY="{row}" PosX="{col * step:.12E}" PosY="{row * step:.12E}" '
        'PosZ="0"/>'
        for row, col in specimen.places
    )
    header = (
        '<LMSDataContainerHeader Version="2"><Element Name="raw" Visibility="1"><Data/><Children>'
        '<Element Name="TileScan 1"><Data><Image><ImageDescription>'
        f"<Channels>{described}</Channels><Dimensions>{dimensions}</Dimensions></ImageDescription>"
        f'<Attachment Name="TileScanInfo" FlipX="0" FlipY="0" SwapXY="0">{tiles}</Attachment>'
        '<Attachment Name="HardwareSetting"><ATLCameraSettingDefinition '
        f'NumericalAperture="{specimen.aperture}" RefractionIndex="1">'
        f"<WideFieldChannelConfigurator>{camera}</WideFieldChannelConfigurator>"
        "</ATLCameraSettingDefinition></Attachment></Image></Data>"
        f'<Memory Size="{stack.nbytes}" MemoryBlockID="MemBlock_1"/></Element></Children></Element>'
        "</LMSDataContainerHeader>"
    )
    text, block = header.encode("utf-16-le"), "MemBlock_1".encode("utf-16-le")
    with (raw / f"cycle{cycle}.lif").open("wb") as stream:
        stream.write(struct.pack("<IIBI", 0x70, 5 + len(text), 0x2A, len(header)) + text)
        stream.write(struct.pack("<IIBQBI", 0x70, 14 + len(block), 0x2A, stack.nbytes, 0x2A, 10))
        stream.write(block + stack.tobytes())


def write_nd2(raw: Path, cycle: int, specimen: Specimen) -> None:
    """NIS-Elements' chunks, version 3: points of the stage, planes in each, channels interleaved.

    The camera is turned by 180 degrees against the stage, as it often is.
    """
    raw.mkdir(parents=True, exist_ok=True)
    channels, planes, height, width = specimen.shape
    um = specimen.step_px * specimen.pixel_um
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
                "m_ExcitationSpectrum": _line(nm - 40),
                "m_EmissionSpectrum": _line(nm),
            },
        }
        for number, (name, nm) in enumerate(zip(specimen.names, specimen.emission_nm, strict=True))
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
    number = 0
    for place in specimen.places:
        for z in range(planes):
            frame = np.ascontiguousarray(specimen.tiles[place][:, z].transpose(1, 2, 0))
            chunks[f"ImageDataSeq|{number}!"] = struct.pack("<d", 0.0) + frame.tobytes()
            number += 1
    _write_chunks(raw / f"cycle{cycle}.nd2", chunks)


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
    "czi": write_czi,
    "nd2": write_nd2,
    "lif": write_lif,
    "phenix": write_phenix,
    "cv8000": write_cv8000,
    "ndtiff": write_ndtiff,
    "ome_tiff": write_companion,
    "macsima": write_macsima,
    "imagexpress": write_imagexpress,
}
#: What a writer cannot tell: ZEISS' library writes no optics, NDTiff has no field for them.
UNTOLD = {"czi": {"emission", "exposure", "aperture"}, "ndtiff": {"emission", "aperture"}}
UNTOLD |= {
    "cv8000": {"aperture"},
    "macsima": {"z", "aperture"},
    "nd2": {"exposure"},
    "ome_tiff": {"aperture"},
}


def write_ome(path: Path, tiles: list[tuple[float, float]], channels: int = 2, z: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path, ome=True) as writer:
        for number, (y_um, x_um) in enumerate(tiles):
            planes = channels * z
            writer.write(
                np.full((channels, z, 16, 20), number, np.uint16),
                metadata={
                    "axes": "CZYX",
                    "PhysicalSizeX": 500.0,
                    "PhysicalSizeXUnit": "nm",
                    "PhysicalSizeY": 500.0,
                    "PhysicalSizeYUnit": "nm",
                    "PhysicalSizeZ": 1.5,
                    "Channel": {"Name": ["DAPI", "CD8"][:channels]},
                    "Plane": {"PositionX": [x_um] * planes, "PositionY": [y_um] * planes},
                },
            )
