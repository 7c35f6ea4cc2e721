"""OME-TIFF files as microscopes write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tifffile


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
