"""TIFFs of one tile each, known by their names: what their metadata say besides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, ScanOptions, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage, compare_sizes
from tilewright.io.numbers import positive, whole
from tilewright.io.tiff.metadata import UM, imagej_unit, of_tiff, pixel_um
from tilewright.io.tiff.ome_xml import MOST_PLANES, OmeChannel, OmeImage, OmePlane, parse_ome_xml


def describe(path: str) -> OmeImage:
    """Return the one image of a TIFF by its OME-XML, ImageJ's metadata or resolution tags.

    Raises
    ------
    RawDataError
        The metadata are invalid, or are those of several time points.
    """

    def read(tiff: Any) -> tuple[Any, ...]:
        unit = imagej_unit(tiff.imagej_metadata)
        return tiff.ome_metadata, tiff.imagej_metadata, *pixel_um(tiff.pages[0], unit)

    xml, imagej, y_um, x_um = of_tiff(path, read, (None,) * 4)
    images = parse_ome_xml(xml, path) if xml else []
    if len(images) == 1:
        return images[0]
    image = OmeImage([OmeChannel()], pixel_um=x_um, pixel_y_um=y_um)
    return _of_hyperstack(imagej, image, path) if imagej else image


def _of_hyperstack(imagej: Mapping[str, Any], image: OmeImage, path: str) -> OmeImage:
    """Return an image with the channels and planes that ImageJ's metadata give it."""
    with raw_file_errors(f"{path}: its ImageJ metadata"):
        frames, channels, slices = (
            whole(imagej.get(name, 1), MOST_PLANES, 1) for name in ("frames", "channels", "slices")
        )
        whole(channels * slices, MOST_PLANES)
    if frames > 1 and channels > 1:
        raise RawDataError(
            f"{path} is a hyperstack of {frames} time points; save one file per cycle"
        )
    labels = [str(label) for label in imagej.get("Labels") or ()]
    named = len(labels) == channels * slices and labels == labels[:channels] * slices
    unit_um = UM.get(imagej_unit(imagej)) if image.pixel_um else None
    return replace(
        image,
        channels=[OmeChannel(labels[k] if named else None) for k in range(channels)],
        planes=[
            OmePlane(channel, z, z * channels + channel, None)
            for z, channel in product(range(slices), range(channels))
        ],
        z_step_um=positive(str(imagej.get("spacing")), scale=unit_um) if unit_um else None,
    )


def split_pages(planes: list[RawPlane]) -> list[RawPlane]:
    """Split the pages of files into channels, numbered from 1, and z-planes.

    The metadata of a cycle's first file apply to all of its files. Planes whose names hold a
    channel or z, and files of one channel, are returned unchanged.

    Raises
    ------
    RawDataError
        The metadata of such a file are invalid, or are those of several time points.
    """
    if {plane.channel for plane in planes} != {"1"}:
        return planes
    pages_of: dict[int, list[OmePlane]] = {}
    for plane in planes:
        if plane.cycle not in pages_of:
            pages = describe(plane.path).planes
            channels, depths = {page.channel for page in pages}, {page.z for page in pages}
            whole_file = len(channels) < 2 or (len(depths) > 1 and plane.z is not None)
            pages_of[plane.cycle] = [] if whole_file else pages
    split = []
    for plane in planes:
        split += [
            plane._replace(
                channel=str(page.channel + 1),
                z=page.z if plane.z is None else plane.z,
                page=page.page,
            )
            for page in pages_of[plane.cycle]
        ] or [plane]
    return split


def at_stage(
    planes: list[RawPlane],
    options: ScanOptions,
    describe_file: Callable[[str], OmeImage],
    *,
    needed: bool,
) -> list[RawPlane]:
    """Return planes with the stage position that the first file of each tile holds.

    Where the first tile has none and it is not ``needed``, planes are returned unchanged.

    Raises
    ------
    RawDataError
        A tile has no position.
    """
    found: dict[tuple[Any, ...], LocatedImage] = {}
    for plane in planes:
        tile = plane.cycle, plane.region, plane.tile
        # A plate has a hundred wells, and each sample is scanned by itself.
        if tile in found or options.region not in (None, plane.region):
            continue
        image = describe_file(plane.path)
        if image.y is not None and image.x is not None:
            found[tile] = LocatedImage(plane.cycle, plane.path, image)
        elif found or needed:
            raise RawDataError(
                f"{plane.path} holds no stage position; copy it again from the microscope, export "
                "the raw tiles again, or use acquisition.convention 'pattern'"
            )
        else:
            return planes
    compare_sizes([*found.values()], options)
    placed = []
    for plane in planes:
        at = found.get((plane.cycle, plane.region, plane.tile))
        placed.append(plane._replace(y=at.image.y, x=at.image.x) if at else plane)
    return placed


def channel_of(plane: RawPlane, images: Sequence[OmeChannel]) -> OmeChannel:
    """Return the channel of a plane among those of its file."""
    if plane.page is not None and len(images) > 1:
        return images[int(plane.channel) - 1]
    return images[0] if len(images) == 1 else OmeChannel()
