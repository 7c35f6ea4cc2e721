"""A slide of nuclei that each cycle of it shows turned, shifted and bent by a known map."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float64]
PEDESTAL, _STAMP = 100, 12


@dataclass(frozen=True)
class Motion:
    """How a cycle lies against the first, positions in px."""

    side: int
    shift_px: tuple[float, float] = (0.0, 0.0)
    angle_deg: float = 0.0
    bend_px: float = 0.0

    @classmethod
    def of(cls, cycle: int, side: int, shift_px: float) -> Motion:
        """Return the motion of a cycle, from 0; the first does not move."""
        if not cycle:
            return cls(side)
        turn = 2.4 * cycle
        shift = shift_px * np.array([np.cos(turn), np.sin(turn)])
        return cls(side, (float(shift[0]), float(shift[1])), 0.4 * (-1) ** cycle, 5.0)

    def points(self, yx: Floats) -> Floats:
        """Return where points (n, 2) of the first cycle lie in this one."""
        angle, centre = np.radians(self.angle_deg), (self.side - 1) / 2
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        out: Floats = (yx - centre) @ turn.T + centre + np.array(self.shift_px)
        out[:, 0] += self.bend_px * np.sin(yx[:, 1] / 1500)
        out[:, 1] += self.bend_px * np.cos(yx[:, 0] / 1700)
        return out


class Slide:
    """Nuclei of a square slide, drawn a part at a time."""

    def __init__(self, side: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.side = side
        self.yx = rng.random((int(side**2 / 26**2), 2)) * side
        cells = (self.yx // 1500).astype(int)
        tissue = ndimage.gaussian_filter(rng.random([side // 1500 + 1] * 2), 1.0, mode="reflect")
        self.yx = self.yx[tissue[cells[:, 0], cells[:, 1]] > np.percentile(tissue, 25)]
        self.radius = rng.uniform(5, 9, len(self.yx))
        self.light = 800 * rng.lognormal(0, 0.35, len(self.yx))

    def moved(self, motion: Motion) -> Slide:
        """Return the slide as it lies in a cycle."""
        new, yx = copy(self), motion.points(self.yx)
        order = np.argsort(yx[:, 0])
        new.yx, new.radius, new.light = yx[order], self.radius[order], self.light[order]
        return new

    def draw(self, y0: float, x0: float, shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return the light of a part whose first pixel lies at (y0, x0); of a moved slide."""
        first, last = np.searchsorted(self.yx[:, 0], (y0 - _STAMP, y0 + shape[0] + _STAMP))
        near = np.arange(first, last)
        x = self.yx[near, 1]
        near = near[(x > x0 - _STAMP) & (x < x0 + shape[1] + _STAMP)]
        out = np.zeros([n + 4 * _STAMP for n in shape], np.float32)
        grid = np.arange(-_STAMP, _STAMP + 1)
        for some in np.array_split(near, len(near) // 10_000 + 1):
            at = self.yx[some] - (y0, x0) + 2 * _STAMP
            whole = np.floor(at).astype(int)
            dy, dx = ((grid - (at - whole)[:, k, None]) for k in (0, 1))
            distance = np.hypot(dy[:, :, None], dx[:, None, :])
            stamps = self.light[some, None, None] / (
                1 + np.exp(1.5 * (distance - self.radius[some, None, None]))
            )
            rows, columns = (whole[:, k, None] + grid for k in (0, 1))
            np.add.at(out, (rows[:, :, None], columns[:, None, :]), stamps.astype(np.float32))
        return out[2 * _STAMP : -2 * _STAMP, 2 * _STAMP : -2 * _STAMP]


def counts(rng: np.random.Generator, light: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return what a camera counts, half a photon a count."""
    return np.asarray(rng.poisson(2 * light) / 2 + PEDESTAL, np.uint16)
