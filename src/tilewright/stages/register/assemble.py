"""Assembly of the final image from its cycles, which lie in one frame already."""

import csv
from collections.abc import Sequence
from pathlib import Path

from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import join_images
from tilewright.io.results.result_file import result_path


def assemble(
    cycles: Sequence[tuple[int, str | Path]],
    ome_tif: str | Path,
    ome_zarr: str | Path,
    markers_csv: str | Path,
    *,
    workers: int,
    names: Sequence[str] | None = None,
) -> None:
    """Write the registered image as OME-Zarr and OME-TIFF, and the table of its channels.

    Parameters
    ----------
    cycles : sequence of (int, Path)
        Number and registered image of each cycle, in the order of the channels.
    ome_tif, ome_zarr, markers_csv : Path
        What to write; each appears when it is whole. The OME-Zarr takes no space of its own where
        the file system knows hard links.
    workers : int
        Threads that compress.
    names : sequence of str, optional
        Marker of each channel of the image; by default the names in the images.

    Raises
    ------
    ResultFileError
        An image cannot be read, or is not like the others.
    """
    of_cycles = join_images([image for _, image in cycles], ome_zarr, names)
    write_ome_tiff(ome_zarr, ome_tif, workers=workers)
    write_markers([(cycle, name) for (cycle, _), of_cycle in zip(cycles, of_cycles, strict=True)
                   for name in of_cycle], markers_csv)  # fmt: skip


def write_markers(channels: Sequence[tuple[int, str]], path: str | Path) -> None:
    """Write MCMICRO's ``markers.csv``: channel and cycle numbers from 1, and marker names.

    ``channels`` are (cycle, marker). Cycles are numbered in the order of their own numbers.
    """
    order = {cycle: k for k, cycle in enumerate(sorted({cycle for cycle, _ in channels}), 1)}
    with (
        result_path(Path(path)) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["channel_number", "cycle_number", "marker_name"])
        for number, (cycle, marker) in enumerate(channels, 1):
            writer.writerow([number, order[cycle], marker])
