"""The configuration's keys: types, units, ranges and defaults, one model per section."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tilewright.io.tile_order import LAYOUTS

Auto = Literal["auto"]
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


class Acquisition(Section):
    """How the microscope tiled the specimen and named its files."""

    convention: Literal["codex", "pattern", "ome_tiff", "imagexpress", "fiji"]
    pattern: str | None = None
    rows: int | None = Field(default=None, ge=1)
    cols: int | None = Field(default=None, ge=1)
    layout: LayoutName = "snake_right_down"
    overlap: float = Field(default=0.1, ge=0, lt=0.9)
    region: TokenText | None = None
    flip_x: bool = False
    flip_y: bool = False
    pixel_um: Positive
    z_step_um: Positive = 1.0
    reference_cycle: int = Field(default=1, ge=0)
    reference_channel: TokenText


class Camera(Section):
    """What the camera adds to the light."""

    offset_counts: Annotated[float, Field(ge=0)] | Auto = "auto"
    gain_counts_per_photon: Positive | Auto = "auto"
    saturation_counts: Annotated[int, Field(ge=1)] | Auto = "auto"


class Optics(Section):
    """What the point spread function is computed from."""

    numerical_aperture: float | None = Field(default=None, gt=0, lt=1.7)
    immersion_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    sample_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    depth_um: float = Field(default=0.0, ge=0, le=500)


class IlluminationSettings(Section):
    """Flat-field and dark-field estimation."""

    method: Literal["auto", "overlap", "basic", "file", "none"] = "auto"
    flat_file: str | None = None
    dark_file: str | None = None
    planes: int = Field(default=5, ge=1)
    order: Annotated[int, Field(ge=1, le=8)] | Auto = "auto"


class PositionSettings(Section):
    """Tile positions by phase correlation of overlaps."""

    max_shift_px: Positive | Auto = "auto"
    sigma_px: Positive | Auto = "auto"
    planes: int = Field(default=5, ge=1)


class StitchSettings(Section):
    """Fusion of tiles into the mosaic."""

    interpolation: Literal["cubic", "linear"] = "cubic"
    feather_px: Positive | Auto = "auto"
    repair_pixels: bool = True


class DeconvolveSettings(Section):
    """Deconvolution of the stitched z-stack."""

    method: Literal["accelerated", "plain", "none"] = "accelerated"
    iterations: Annotated[int, Field(ge=1, le=500)] | Auto = "auto"
    psf_file: str | None = None
    tile_px: int = Field(default=1024, ge=64)
    halo_px: int = Field(default=64, ge=0)


class EdfSettings(Section):
    """Projection of the z-stack onto one in-focus plane."""

    method: Literal["auto", "psf_mean", "soft_focus"] = "auto"


class RegistrationSettings(Section):
    """Registration of each cycle onto the reference cycle."""

    block_px: int = Field(default=96, ge=48, multiple_of=12)
    max_shift_px: Positive | Auto = "auto"
    max_rotation_deg: float = Field(default=5.0, ge=0, le=20)
    allow_unregistered: tuple[int, ...] = ()


class OutputSettings(Section):
    """How images are stored."""

    chunk_px: int = Field(default=1024, ge=128, multiple_of=16)
    ome_zarr_version: Literal["0.4", "0.5"] = "0.4"
    tiff_compression: Literal["deflate", "zstd"] = "deflate"
    tiff_tile_px: int = Field(default=512, ge=128, multiple_of=16)


class Threshold(Section):
    """Where a quality number turns to warn and to fail; either may be absent."""

    warn: float | None = None
    fail: float | None = None
    direction: Literal["above", "below"] | None = None


class QcSettings(Section):
    """Verdicts."""

    on_fail: Literal["stop", "continue"] = "continue"
    thresholds: dict[str, Threshold] = Field(default_factory=dict)


class RuleResources(Section):
    """What one job of a rule asks for, instead of the figure computed from the data."""

    cpus: int | None = Field(default=None, ge=1)
    mem_mb: int | None = Field(default=None, ge=100)
    runtime_min: int | None = Field(default=None, ge=1)
    device: Literal["auto", "gpu", "cpu"] | None = None
    gpu_mem_mb: int | None = Field(default=None, ge=100)


class Settings(Section):
    """The whole configuration."""

    samples: str
    markers: str
    results: str = "results"
    device: Literal["auto", "gpu", "cpu"] = "auto"
    acquisition: Acquisition
    camera: Camera = Camera()
    optics: Optics = Optics()
    illumination: IlluminationSettings = IlluminationSettings()
    tile_positions: PositionSettings = PositionSettings()
    stitch: StitchSettings = StitchSettings()
    deconvolve: DeconvolveSettings = DeconvolveSettings()
    edf: EdfSettings = EdfSettings()
    registration: RegistrationSettings = RegistrationSettings()
    output: OutputSettings = OutputSettings()
    qc: QcSettings = QcSettings()
    resources: dict[str, RuleResources] = Field(default_factory=dict)
