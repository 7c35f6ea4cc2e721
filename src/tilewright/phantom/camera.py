"""Camera, stage and cycle geometry of the phantom."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tilewright.phantom.design import PhantomDesign

Image = NDArray[np.float32]
Points = NDArray[np.float64]


def normal(words: NDArray[np.uint32]) -> Image:
    """Return the standard normal quantile of ``words / 2**32``, the middle of each word's."""
    return np.asarray(ndtri((words + 0.5) / 2.0**32), np.float32)


def poisson(words: NDArray[np.uint32], mean: Image) -> Image:
    """Return the Poisson quantile of ``words / 2**32`` for each mean, whole numbers.

    Light that differs in its last bit so changes that pixel alone; rejection, as in
    ``Generator.poisson``, shifts the whole stream, and 18 % of the pixels differ between two CPUs.
    The expansion of the inverse incomplete gamma function in the normal quantile, of Giles,
    Algorithm 955, ACM Trans. Math. Softw. 42 (2016) 7, equation 6: right from 4 electrons on;
    glass has 10.
    """
    w, root = normal(words), np.sqrt(mean)
    number = mean + root * w
    number += np.float32(1 / 3) + w * w * np.float32(1 / 6)
    number -= w * (np.float32(1 / 36) + w * w * np.float32(1 / 72)) / root
    return np.maximum(np.floor(number), 0)


@dataclass(frozen=True)
class Camera:
    """A camera with faults of single pixels.

    Attributes
    ----------
    dark_counts : float32 (y, x)
        Offset plus dark-field pattern: counts without light.
    hot_counts : float32 (y, x)
        Added by hot pixels, 0 elsewhere.
    gain_counts : float
        Counts per electron.
    read_noise_electrons : float
        Standard deviation of the read noise.
    """

    dark_counts: Image
    hot_counts: Image
    gain_counts: float
    read_noise_electrons: float

    def expose(
        self, noise: np.random.BitGenerator, electrons: Image, largest: int = 65535
    ) -> NDArray[np.uint16]:
        """Return counts (z, y, x): Poisson and read noise, offset, hot pixels, saturation."""
        rng = np.random.Generator(noise)
        counts = np.empty(electrons.shape, np.uint16)
        floor = self.dark_counts + self.hot_counts
        for plane, light in zip(counts, electrons, strict=True):
            shot, read = rng.integers(0, 1 << 32, (2, *light.shape), np.uint32)
            signal = poisson(shot, light)
            signal += normal(read) * np.float32(self.read_noise_electrons)
            signal *= np.float32(self.gain_counts)
            plane[...] = np.clip(np.rint(signal + floor), 0, largest)
        return counts


def make_camera(rng: np.random.Generator, d: PhantomDesign) -> Camera:
    """Draw a camera: column pattern and a glowing corner of a few counts, hot pixels."""
    tile_px = d.tile_px
    y, x = np.meshgrid(*[np.linspace(0, 1, tile_px)] * 2, indexing="ij")
    glow = 6 * np.exp(-((y - 1) ** 2 + x**2) / 0.08)
    dark = d.offset_counts + rng.normal(0, 0.8, tile_px)[None, :] + glow
    hot = np.zeros((tile_px, tile_px), np.float32)
    count = round(d.hot_share * tile_px**2)
    hot[tuple(rng.integers(0, tile_px, (2, count)))] = rng.uniform(200, 4000, count)
    return Camera(dark.astype(np.float32), hot, d.gain_counts, d.read_noise_electrons)


def make_flat(rng: np.random.Generator, design: PhantomDesign) -> Image:
    """Return a flat-field (y, x) of mean 1: off-centre fall-off, and rings of dust."""
    tile_px, loss = design.tile_px, design.vignetting
    y, x = np.meshgrid(*[np.linspace(-1, 1, tile_px)] * 2, indexing="ij")
    cy, cx = rng.uniform(-0.2, 0.2, 2)
    radius = (x - cx) ** 2 + 0.85 * (y - cy) ** 2 + 0.15 * (x - cx) * (y - cy)
    flat = 1 / (1 + loss / (1 - loss) * (radius / radius.max()) ** 1.15)
    for _ in range(design.dust):
        py, px = rng.uniform(-0.9, 0.9, 2)
        distance = np.hypot(y - py, x - px) * tile_px / 2
        ring = np.exp(-0.5 * ((distance - rng.uniform(4, 7)) / 2.2) ** 2)
        flat *= 1 - rng.uniform(0.05, 0.11) * ring
    return np.asarray(flat / flat.mean(), np.float32)


def stage_positions(rng: np.random.Generator, design: PhantomDesign) -> tuple[Points, Points]:
    """Return nominal and true (y, x) in px of each tile, ordered by (row, col).

    The camera is turned by ``skew_deg`` against the stage, odd rows (scanned backwards)
    are late by ``backlash_px``, and every stop misses by a normal of σ ``jitter_px``.
    """
    ij = np.argwhere(np.ones((design.rows, design.cols))).astype(np.float64)
    nominal = ij * design.step_px
    angle = np.deg2rad(design.skew_deg)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    true = nominal @ turn.T * design.stage_scale
    true += rng.normal(0, design.jitter_px, nominal.shape)
    true[:, 1] += np.where(ij[:, 0] % 2 == 1, design.backlash_px, 0.0)
    return nominal, true


@dataclass(frozen=True)
class CycleMap:
    """Where a pixel of one cycle lies in the reference frame; exact anywhere.

    A rotation about ``centre_px``, a shift, and an elastic field of four sine waves per axis
    (amplitude, frequency y, frequency x, phase).
    """

    centre_px: tuple[float, float]
    shift_px: tuple[float, float]
    rotation_deg: float
    waves: tuple[tuple[tuple[float, float, float, float], ...], ...]

    def to_reference(self, y: Any, x: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Map cycle coordinates (px, broadcast against each other) to the reference frame."""
        angle = np.deg2rad(self.rotation_deg)
        cos, sin = np.cos(angle), np.sin(angle)
        v, u = y - self.centre_px[0], x - self.centre_px[1]
        ry = cos * v - sin * u + self.centre_px[0] + self.shift_px[0]
        rx = sin * v + cos * u + self.centre_px[1] + self.shift_px[1]
        bend = [sum(self._wave(wave, y, x) for wave in axis) for axis in self.waves]
        return np.asarray(ry + bend[0]), np.asarray(rx + bend[1])

    @staticmethod
    def _wave(wave: tuple[float, float, float, float], y: Any, x: Any) -> Any:
        amplitude, fy, fx, phase = wave
        return amplitude * np.sin(2 * np.pi * (fy * y + fx * x) + phase)


def make_cycle_map(rng: np.random.Generator, d: PhantomDesign, cycle: int) -> CycleMap:
    """Draw the deformation of a cycle, from 0; that of the reference, 0, is the identity.

    The elastic displacement never exceeds ``elastic_px`` per axis; wavelengths are between
    0.6 and 2 canvas sides.
    """
    shape, moved = d.canvas, cycle > 0
    side = float(max(shape))
    waves = []
    for _ in range(2):
        share = rng.dirichlet(np.ones(4)) * (d.elastic_px * moved)
        turn, phase = rng.uniform(0, 2 * np.pi, (2, 4))
        frequency = rng.uniform(0.5, 1.6, 4) / side
        fy, fx = frequency * np.sin(turn), frequency * np.cos(turn)
        waves.append(
            tuple(
                (float(a), float(v), float(u), float(p))
                for a, v, u, p in zip(share, fy, fx, phase, strict=True)
            )
        )
    shift = rng.uniform(0.4, 1, 2) * rng.choice([-1, 1], 2) * (d.cycle_shift_px * moved)
    return CycleMap(
        centre_px=(shape[0] / 2, shape[1] / 2),
        shift_px=(float(shift[0]), float(shift[1])),
        rotation_deg=float(
            rng.choice([-1, 1]) * rng.uniform(0.5, 1) * d.cycle_rotation_deg * moved
        ),
        waves=tuple(waves),
    )
