"""The configuration's keys: types, units, ranges and defaults, one model per section."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tilewright.stages.edf import METHODS, Method


def _literal_path(path: str) -> str:
    """Refuse a path that a shell would expand."""
    if not path.strip() or not path.isprintable():
        raise ValueError("name a file or folder")
    if path.startswith("~") or "$" in path:
        raise ValueError("'~' and '$' are not expanded in a config file; write the whole path")
    return path


def _only_fields(path: str) -> str:
    if set(re.sub(r"\{(sample|cycle|channel)\}", "", path)) & set("{}"):
        raise ValueError("fields are {sample}, {cycle} and {channel}; write no other braces")
    return path


def _no_braces(path: str) -> str:
    if set(path) & set("{}"):
        raise ValueError("a folder of results cannot have braces in its name; rename it")
    return path


Auto = Literal["auto"]
PathText = Annotated[str, AfterValidator(_literal_path)]
FieldsPath = Annotated[PathText, AfterValidator(_only_fields)]
ResultsPath = Annotated[PathText, AfterValidator(_no_braces)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A configuration section: unknown keys and NaN are refused.

    The meaning of its keys, in Markdown under `Attributes`, is that in ``config/README.md``.
    """

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
    """How the microscope tiled the specimen and named its files.

    Attributes
    ----------
    convention
        Format of the raw files, by their names: `codex` (`Cyc1_reg1/1_00001_Z001_CH1.tif`),
        `pattern`, `imagexpress` (`_s1_w1`), `fiji` (`TileConfiguration.txt`); or by their metadata:
        `ome_tiff`, `macsima`, `phenix`, `cv8000`, `ndtiff`, and with an extra `czi`, `nd2`, `lif`
        ([raw data](../docs/raw-data.md#conventions)). `stitched`: images that are stitched already,
        one file of channels per cycle; keys of tiles, and of the stages that make mosaics and
        in-focus planes, are then refused.
    pattern
        For `pattern`: the path below `raw_dir` with the fields `{cycle}`, `{row}` and `{col}` or
        `{tile}`, `{z}`, `{channel}`, `{region}` and `*`; formats such as `{tile:05}` are accepted.
        A field that is absent means there is one; without `{z}` the pages of a file are its
        z-planes.
    counts_per_unit
        Where raw files hold float32: what a value of 1 is in counts (65535 where they run from 0 to
        1). Values are rounded and limited to 0 to 65,535.
    pixel_um
        Size of a pixel in the specimen.
    z_step_um
        Distance of z-planes. A PSF needs it; without it heights count planes.
    reference_cycle
        Cycle onto which the others are registered; one in the middle where tissue is lost with
        time, since the image is in its frame.
    """

    convention: Convention
    pattern: str | None = None
    counts_per_unit: Positive | None = None
    pixel_um: float = Field(ge=0.01, le=20)
    z_step_um: float | None = Field(default=None, ge=0.01, le=100)
    reference_cycle: int = Field(default=1, ge=0)


class CameraSettings(Section):
    """Offset and saturation of the camera.

    Attributes
    ----------
    offset_counts
        Counts without light. Give it where you know it, above all where tiles do not overlap: the
        estimate is then an upper bound.
    saturation_counts
        Counts at which the camera saturates; `auto`: where the histogram piles up, else the largest
        value of the pixel type. Give it where the camera saturates earlier.
    """

    offset_counts: Annotated[float, Field(ge=0)] | Auto = "auto"
    saturation_counts: Annotated[int, Field(ge=1)] | Auto = "auto"


class OpticsSettings(Section):
    """Optics from which the point spread function is computed.

    Attributes
    ----------
    numerical_aperture
        Of the objective; below the refractive index of its immersion.
    immersion_refractive_index
        1.0 air, 1.33 water, 1.515 oil.
    sample_refractive_index
        Of the mounting medium: 1.33 for buffer, about 1.44 for glycerol media. Needed when
        `depth_um` is above 0.
    depth_um
        Depth of the tissue below the coverslip at which the PSF is computed. At 0 (thin sections on
        the coverslip) the PSF is symmetric and the sample's index plays no part.
    """

    numerical_aperture: float | None = Field(default=None, gt=0, lt=1.7)
    immersion_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    sample_refractive_index: float | None = Field(default=None, ge=1, lt=1.8)
    depth_um: float = Field(default=0.0, ge=0, le=500)


class IlluminationSettings(Section):
    """Flat-field and dark-field estimation.

    Attributes
    ----------
    method
        `auto`: from overlaps and all tiles, or from eight and more tiles alone; `file`: a
        flat-field you have; `none`: the microscope has corrected already.
    flat_file, dark_file
        For `file`: TIFFs of a tile's shape; `{sample}`, `{cycle}` and `{channel}` are filled in.
    """

    method: Literal["auto", "file", "none"] = "auto"
    flat_file: FieldsPath | None = None
    dark_file: FieldsPath | None = None


class PositionSettings(Section):
    """Tile positions by phase correlation of overlaps.

    Attributes
    ----------
    max_shift_px
        Largest stage error; `auto` is 3 % of the shorter side of a tile, at most half the overlap,
        at least 8 px. Larger where the stage is worse.
    false_match_probability
        Displacements of overlaps that are false with at most this probability are used. Smaller
        where tiles are misplaced by false matches, larger where too few overlaps are accepted.
    """

    max_shift_px: Positive | Auto = "auto"
    false_match_probability: Annotated[float, Field(gt=0, lt=1)] = 1e-4


class DeconvolveSettings(Section):
    """Deconvolution of the stitched z-stack.

    Attributes
    ----------
    method
        `accelerated` Richardson-Lucy, or `none`: no PSF is known. The rule runs for the target
        `deconvolution` and where `edf.method` asks for it. `none` is for single planes, stacks too
        coarse in z, and microscopes whose PSF is not known.
    iterations
        Of Richardson-Lucy: more recover finer light, and cost as much more time.
    psf_file
        A measured PSF (z, y, x TIFF) at the data's voxel size instead of the computed one;
        `{channel}` and `{cycle}` are filled in.
    """

    method: Literal["accelerated", "none"] = "accelerated"
    iterations: Annotated[int, Field(ge=1, le=500)] = 32
    psf_file: FieldsPath | None = None


class EdfSettings(Section):
    """Projection of the z-stack onto one in-focus plane.

    Attributes
    ----------
    method
        `multiplane_wiener`, or `focus_weighted` where `deconvolve.method` is `none`.
        `multiplane_wiener` estimates the plane from the stitched stack with the optics: nothing is
        deconvolved for it. `sum_projection` sums the deconvolved stack, every depth in focus.
        `focus_weighted` mixes planes; of deconvolved stacks unless `deconvolve.method` is `none`.
    """

    method: Literal["auto", Method] = "auto"


class RegistrationSettings(Section):
    """Registration of each cycle onto the reference cycle.

    Attributes
    ----------
    max_shift_px
        Largest shift between cycles; `auto` allows any shift that leaves enough tissue in common. A
        limit where repetitive tissue is matched to the wrong place.
    max_rotation_deg
        Largest rotation between cycles; more where slides were taken out and put back.
    allow_unregistered
        Cycles that may stay unregistered when they do not match the reference. They are red in the
        report. Any other cycle that does not match stops its sample.
    """

    max_shift_px: Positive | Auto = "auto"
    max_rotation_deg: float = Field(default=5.0, ge=0, le=20)
    allow_unregistered: tuple[int, ...] = ()


class SubtractSettings(Section):
    """Subtraction of the backgrounds that the markers table names.

    Attributes
    ----------
    method
        What the image of `background` is multiplied by before it is subtracted: `exposure`, the
        ratio of both `exposure_ms`; `regression`, the slope of a line under the marker
        ([background](../docs/background.md)); `none` subtracts nothing. Without a column
        `background` in the markers table there is nothing to subtract.
    """

    method: Literal["exposure", "regression", "none"] = "exposure"


class OutputSettings(Section):
    """How images are stored.

    Attributes
    ----------
    keep
        `results`: stitched and deconvolved stacks, most of all bytes, are removed after their last
        reader. `stacks` keeps them. The targets `stitching` and `deconvolution` keep what they
        make.
    ome_zarr_version
        `"0.4"` for today's viewers, `"0.5"` for Zarr v3.
    """

    keep: Literal["results", "stacks"] = "results"
    ome_zarr_version: Literal["0.4", "0.5"] = "0.4"


class ThresholdSettings(Section):
    """Limits of a quality number for warn and fail; either may be absent."""

    warn: float | None = None
    fail: float | None = None


class QcSettings(Section):
    """Verdicts.

    Attributes
    ----------
    on_fail
        `stop`: the `qc` target fails when a verdict is `fail`, after the report is written.
    thresholds
        Limits of quality numbers, `metric: {warn: x, fail: y}`, over the
        [defaults](../docs/quality.md#metrics).
    """

    on_fail: Literal["stop", "continue"] = "continue"
    thresholds: dict[str, ThresholdSettings] = Field(default_factory=dict)


class RuleResources(Section):
    """Resources of one job of a rule, instead of those computed from the data."""

    cpus: int | None = Field(default=None, ge=1)
    mem_mb: int | None = Field(default=None, ge=100)
    runtime_min: int | None = Field(default=None, ge=1)
    device: Literal["auto", "gpu", "cpu"] | None = None
    gpu_mem_mb: int | None = Field(default=None, ge=100)


class Settings(Section):
    """The whole configuration.

    Attributes
    ----------
    samples
        Tab-separated table, one line per tissue: `sample` (letters, digits, `_`, `-`) and
        `raw_dir`; the optional column `region` names its CODEX region, well or scene where a raw
        folder has several. Samples of one `scan`, else of one folder, share flat-fields.
    tiles
        Comma-separated table, one line per sample, cycle and tile, as `tilewright init` writes it:
        `sample`, `cycle`, `tile` (its number or name in the files), `y` and `x` of its first pixel
        in the directions of the image, `unit` (`um` or `px`), `source` (where they come from),
        `file` (one of its files, for you) and `use` (0: the tile is left out). Each cycle has an
        origin of its own. Stitched images need none.
    markers
        Comma-separated table, one line per cycle and channel: `cycle`, `channel`, `marker` (names
        must differ), `reference` (`TRUE` for one channel of each cycle, by which tiles are placed
        and cycles registered: what every cycle shows, with structure in every tile, usually
        nuclei), `emission_nm` (200 to 2000; needed for a computed PSF), `exposure_ms` (used where a
        background is subtracted), `background` (the marker whose image is subtracted from this
        one's, see `subtract`), `remove` (`TRUE`: left out of the final image, after it has served
        as a background) and `shift_px` (`y x`, by which the optics displace the channel against the
        reference channel; tiles are placed back by it, see [stitching](../docs/stitching.md)).
        Channels that are not listed are not read.
    results
        Folder for everything that is written; no braces in its name.
    cycles
        Cycles of the markers table to process, such as `[1, 2]`; others wait, and their files are
        not asked for. Without the reference cycle there are the targets up to `edf`. What is made
        stays when cycles are added, except the final image, its quality and the report.
    device
        Where image rules run; `resources.<rule>.device` says it for one rule
        ([devices](../docs/devices.md)).
    """

    samples: PathText
    tiles: PathText | None = None
    markers: PathText
    results: ResultsPath = "results"
    cycles: Auto | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = "auto"
    device: Literal["auto", "gpu", "cpu"] = "auto"
    acquisition: Acquisition
    camera: CameraSettings = CameraSettings()
    optics: OpticsSettings = OpticsSettings()
    illumination: IlluminationSettings = IlluminationSettings()
    tile_positions: PositionSettings = PositionSettings()
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
    def plane_method(self) -> Method:
        """Method of the in-focus plane; ``deconvolve.method: none`` means that no PSF is known."""
        if self.edf.method != "auto":
            return self.edf.method
        return "focus_weighted" if self.deconvolve.method == "none" else "multiplane_wiener"

    @property
    def plane_of_deconvolved(self) -> bool:
        """Whether the in-focus plane is made from the deconvolved stack."""
        return self.deconvolves and METHODS[self.plane_method].takes(deconvolved=True)

    @property
    def deconvolves(self) -> bool:
        """Whether stacks can be deconvolved."""
        return self.deconvolve.method != "none" and not self.stitched

    @property
    def needs_psf(self) -> bool:
        """Whether the in-focus plane, or a deconvolution, is made with a PSF."""
        psf_method = self.deconvolve.method != "none" or METHODS[self.plane_method].psf
        return psf_method and not self.stitched
