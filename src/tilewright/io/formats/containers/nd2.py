"""Nikon ND2: multipoint acquisitions with z, by the library nd2.

Points of the XY loop are tiles. Stage positions are turned into the camera's axes by the matrix
that NIS-Elements stores (``cameraTransformationMatrix``), so that they grow as the pixels do.
"""

import weakref
from typing import Any

import numpy as np
from nd2 import ND2File
from nd2.structures import XYPosLoop, ZStackLoop
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.containers import Contents
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane

_AXES = {"P", "Z", "C", "Y", "X"}


class Nd2:
    """An open ND2; page = sequence number * channels + channel."""

    def __init__(self, path: str) -> None:
        self._file = ND2File(path)
        weakref.finalize(self, self._file.close)
        sizes = self._file.sizes
        if others := {axis for axis, size in sizes.items() if axis not in _AXES and size > 1}:
            raise RawDataError(
                f"{path} has the axes {', '.join(sorted(others))} besides positions, planes and "
                "channels; save one file per cycle, of counts and without time points"
            )
        self._channels = sizes.get("C", 1)
        self.contents = Contents(self._images(), sizes["Y"], sizes["X"], str(self._file.dtype))

    def read(self, page: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        sequence, channel = divmod(page, self._channels)
        frame = np.asarray(self._file.read_frame(sequence))
        return frame if frame.ndim == 2 else frame[channel]

    def _images(self) -> list[OmeImage]:
        points: list[list[OmePlane]] = [[] for _ in range(self._file.sizes.get("P", 1))]
        for sequence, at in enumerate(self._file.loop_indices):
            points[at.get("P", 0)] += [
                OmePlane(channel, at.get("Z", 0), sequence * self._channels + channel, None)
                for channel in range(self._channels)
            ]
        stage = next((loop for loop in self._file.experiment if isinstance(loop, XYPosLoop)), None)
        lift = next((loop for loop in self._file.experiment if isinstance(loop, ZStackLoop)), None)
        step_um = abs(lift.parameters.stepUm) if lift else 0.0
        images = []
        for point, planes in enumerate(points):
            at_um = stage.parameters.points[point].stagePositionUm[:2] if stage else None
            images.append(self._image(planes, at_um, step_um or None))
        return images

    def _image(
        self, planes: list[OmePlane], at_um: tuple[float, ...] | None, step_um: float | None
    ) -> OmeImage:
        channels = list(self._file.metadata.channels or [])
        first = channels[0] if channels else None
        volume, lens = (first.volume, first.microscope) if first else (None, None)
        matrix = np.reshape((volume and volume.cameraTransformationMatrix) or (1, 0, 0, 1), (2, 2))
        x_um, y_um = np.linalg.solve(matrix, at_um) if at_um else (None, None)
        calibrated = volume and all(volume.axesCalibrated[:2])
        return OmeImage(
            [
                OmeChannel(item.channel.name, item.channel.emissionLambdaNm or None)
                for item in channels
            ]
            or [OmeChannel()] * self._channels,
            planes,
            None if y_um is None else float(y_um),
            None if x_um is None else float(x_um),
            pixel_um=volume.axesCalibration[0] if volume and calibrated else None,
            pixel_y_um=volume.axesCalibration[1] if volume and calibrated else None,
            z_step_um=step_um,
            numerical_aperture=lens.objectiveNumericalAperture if lens else None,
            immersion_refractive_index=lens.immersionRefractiveIndex if lens else None,
        )
