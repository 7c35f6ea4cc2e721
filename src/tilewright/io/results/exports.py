"""The registered image as other tools and archives want it: links and tables, no pixels again.

- MCMICRO, and spatialdata-io's reader of its folders: ``markers.csv`` with all columns of nf-core's
  schema, ``registration/{sample}.ome.tif``, ``qc/params.yml``.
- HuBMAP: ``lab_processed/images/{sample}.ome.tiff`` and ``{sample}.ome-tiff.channels.csv``
  (directory schema of CODEX and PhenoCycler, version 2).
- HTAN: ``{sample}.ome.tif`` and its table of channels (imaging level 2, MITI).
- SpatialData: ``{sample}.zarr`` with the levels of the OME-Zarr under ``images/{sample}``.

Viewers on the web read TIFFs by ``{name}.offsets.json``, the places of the channels in the file.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tifffile
import yaml
from zarr.storage import LocalStore

from tilewright.errors import ConfigError
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.zarr_store import OmeZarrVersion, create_store, multiscales
from tilewright.runtime.files import csv_text, write_text_atomic

#: HuBMAP's words for a verdict.
_QUALITY = {"pass": "good", "warn": "fair", "fail": "poor"}
_HTAN_COLUMNS = (
    "Channel ID", "Channel Name", "Channel Passed QC", "Cycle Number", "Sub Cycle Number",
    "Target Name", "Antibody Name", "Antibody Role", "RRID identifier", "Fluorophore", "Clone",
    "Lot", "Vendor", "Catalog Number", "Excitation Wavelength", "Emission Wavelength",
    "Excitation Bandwidth", "Emission Bandwidth", "Metal Isotope Element", "Metal Isotope Mass",
    "Oligo Barcode Upper Strand", "Oligo Barcode Lower Strand", "Dilution", "Concentration",
)  # fmt: skip


@dataclass(frozen=True)
class ImageChannel:
    """One channel of the registered image.

    Attributes
    ----------
    cycle : int
        From 1, without holes.
    nuclear : bool
        It shows the nuclei, and no antibody.
    cells : bool
        Cells may be segmented by it.
    verdict : str
        ``pass``, ``warn``, ``fail``, or empty where quality was not looked at.
    background : str
        Marker that may still be subtracted; empty where there is none, or it was subtracted.
    """

    marker: str
    cycle: int
    emission_nm: float | None
    exposure_ms: float | None
    nuclear: bool
    cells: bool
    verdict: str
    background: str = ""


@dataclass(frozen=True)
class RegisteredImage:
    """What is handed on.

    Attributes
    ----------
    tiff, zarr : Path
        The image in both formats.
    channels : tuple of ImageChannel
        In the order of the image.
    """

    sample: str
    tiff: Path
    zarr: Path
    channels: tuple[ImageChannel, ...]


def _to_mcmicro(image: RegisteredImage, folder: Path) -> list[Path]:
    rows = [
        {
            "channel_number": number,
            "cycle_number": channel.cycle,
            "marker_name": channel.marker,
            "filter": "",
            "excitation_wavelength": "",
            # nf-core's schema allows whole nanometres alone.
            "emission_wavelength": _number(channel.emission_nm and round(channel.emission_nm)),
            "exposure": _number(channel.exposure_ms),
            "background": channel.background,
            "remove": "",
        }
        for number, channel in enumerate(image.channels, 1)
    ]
    home = folder / image.sample
    link = home / "registration" / f"{image.sample}.ome.tif"
    params = {"workflow": {"start-at": "segmentation", "stop-at": "quantification", "tma": False}}
    return [
        *_image_and_table(image, link, home / "markers.csv", rows),
        _text(home / "qc" / "params.yml", yaml.safe_dump(params)),
    ]


def _to_hubmap(image: RegisteredImage, folder: Path) -> list[Path]:
    # Exactly one channel of each kind is allowed.
    nuclei = next((i for i, channel in enumerate(image.channels) if channel.nuclear), None)
    cells = next((i for i, channel in enumerate(image.channels) if channel.cells), None)
    rows = [
        {
            "channel id": f"Channel:0:{i}",
            "is channel used for nuclei segmentation": _yes(i == nuclei),
            "is channel used for cell segmentation": _yes(i == cells),
            "is antibody": _yes(not channel.nuclear),
            "channel quality": _QUALITY.get(channel.verdict, ""),
            "marker": channel.marker,
        }
        for i, channel in enumerate(image.channels)
    ]
    home = folder / image.sample / "lab_processed" / "images"
    link = home / f"{image.sample}.ome.tiff"
    return _image_and_table(image, link, home / f"{image.sample}.ome-tiff.channels.csv", rows)


def _to_htan(image: RegisteredImage, folder: Path) -> list[Path]:
    rows = [
        {
            "Channel ID": f"Channel:0:{i}",
            "Channel Name": channel.marker,
            "Channel Passed QC": {"": "", "fail": "No"}.get(channel.verdict, "Yes"),
            "Cycle Number": channel.cycle,
            "Target Name": "DNA" if channel.nuclear else channel.marker,
            "Emission Wavelength": _number(channel.emission_nm),
        }
        for i, channel in enumerate(image.channels)
    ]
    home = folder / image.sample
    link, table = home / f"{image.sample}.ome.tif", home / f"{image.sample}_channel_metadata.csv"
    return _image_and_table(image, link, table, rows, _HTAN_COLUMNS)


def _to_spatialdata(image: RegisteredImage, folder: Path) -> list[Path]:
    stored = open_image(image.zarr)
    version: OmeZarrVersion = "0.4" if stored.levels[0].metadata.zarr_format == 2 else "0.5"
    # The formats of the container and of its images that go with each version of Zarr.
    container, raster = {"0.4": ("0.1", "0.2"), "0.5": ("0.2", "0.3")}[version]
    pixels = [(1.0, float(2**k), float(2**k)) for k in range(len(stored.levels))]
    omero = {"channels": [{"label": name} for name in stored.channel_names]}
    ome = multiscales("cyx", pixels, image.sample, version, omero)
    described = ome.get("ome", ome)
    described["multiscales"][0]["coordinateTransformations"] = [
        _system("global", [1.0, 1.0, 1.0]),
        _system("micrometer", [1.0, *stored.pixel_um]),
    ]
    if version == "0.4":
        described["multiscales"][0]["version"] = "0.4-dev-spatialdata"
    else:
        described["version"] = "0.5-dev-spatialdata"
    path = folder / f"{image.sample}.zarr"
    others = {*path.glob("*"), *path.glob("images/*")} - {path / "images"}
    others = {p for p in others if not p.name.startswith(".") and p.name != "zarr.json"}
    if others - {path / "images" / image.sample}:
        raise ConfigError(f"{path} holds more than this image; export to another folder")
    with create_store(path, version) as root:
        root.update_attributes({"spatialdata_attrs": {"version": container}})
        element = root.create_group("images").create_group(image.sample)
        mark = {"spatialdata_attrs": {"version": raster}}
        if version == "0.4":
            element.update_attributes({**ome, **mark})
        else:
            element.update_attributes({"ome": {**described, **mark}})
        # Under its temporary name, which is as deep as its own: relative links stay right.
        home = cast(LocalStore, root.store).root
        for k in range(len(stored.levels)):
            _link(home / element.path / str(k), image.zarr / str(k))
    return [path]


def _system(name: str, scale: Sequence[float]) -> dict[str, Any]:
    """Return how pixels become places of a coordinate system."""
    axes = [{"name": "c", "type": "channel"}] + [
        {"name": axis, "type": "space", "unit": "unit"} for axis in "yx"
    ]
    how = {"type": "identity"} if set(scale) == {1.0} else {"type": "scale", "scale": list(scale)}
    return {**how, "input": {"name": "cyx", "axes": axes}, "output": {"name": name, "axes": axes}}


#: Consumer to what writes what it needs of an image below a folder, and returns the paths; links
#: are relative. ConfigError: something else is at a path, or the file system knows no links.
CONSUMERS: dict[str, Callable[[RegisteredImage, Path], list[Path]]] = {
    "mcmicro": _to_mcmicro,
    "hubmap": _to_hubmap,
    "htan": _to_htan,
    "spatialdata": _to_spatialdata,
}


def _yes(true: bool) -> str:
    return "Yes" if true else "No"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _text(path: Path, text: str) -> Path:
    """Write a file; one that says something else, which somebody may have filled, stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{path} is there and says something else; move it, or export to another folder"
            )
        return path
    write_text_atomic(path, text)
    return path


def _image_and_table(
    image: RegisteredImage,
    link: Path,
    table: Path,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
) -> list[Path]:
    """Write a link to the TIFF, the offsets in it, and the table of its channels."""
    offsets = _offsets(_link(link, image.tiff), len(image.channels))
    return [link, offsets, _text(table, csv_text(columns or list(rows[0]), rows))]


def _link(path: Path, target: Path) -> Path:
    """Make a relative link; one that is there already is made anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise ConfigError(f"{path} is there and is no link; export to another folder")
    try:
        path.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be a link ({error}); export to another folder") from error
    return path


def _offsets(tiff: Path, channels: int) -> Path:
    """Write the byte offsets of a TIFF's channels, for readers over the network."""
    try:
        with tifffile.TiffFile(tiff) as file:
            offsets = [page.offset for page in file.pages]
    except (tifffile.TiffFileError, struct.error, ValueError) as error:
        raise ConfigError(f"{tiff} is no whole TIFF ({error}); make the image again") from error
    if len(offsets) != channels:  # tifffile only logs that pages are missing
        raise ConfigError(f"{tiff} is no whole TIFF: it lacks channels; make the image again")
    name = tiff.name.partition(".ome.tif")[0]
    return _text(tiff.with_name(f"{name}.offsets.json"), json.dumps(offsets) + "\n")
