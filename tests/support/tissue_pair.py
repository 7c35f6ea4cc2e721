"""Two cycles of one synthetic field of nuclei, drawn where an exact transform puts them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    reference: NDArray[np.uint16]
    moving: NDArray[np.uint16]
    affine: Floats
    waves: Floats

    def truth(self, points_px: Floats) -> Floats:
        """Return the moving positions of reference positions."""
        return _move(points_px, self.affine, self.waves)

    def errors(self, found: Floats, points_px: Floats) -> Floats:
        return np.asarray(np.linalg.norm(found - self.truth(points_px), axis=1))


def _move(points_px: Floats, affine: Floats, waves: Floats) -> Floats:
    moved = points_px @ affine[:, :2].T + affine[:, 2]
    for amplitude_y, amplitude_x, ky, kx, phase in waves:
        wave = np.sin(points_px @ np.array([ky, kx]) + phase)
        moved = moved + wave[:, None] * np.array([amplitude_y, amplitude_x])
    return np.asarray(moved)


def make_pair(
    seed: int,
    *,
    size: tuple[int, int] = (768, 832),
    moving_size: tuple[int, int] | None = None,
    angle_deg: float = 1.2,
    shift_px: tuple[float, float] = (23.4, -37.8),
    elastic_px: float = 2.0,
    wave_rad: float = 0.012,
    gain: float = 0.4,
) -> Pair:
    """Draw nuclei in clumps; the moving image has fewer photons and smoothly other positions.

    ``wave_rad`` is the largest change of the elastic field's phase from pixel to pixel.
    """
    rng = np.random.default_rng(seed)
    a = np.deg2rad(angle_deg)
    linear = 1.001 * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    centre = np.array(size) / 2
    affine = np.column_stack([linear, centre - linear @ centre + shift_px])
    waves = np.array(
        [
            [*(elastic_px * rng.uniform(-0.6, 0.6, 2)), *rng.uniform(-wave_rad, wave_rad, 2), phase]
            for phase in rng.uniform(0, 6.28, 3)
        ]
    )
    area = (size[0] + 200) * (size[1] + 200)
    clumps = rng.uniform(-100, np.array(size) + 100, (area // 20000, 2))
    nuclei = clumps[rng.integers(0, len(clumps), area // 350)]
    nuclei = nuclei + rng.normal(0, 45, nuclei.shape)
    width_px = rng.uniform(2.5, 4.5, len(nuclei))
    peak = rng.uniform(400, 1500, len(nuclei))
    reference = _draw(size, nuclei, width_px, peak)
    moving = _draw(moving_size or size, _move(nuclei, affine, waves), width_px, gain * peak)
    return Pair(_camera(reference, rng), _camera(moving, rng), affine, waves)


def _draw(size: tuple[int, int], centres: Floats, width_px: Floats, peak: Floats) -> Floats:
    image = np.zeros((size[0] + 40, size[1] + 40))
    patch = np.arange(-14, 15)
    for (y, x), width, height in zip(centres + 20, width_px, peak, strict=True):
        row, column = round(y), round(x)
        if not (14 <= row < size[0] + 25 and 14 <= column < size[1] + 25):
            continue
        gy = np.exp(-((patch + row - y) ** 2) / (2 * width**2))
        gx = np.exp(-((patch + column - x) ** 2) / (2 * width**2))
        image[row - 14 : row + 15, column - 14 : column + 15] += height * np.outer(gy, gx)
    return image[20:-20, 20:-20]


def _camera(light: Floats, rng: np.random.Generator) -> NDArray[np.uint16]:
    counts = rng.poisson(light + 20) * 4 + rng.normal(100, 10, light.shape)
    return counts.clip(0, 65535).astype(np.uint16)
