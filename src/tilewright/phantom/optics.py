"""Widefield optics of the phantom: a scalar pupil model, and the blur of a thin wavy sheet.

Independent of the PSF of the deconvolution, so that an error in one is not in the other too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import j0

from tilewright.kernels.backend import fast_len

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Microscope:
    """Objective and sampling of one channel; lengths in µm."""

    aperture: float
    wavelength_um: float
    immersion_index: float
    pixel_um: float
    z_step_um: float


def radial_otf(
    optics: Microscope, defocus_um: float, n: int = 512
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return frequency (cycles/µm) and incoherent transfer at a defocus, 1 at frequency 0.

    Scalar Debye integral over the pupil with the exact (not paraxial) defocus phase
    (Born & Wolf, chapter 8.8), squared, and Hankel transformed.
    """
    k = 2 * np.pi / optics.wavelength_um
    rho = (np.arange(n) + 0.5) / n
    cos = np.sqrt(1 - (rho * optics.aperture / optics.immersion_index) ** 2)
    pupil = np.exp(1j * k * optics.immersion_index * defocus_um * cos) * rho / n
    # The geometric cone plus 6 µm of rings holds the light; a longer axis only adds time.
    cone = abs(defocus_um) * np.tan(np.arcsin(optics.aperture / optics.immersion_index))
    step = optics.wavelength_um / optics.aperture / 8
    r = np.arange(step / 2, cone + 6.0, step)
    psf = np.abs(j0(k * optics.aperture * np.outer(r, rho)) @ pupil) ** 2
    frequency = np.linspace(0, 2 * optics.aperture / optics.wavelength_um, 160)
    otf = j0(2 * np.pi * np.outer(frequency, r)) @ (psf * r)
    return frequency, otf / otf[0]


class SheetBlur:
    """Blurs of one canvas (y, x) through one objective; planes are centred on z = 0."""

    #: A fixed number: from SciPy 1.18 on, the last bit of an FFT depends on its threads.
    _FFT_THREADS = 2
    #: Specimen layers per image plane; 2 puts cells between the planes of the stack.
    LAYERS_PER_PLANE = 2
    _DEPTHS_PER_UM = 256

    def __init__(self, shape: tuple[int, int], planes: int, optics: Microscope) -> None:
        self._shape = shape
        self._size = (fast_len(shape[0] + 32), fast_len(shape[1] + 32))
        self.plane_um = (np.arange(planes) - (planes - 1) / 2) * optics.z_step_um
        count = self.LAYERS_PER_PLANE * planes
        step = optics.z_step_um / self.LAYERS_PER_PLANE
        self.layer_um = (np.arange(count) - (count - 1) / 2) * step
        fy = fft.fftfreq(self._size[0])[:, None]
        fx = fft.rfftfreq(self._size[1])[None, :]
        self._radius = (np.sqrt(fy * fy + fx * fx) / optics.pixel_um).astype(np.float32)
        self._pixel = (np.sinc(fy) * np.sinc(fx)).astype(np.float32)
        # Cubic B-spline coefficients of the result come free by division in Fourier space.
        cos_y, cos_x = (np.cos(2 * np.pi * f) for f in (fy, fx))
        self._unspline = (9 / ((2 + cos_y) * (2 + cos_x))).astype(np.float32)
        self._optics = optics
        self._cache: dict[float, Image] = {}

    def _transfer(self, defocus_um: float) -> Image:
        key = round(abs(defocus_um), 6)
        if key not in self._cache:
            frequency, otf = radial_otf(self._optics, key)
            transfer = np.interp(self._radius, frequency, otf, right=0).astype(np.float32)
            self._cache[key] = transfer * self._pixel
        return self._cache[key]

    def _spectrum(self, image: Image) -> NDArray[np.complex64]:
        spectrum = fft.rfft2(image, self._size, workers=self._FFT_THREADS)
        return np.asarray(spectrum, np.complex64)

    def _inverse(self, spectrum: NDArray[np.complex64]) -> Image:
        image = fft.irfft2(spectrum, self._size, workers=self._FFT_THREADS)
        return np.asarray(image[: self._shape[0], : self._shape[1]], np.float32)

    def layers(self, stain: Image, depth_um: Image, thickness_um: float) -> Iterator[Image]:
        """Spread a stain over the layers: a Gaussian of σ ``thickness_um`` around its depth."""
        index = np.rint(depth_um * np.float32(self._DEPTHS_PER_UM)).astype(np.intp)
        lowest = index.min()
        index -= lowest
        depths = (np.arange(index.max() + 1) + lowest) / self._DEPTHS_PER_UM
        weights = np.exp(-0.5 * ((depths - self.layer_um[:, None]) / thickness_um) ** 2)
        weights /= np.maximum(weights.sum(axis=0), 1e-6)
        for weight in weights.astype(np.float32):
            yield stain * weight[index]

    def stack(self, stain: Image, depth_um: Image, thickness_um: float) -> list[Image]:
        """Return spline coefficients of each plane, (y, x) float32.

        Each plane holds the light of every layer, blurred by its distance from focus.
        """
        spectra = [self._spectrum(layer) for layer in self.layers(stain, depth_um, thickness_um)]
        planes = []
        for z in self.plane_um:
            total = np.zeros_like(spectra[0])
            for depth, spectrum in zip(self.layer_um, spectra, strict=True):
                total += spectrum * self._transfer(float(z - depth))
            planes.append(self._inverse(total * self._unspline))
        return planes

    def projection(self, stain: Image, depth_um: Image, thickness_um: float) -> Image:
        """Return the true in-focus projection, (y, x) float32: z-integrated intensity."""
        layers = self.layers(stain, depth_um, thickness_um)
        focus = np.sum([self._spectrum(layer) for layer in layers], axis=0) * self._transfer(0.0)
        return np.maximum(self._inverse(focus), 0)
