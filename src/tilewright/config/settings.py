"""The configuration's keys: types, units, ranges and defaults, one model per section."""

from __future__ import annotations

import difflib
import os.path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tilewright.io.tile_order import LAYOUTS

#: What units in the wrong scale make of a number: the factor to the right unit, and the unit.
_SCALES = {
    "µm": ((1e-3, "nm"), (1e3, "mm"), (1e6, "m")),
    "nm": ((1e3, "µm"), (1e-3, "pm"), (1e9, "m")),
    "fraction": ((1e-2, "%"),),
}


class Within(NamedTuple):
    """A range of plausible values that says which other unit an outlier may be in.

    Parameters
    ----------
    low, high : float
        Least and greatest value.
    unit : {"µm", "nm", "fraction"}
        Unit of the key.

    Examples
    --------
    >>> Within(0.01, 20, "µm").sentence(377.0)
    'it must be between 0.01 and 20 µm; is this 377 nm? then write 0.377'
    >>> Within(200, 2000, "nm").sentence(0.461)
    'it must be between 200 and 2000 nm; is this 0.461 µm? then write 461'
    >>> Within(0.01, 20, "µm").sentence(0.3) is None
    True
    """

    low: float
    high: float
    unit: str

    def sentence(self, value: float) -> str | None:
        """Return what is wrong with a value, None for a plausible one."""
        if self.low <= value <= self.high:
            return None
        text = f"it must be between {self.low:g} and {self.high:g}"
        text += f" {self.unit}" if self.unit != "fraction" else ""
        for factor, unit in _SCALES[self.unit]:
            if self.low <= value * factor <= self.high:
                return f"{text}; is this {value:g} {unit}? then write {value * factor:g}"
        return text

    def check(self, value: float) -> float:
        """Return a plausible value; what is wrong with another one is a ValueError."""
        sentence = self.sentence(value)
        if sentence:
            raise ValueError(sentence)
        return value


#: Pixels of light microscopes in the specimen: 0.03 µm (100 x, small camera) to 13 µm (1 x).
PIXEL_UM = Within(0.01, 20, "µm")
Z_STEP_UM = Within(0.01, 100, "µm")
#: Peaks of dyes from Hoechst (450 nm) to the near infrared.
EMISSION_NM = Within(200, 2000, "nm")
OVERLAP = Within(0, 0.899, "fraction")


def _whole_path(path: str) -> str:
    """Refuse a path that a shell would have read otherwise."""
    if not path.strip() or not path.isprintable():
        raise ValueError("name a file or folder")
    if path.startswith("~") or "$" in path:
        whole = os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111
        hint = f"write {whole}" if whole != path else "write the whole path"
        raise ValueError(f"'~' and '$' mean nothing in a config file; {hint}")
    return path


def _no_braces(path: str) -> str:
    if set(path) & set("{}"):
        raise ValueError("a folder of results cannot have braces in its name; rename it")
    return path


Auto = Literal["auto"]
PathText = Annotated[str, AfterValidator(_whole_path)]
Positive = Annotated[float, Field(gt=0)]
TokenText = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    Field(pattern=r"^[A-Za-z0-9-]+$"),
]


def _known_layout(name: str) -> str:
    if name not in LAYOUTS:
        near = difflib.get_close_matches(name, LAYOUTS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"one of {', '.join(LAYOUTS)}"
        raise ValueError(f"not a layout; {hint}")
    return name


LayoutName = Annotated[str, AfterValidator(_known_layout)]


class Section(BaseModel):
    """A configuration section: unknown keys and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Convention = Literal[
    "codex",
    "pattern",
    "imagexpress",
    "fiji",
    "ome_tiff",
    "macsima",
    "phenix",
    "cv8000",
    "ndtiff",
    "czi",
    "nd2",
    "lif",
    "stitched",
]


class Acquisition(Section):
    """How the microscope tiled the specimen and named its files."""

    convention: Convention
    pattern: str | None = None
    rows: int | None = Field(default=None, ge=1, le=1000)
    cols: int | None = Field(default=None, ge=1, le=1000)
    layout: LayoutName = "snake_right_down"
    overlap: Annotated[float, AfterValidator(OVERLAP.check)] = 0.1
    region: TokenText | None = None
    flip_x: bool = False
    flip_y: bool = False
    missing: Literal["stop", "fill"] = "stop"
    counts_per_unit: Positive | None = None
    pixel_um: Annotated[float, AfterValidator(PIXEL_UM.check)]
    z_step_um: Annotated[float, AfterValidator(Z_STEP_UM.check)] = 1.0
    reference_cycle: int = Field(default=1, ge=0)
    reference_channel: TokenText


class CameraSettings(Section):
    """What the camera adds to the light."""

    offset_counts: Annotated[float, Field(ge=0)] | Auto = "auto"
    gain_counts_per_photon: Positive | Auto = "auto"
    saturation_counts: Annotated[int, Field(ge=1)] | Auto = "auto"


class OpticsSettings(Section):
    """What the point spread function is computed from."""

    numerical_aperture: float | None = Field(default=None, gt=0, lt=1.7)
    immersion_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    sample_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    depth_um: float = Field(default=0.0, ge=0, le=500)


class IlluminationSettings(Section):
    """Flat-field and dark-field estimation."""

    method: Literal["auto", "overlap", "basic", "file", "none"] = "auto"
    flat_file: PathText | None = None
    dark_file: PathText | None = None
    planes: int = Field(default=5, ge=1)
    order: Annotated[int, Field(ge=1, le=8)] | Auto = "auto"


class PositionSettings(Section):
    """Tile positions by phase correlation of overlaps."""

    max_shift_px: Positive | Auto = "auto"
    sigma_px: Positive | Auto = "auto"
    planes: int = Field(default=5, ge=1)
    distortion: Literal["auto", "none"] = "auto"


class StitchSettings(Section):
    """Fusion of tiles into the mosaic."""

    interpolation: Literal["cubic", "linear"] = "cubic"
    feather_px: Positive | Auto = "auto"
    repair_pixels: bool = True


class DeconvolveSettings(Section):
    """Deconvolution of the stitched z-stack."""

    method: Literal["accelerated", "plain", "none"] = "accelerated"
    iterations: Annotated[int, Field(ge=1, le=500)] | Auto = "auto"
    psf_file: PathText | None = None
    tile_px: int = Field(default=1024, ge=64)
    halo_px: int = Field(default=64, ge=0)


class EdfSettings(Section):
    """Projection of the z-stack onto one in-focus plane."""

    method: Literal["auto", "direct", "corrected_focus", "psf_mean", "soft_focus"] = "auto"


class RegistrationSettings(Section):
    """Registration of each cycle onto the reference cycle."""

    block_px: int = Field(default=96, ge=48, multiple_of=12)
    max_shift_px: Positive | Auto = "auto"
    max_rotation_deg: float = Field(default=5.0, ge=0, le=20)
    allow_unregistered: tuple[int, ...] = ()


class SubtractSettings(Section):
    """Subtraction of the backgrounds that the markers table names."""

    method: Literal["exposure", "regression", "none"] = "exposure"


class OutputSettings(Section):
    """How images are stored."""

    keep: Literal["results", "stacks"] = "results"
    chunk_px: int = Field(default=1024, ge=128, multiple_of=16)
    ome_zarr_version: Literal["0.4", "0.5"] = "0.4"
    tiff_compression: Literal["deflate", "zstd"] = "deflate"
    # Viewers in browsers (Viv) read tiles of powers of two only.
    tiff_tile_px: Literal[128, 256, 512, 1024, 2048] = 512


class ThresholdSettings(Section):
    """Where a quality number turns to warn and to fail; either may be absent."""

    warn: float | None = None
    fail: float | None = None
    direction: Literal["above", "below"] | None = None


class QcSettings(Section):
    """Verdicts."""

    on_fail: Literal["stop", "continue"] = "continue"
    thresholds: dict[str, ThresholdSettings] = Field(default_factory=dict)


class RuleResources(Section):
    """What one job of a rule asks for, instead of the figure computed from the data."""

    cpus: int | None = Field(default=None, ge=1)
    mem_mb: int | None = Field(default=None, ge=100)
    runtime_min: int | None = Field(default=None, ge=1)
    device: Literal["auto", "gpu", "cpu"] | None = None
    gpu_mem_mb: int | None = Field(default=None, ge=100)


class Settings(Section):
    """The whole configuration."""

    samples: PathText
    markers: PathText
    results: Annotated[PathText, AfterValidator(_no_braces)] = "results"
    device: Literal["auto", "gpu", "cpu"] = "auto"
    acquisition: Acquisition
    camera: CameraSettings = CameraSettings()
    optics: OpticsSettings = OpticsSettings()
    illumination: IlluminationSettings = IlluminationSettings()
    tile_positions: PositionSettings = PositionSettings()
    stitch: StitchSettings = StitchSettings()
    deconvolve: DeconvolveSettings = DeconvolveSettings()
    edf: EdfSettings = EdfSettings()
    registration: RegistrationSettings = RegistrationSettings()
    subtract: SubtractSettings = SubtractSettings()
    output: OutputSettings = OutputSettings()
    qc: QcSettings = QcSettings()
    resources: dict[str, RuleResources] = Field(default_factory=dict)

    @property
    def stitched(self) -> bool:
        """Whether raw images are stitched already: no stage before the registration runs."""
        return self.acquisition.convention == "stitched"

    @property
    def plane_method(self) -> str:
        """How the in-focus plane is made; ``deconvolve.method: none`` says that no PSF is known."""
        if self.edf.method != "auto":
            return self.edf.method
        return "soft_focus" if self.deconvolve.method == "none" else "direct"

    @property
    def plane_of_deconvolved(self) -> bool:
        """Whether the in-focus plane is made from the deconvolved stack."""
        return self.deconvolves and self.plane_method != "direct"

    @property
    def deconvolves(self) -> bool:
        """Whether stacks can be deconvolved."""
        return self.deconvolve.method != "none" and not self.stitched

    @property
    def needs_psf(self) -> bool:
        """Whether the in-focus plane, or a deconvolution, is made with a PSF."""
        made = self.deconvolve.method != "none" or self.plane_method == "direct"
        return made and not self.stitched
