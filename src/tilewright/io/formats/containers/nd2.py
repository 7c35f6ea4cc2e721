"""Nikon ND2: multipoint acquisitions with z, by the library nd2.

Points of the XY loop are tiles. Stage positions are turned into the camera's axes by the matrix
that NIS-Elements stores (``cameraTransformationMatrix``), so that they grow as the pixels do.
"""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
from nd2 import ND2File
from nd2.structures import XYPosLoop, ZStackLoop
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.located_images import known_channels
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

_AXES = {"P", "Z", "C", "Y", "X"}


class Nd2:
    """An open ND2."""

    def __init__(self, path: str) -> None:
        self._file = ND2File(path)
        weakref.finalize(self, self._file.close)
        sizes = self._file.sizes
        if others := {axis for axis, size in sizes.items() if axis not in _AXES and size > 1}:
            raise RawDataError(
                f"{path} has the axes {', '.join(sorted(others))} besides positions, planes and "
                "channels; save one file per cycle, of counts and without time points"
            )
        self.height_px, self.width_px, self.dtype = sizes["Y"], sizes["X"], str(self._file.dtype)
        self._sequence = {
            (at.get("P", 0), at.get("Z", 0)): number
            for number, at in enumerate(self._file.loop_indices)
        }
        self.tiles = [(image, sizes.get("Z", 1)) for image in self._images()]

    def read(self, tile: int, channel: int, z: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        frame = np.asarray(self._file.read_frame(self._sequence[tile, z]))
        return frame if frame.ndim == 2 else frame[channel]

    def _images(self) -> list[OmeImage]:
        sizes, loops = self._file.sizes, self._file.experiment
        lift = next((loop for loop in loops if isinstance(loop, ZStackLoop)), None)
        channels = list(self._file.metadata.channels or [])
        volume, lens = (channels[0].volume, channels[0].microscope) if channels else (None, None)
        calibrated = volume and all(volume.axesCalibrated[:2])
        shared = OmeImage(
            known_channels(
                (OmeChannel(c.channel.name, c.channel.emissionLambdaNm or None) for c in channels),
                sizes.get("C", 1),
            ),
            pixel_um=volume.axesCalibration[0] if volume and calibrated else None,
            pixel_y_um=volume.axesCalibration[1] if volume and calibrated else None,
            z_step_um=(abs(lift.parameters.stepUm) or None) if lift else None,
            numerical_aperture=lens.objectiveNumericalAperture if lens else None,
            immersion_refractive_index=lens.immersionRefractiveIndex if lens else None,
        )
        stage = next((loop for loop in loops if isinstance(loop, XYPosLoop)), None)
        if stage is None:
            return [shared] * sizes.get("P", 1)
        matrix = np.reshape((volume and volume.cameraTransformationMatrix) or (1, 0, 0, 1), (2, 2))
        points = np.array([point.stagePositionUm[:2] for point in stage.parameters.points])
        return [replace(shared, y=y, x=x) for x, y in np.linalg.solve(matrix, points.T).T.tolist()]
