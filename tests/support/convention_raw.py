"""One small specimen as each naming convention stores it."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.phantom.make import Phantom, PhantomDesign

Tiles = NDArray[np.uint16]
PIXEL_UM = 0.377


def make_tiles(**changes: Any) -> tuple[PhantomDesign, dict[tuple[int, int], Tiles]]:
    """Return a design and its tiles (row, col, y, x) of one plane by (cycle, channel)."""
    values: dict[str, Any] = {"seed": 5, "cycles": 1, "channels": 1, "rows": 2, "cols": 2}
    values |= {"planes": 1, "tile_px": 192, "overlap": 0.2, **changes}
    phantom = Phantom(PhantomDesign(**values))
    shape = phantom.design.rows, phantom.design.cols
    order = range(shape[0] * shape[1])
    found = {}
    for specimen in phantom.specimens():
        exposed = [phantom.expose(specimen, tile)[0] for tile in order]
        found[specimen.cycle, specimen.channel] = np.reshape(exposed, (*shape, *exposed[0].shape))
    return phantom.design, found


def write_as(convention: str, raw: Path, tiles: dict[tuple[int, int], Tiles], step_px: int) -> None:
    """Write tiles (row, col, y, x) by (cycle, channel) below ``raw``."""
    for (cycle, channel), grid in tiles.items():
        rows, cols = grid.shape[:2]
        order = tile_places("snake_right_down", rows, cols)
        for number, (row, col) in enumerate(order, start=1):
            told = {"cycle": cycle, "channel": channel, "number": number, "row": row, "col": col}
            path = raw / _NAMES[convention].format(**told)
            path.parent.mkdir(parents=True, exist_ok=True)
            if convention == "ome_tiff":
                step_um = step_px * PIXEL_UM
                at = {"PositionX": [col * step_um], "PositionY": [row * step_um]}
                size = {"PhysicalSizeX": PIXEL_UM, "PhysicalSizeY": PIXEL_UM}
                metadata = {"axes": "YX", "Channel": {"Name": f"c{channel}"}, "Plane": at, **size}
                tifffile.imwrite(path, grid[row, col], ome=True, metadata=metadata)
            else:
                tifffile.imwrite(path, grid[row, col])
            if convention == "fiji":
                with (path.parent / "TileConfiguration.txt").open("a") as stream:
                    stream.write(f"{path.name}; ; ({col * step_px}, {row * step_px})\n")


_NAMES = {
    "codex": "Cyc{cycle}_reg1/1_{number:05}_Z001_CH{channel}.tif",
    "pattern": "cycle{cycle}/tile_r{row}_c{col}_ch{channel}.tif",
    "ome_tiff": "cycle{cycle}/c{channel}_t{number}.ome.tif",
    "fiji": "cycle{cycle}/C{channel}-t{number}.tif",
}
