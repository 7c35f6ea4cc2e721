"""Size, optics and faults of a phantom."""

from dataclasses import dataclass

import numpy as np

from tilewright.phantom.optics import Microscope
from tilewright.phantom.tissue import MARKERS


@dataclass(frozen=True, kw_only=True)
class PhantomDesign:
    """Parameters of a simulation.

    Lengths are in the units of their names; cycles and channels count from 1.

    Attributes
    ----------
    seed : int
        Of all random numbers.
    cycles, channels, rows, cols, planes, tile_px : int
        Size. Channel 1 is the nuclear stain in every cycle; cycle 1 is the reference.
    overlap : float
        Share of a tile's side that it has in common with its neighbour.
    pixel_um, z_step_um, aperture, immersion_index : float
        Sampling and objective.
    wavelengths_nm : tuple[float, ...]
        Emission of channels 1, 2, …; repeated when there are more channels.
    peak_electrons : float
        99.5th percentile of a stain in focus; markers get 0.35 to 1 of it.
    offset_counts, gain_counts, read_noise_electrons : float
        Camera.
    vignetting : float
        Loss of light in the darkest corner.
    dust, hot_share, saturated_spots : int, float, int
        Dust rings, share of hot pixels, saturated debris per channel.
    jitter_px, backlash_px, skew_deg, stage_scale : float
        Stage errors.
    cycle_shift_px, cycle_rotation_deg, elastic_px : float
        Largest change of a cycle against the reference.
    lost_share : float
        Share of the canvas whose tissue is lost in each later cycle.
    tissue_share : float
        Share of the canvas that holds tissue.
    empty_tile : bool
        Whether the last tile of the grid sees glass only.
    autofluorescence : float
        Light of the tissue itself at 200 ms, at its brightest, as a share of ``peak_electrons``:
        one image for each channel, the same in all cycles.
    exposures_ms : tuple[float, ...]
        Of channels 2, 3, … in cycles 1, 2, …; repeated when there are more cycles. Channel 1 has 10
        ms. Autofluorescence is proportional to it; stains do not depend on it.
    blank_cycle : int | None
        In this cycle nothing but the nuclei is stained.
    """

    seed: int
    cycles: int = 3
    channels: int = 3
    rows: int = 3
    cols: int = 4
    planes: int = 5
    tile_px: int = 256
    overlap: float = 0.12
    pixel_um: float = 0.377
    z_step_um: float = 1.5
    aperture: float = 0.75
    immersion_index: float = 1.0
    wavelengths_nm: tuple[float, ...] = (461.0, 519.0, 578.0, 668.0)
    peak_electrons: float = 1500.0
    offset_counts: float = 100.0
    gain_counts: float = 8.0
    read_noise_electrons: float = 2.5
    vignetting: float = 0.35
    dust: int = 3
    hot_share: float = 2e-4
    saturated_spots: int = 4
    jitter_px: float = 2.0
    backlash_px: float = 3.0
    skew_deg: float = 0.25
    stage_scale: float = 1.001
    cycle_shift_px: float = 12.0
    cycle_rotation_deg: float = 0.2
    elastic_px: float = 1.5
    lost_share: float = 0.03
    tissue_share: float = 0.85
    empty_tile: bool = True
    autofluorescence: float = 0.0
    exposures_ms: tuple[float, ...] = (200.0,)
    blank_cycle: int | None = None

    @property
    def step_px(self) -> float:
        """Nominal distance between neighbouring tiles."""
        return self.tile_px * (1 - self.overlap)

    @property
    def margin_px(self) -> int:
        """Canvas around the nominal grid, so that no tile of any cycle exceeds it."""
        extent = self.step_px * (max(self.rows, self.cols) - 1) + self.tile_px
        turn = np.deg2rad(self.skew_deg + self.cycle_rotation_deg) + abs(self.stage_scale - 1)
        reach = self.cycle_shift_px + self.elastic_px + 5 * self.jitter_px + self.backlash_px
        return int(reach + turn * extent) + 16

    @property
    def canvas(self) -> tuple[int, int]:
        """(y, x) of the reference frame."""
        sides = [int(self.step_px * (n - 1)) + 1 + self.tile_px for n in (self.rows, self.cols)]
        return sides[0] + 2 * self.margin_px, sides[1] + 2 * self.margin_px

    @property
    def grid(self) -> tuple[int, int, float, int]:
        """Rows, columns, overlap and side of a tile."""
        return self.rows, self.cols, self.overlap, self.tile_px

    def markers(self) -> list[list[str]]:
        """Marker names per cycle; the nuclear stain is ``DAPI-{cycle}``.

        Channels of the blank cycle are ``Blank-{channel}``.
        """
        per_cycle = self.channels - 1
        names = [marker.name for marker in MARKERS]
        names += [f"Marker{k}" for k in range(len(names) + 1, self.cycles * per_cycle + 1)]
        blank = [f"Blank-{channel}" for channel in range(2, self.channels + 1)]
        return [
            [f"DAPI-{c + 1}"]
            + (blank if c + 1 == self.blank_cycle else names[c * per_cycle : (c + 1) * per_cycle])
            for c in range(self.cycles)
        ]

    def exposure_ms(self, cycle: int, channel: int) -> float:
        """Exposure time of a channel in a cycle, both from 1."""
        return 10.0 if channel == 1 else self.exposures_ms[(cycle - 1) % len(self.exposures_ms)]

    def optics(self, channel: int) -> Microscope:
        """Optics of a channel, from 1."""
        wavelength = self.wavelengths_nm[(channel - 1) % len(self.wavelengths_nm)]
        return Microscope(
            self.aperture, wavelength / 1000, self.immersion_index, self.pixel_um, self.z_step_um
        )
