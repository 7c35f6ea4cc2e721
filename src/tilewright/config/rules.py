"""The workflow's rules in one table: cost and resources of a job, and stage of quality control."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from snakemake_scheduler_plugin_tilewright import DeviceKind, ResourceModel, ResourceRequest
from tilewright.stages import CHUNK_PX, HALO_PX, TILE_PX

_MB = 2**20
#: One plane of a chunk in float32.
_CHUNK_MB = CHUNK_PX**2 * 4 / _MB
#: Snakemake, which starts twice in every Slurm job.
SNAKEMAKE_MB = 280
_PYTHON_MB = 60  # a bare interpreter
_MEMORY_FACTOR = 1.25  # memory asked for over memory measured (no figure)
_GPU_MB = 1000  # host memory of a process on a GPU: CuPy's libraries and the driver (not measured)
#: Fits are done by one thread; windows of 20 planes take 300 MB a thread.
_MOST_CPUS = {"calibrate": 4, "edf_plane": 4}
_GPU_MEMORY_FACTOR = 1.6  # a device's memory over a CPU's: FFTs have workspaces there (no figure)
_GPU_CPUS = 2  # a job on a GPU: one CPU drives it, one reads and writes
_START_MIN = 10  # added to every time limit (no figure)
_TIME_FACTOR = 2  # a time limit over the time measured; the next try of a job it ends gets twice it
_GPU_FASTER = 5.0  # a time limit on CPUs over that on a GPU
_START_S = 8.0  # Snakemake starts twice in every Slurm job: 5.5 s measured on idle cores


@dataclass(frozen=True)
class DataSize:
    """Size of one sample.

    Attributes
    ----------
    tiles, planes, height_px, width_px : int
        Tiles of one cycle, z-planes, and pixels of one tile.
    overlap : float
        Fraction by which tiles make a smaller mosaic; below 0 where they leave gaps.
    cycles, channels : int
        Cycles of the sample, and channels over all cycles.
    scan_tiles : int
        Of all samples that share its flat-fields, where they are several.
    """

    tiles: int
    planes: int
    height_px: int
    width_px: int
    overlap: float
    cycles: int
    channels: int
    scan_tiles: int = 0

    @property
    def tile_px(self) -> int:
        """Pixels of one plane of one tile."""
        return self.height_px * self.width_px

    @property
    def cycle_channels(self) -> float:
        """Channels of one cycle."""
        return self.channels / max(self.cycles, 1)

    @property
    def mosaic_px(self) -> float:
        """Pixels of one plane of the mosaic."""
        return self.tiles * self.tile_px * (1 - self.overlap) ** 2

    @property
    def mosaic_voxels(self) -> float:
        """Voxels of the mosaic of one channel."""
        return self.mosaic_px * self.planes


class Cost(NamedTuple):
    """Cost of one job on CPUs: memory beyond a bare interpreter's, and seconds of work.

    Both are fits to what ``benchmarks.slides`` and ``benchmarks.whole_cycle`` measured on 2 cores.
    """

    mb: float
    work_s: float


CostOf = Callable[[DataSize, int], Cost]


def _side_px(size: DataSize) -> float:
    return math.sqrt(size.mosaic_px)


def _calibrate(size: DataSize, cpus: int) -> Cost:
    tiles = max(size.tiles, size.scan_tiles)
    tile_mb = size.tile_px * 2 / _MB
    # strips of two overlaps a tile, up to those on disk; pairs that a thread correlates, planes
    # that it reads; those that show the camera's defects
    strips_mb = min(10 * tiles * tile_mb * (max(size.overlap, 0.03) + 0.02), 270)
    sample_mb = min(tiles, 16) * min(size.planes, 3) * tile_mb
    images = min(5 * tiles, max(1000, tiles))
    mb = strips_mb + 15 * tile_mb * cpus + sample_mb + 0.4 * images + 0.3 * min(tiles, 400) + 70
    read_px = size.cycle_channels * tiles * size.tile_px * min(size.planes, 5)
    return Cost(mb, read_px / 8e6)


def _stitch(size: DataSize, cpus: int) -> Cost:
    tile_mb = size.tile_px * 2 / _MB
    # three rows of a grid taken as square, tiles for defects of the camera
    tiles = 3 * math.ceil(math.sqrt(size.tiles)) + 1.5 * min(size.tiles, 16)
    return Cost(tiles * tile_mb + cpus * _CHUNK_MB * 10 + 50, size.mosaic_voxels / (15e6 * cpus))


def _deconvolve(size: DataSize, cpus: int) -> Cost:
    edge = min(TILE_PX, _side_px(size)) + 2 * (HALO_PX + 16)
    # measured: 38 bytes per voxel of the scene, a tile with halo, margin and sizes for the FFT
    mb = edge**2 * (size.planes + 16) * 38 / _MB + 100
    return Cost(mb, size.mosaic_voxels / (0.6e6 * cpus))


def _edf_plane(size: DataSize, cpus: int) -> Cost:
    window_mb = (min(1024, _side_px(size)) + 224) ** 2 * 4 / _MB
    mb = window_mb * cpus * (1.5 * size.planes + 20) + 4 * size.planes + 120
    # the filters, which are made once, then windows
    work_s = 20 + size.mosaic_px * (0.7 + 0.02 * size.planes) / (1e6 * cpus)
    return Cost(mb, work_s)


def _stitched_plane(size: DataSize, cpus: int) -> Cost:
    # a row of chunks for files in strips; two pieces of a file of at most 256 MB
    return Cost(4 * size.width_px * CHUNK_PX / _MB + 300, size.mosaic_px / 20e6)


def _register(size: DataSize, cpus: int) -> Cost:
    return Cost(_side_px(size) * 0.006 + 130 * cpus + 40, size.mosaic_px / 2.5e6)


def _resample(size: DataSize, cpus: int) -> Cost:
    # overviews of backgrounds: at most 2048² cells of 8 px
    mb = cpus * _CHUNK_MB * 16 + 60 * min(size.mosaic_px / 64, 2048**2) / _MB + 60
    return Cost(mb, size.mosaic_px * size.cycle_channels / (15e6 * cpus))


def _assemble(size: DataSize, cpus: int) -> Cost:
    # two rows of chunks, and what is being compressed
    mb = 2.6 * _side_px(size) * CHUNK_PX * 2 / _MB + 50 * cpus + 20
    return Cost(mb, size.mosaic_px * size.channels / (30e6 * cpus))


def _view_share(size: DataSize) -> float:
    """Return the size of a mosaic relative to the largest view of quality control."""
    return min(1.0, size.mosaic_px / 50e6)


def _qc_cycle(size: DataSize, cpus: int) -> Cost:
    # half of each channel's plane, and every plane of the stacks for missing chunks
    work_s = size.cycle_channels * (size.mosaic_px / 2e6 + size.mosaic_voxels / 100e6)
    return Cost(120 + 450 * _view_share(size), work_s)


def _small(size: DataSize, cpus: int) -> Cost:
    return Cost(100.0, 0.1 * size.channels)


@dataclass(frozen=True)
class Stage:
    """Quality control of a rule's results, by module ``quality.stages.<name>``.

    Attributes
    ----------
    name : str
        As in ``results/<sample>/qc/<name>_cycle1.json`` and in the table of verdicts.
    title, about : str
        Heading in the report, and the content of its pictures.
    by_channel : bool
        Whether the channels of a cycle have items each, or the cycle as a whole.
    """

    name: str
    title: str
    about: str
    by_channel: bool = True


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes
    ----------
    name : str
        As Snakemake knows it.
    cost : CostOf
        Size of the data and CPUs to :class:`Cost`.
    stages : tuple[Stage, ...]
        Quality control of its results.
    """

    name: str
    cost: CostOf = _small
    stages: tuple[Stage, ...] = ()


_IMAGE_RULES = (
    Rule("calibrate", _calibrate, (Stage(
        "illumination", "Illumination",
        "The flat-field of each channel, and how well tiles agree in overlaps it was not "
        "fitted to.",
    ), Stage(
        "tile_positions", "Tile positions",
        "Where each tile lies, which overlaps agreed, and what nothing ties down.",
        by_channel=False,
    ))),
    Rule("stitch", _stitch, (Stage(
        "stitch", "Stitching", "The mosaic in its sharpest plane.",
    ),)),
    Rule("deconvolve", _deconvolve, (Stage(
        "deconvolve", "Deconvolution", "The same place before and after.",
    ),)),
    Rule("edf_plane", _edf_plane, (Stage(
        "edf", "In-focus plane",
        "One plane made from the stack, and where in z the tissue lies.",
    ),)),
    Rule("register", _register, (Stage(
        "register", "Registration",
        "Nuclei of this cycle on those of the reference cycle, before and after.",
        by_channel=False,
    ),)),
    Rule("resample", _resample, (Stage(
        "subtract", "Background subtraction",
        "Each channel whose background was subtracted, before and after.",
    ),)),
)  # fmt: skip

_ASSEMBLE = Rule("assemble", _assemble)

#: In place of those before the registration, where images are stitched already; it only copies.
_STITCHED_PLANE = Rule("stitched_plane", _stitched_plane, (Stage(
    "stitched", "Stitched image",
    "Each channel as its file holds it. How it was stitched was not judged: flat-field, tile "
    "positions and overlaps are not in the file.",
),))  # fmt: skip

#: Stages with quality numbers, in the order of the workflow.
STAGES = {stage.name: stage for rule in (_STITCHED_PLANE, *_IMAGE_RULES) for stage in rule.stages}

#: All rules that do work, in the order of the workflow: their resources can be configured.
RULES = {
    rule.name: rule
    for rule in (
        *_IMAGE_RULES,
        _ASSEMBLE,
        _STITCHED_PLANE,
        Rule("qc_cycle", _qc_cycle),
        Rule(
            "qc_register",
            lambda size, _: Cost(130 + 370 * _view_share(size), size.mosaic_px / 4e6),
        ),
        Rule("qc_subtract"),
        Rule("report", lambda size, _: Cost(100 + 250 * _view_share(size), 0.1 * size.channels)),
        Rule("summary"),
        Rule("verdict"),
    )
}

#: Rules whose work grows with the voxels.
IMAGE_RULES = frozenset(rule.name for rule in _IMAGE_RULES)
#: Those of them that run on a GPU when the device is ``gpu``. Small transforms of strips were 1.5
#: to 10 times slower there (H100 and H200), fits are on the host.
GPU_RULES = IMAGE_RULES - {"calibrate"}


@dataclass(frozen=True)
class DataSizes:
    """Requests and times of the image rules.

    Attributes
    ----------
    size_of : Callable[[str | None], DataSize]
        Sample name to the size of its data.
    kinds_of : Mapping[str, tuple[DeviceKind, ...]]
        Rule to the device kinds that may run it, the preferred one first; others run on CPUs.
    overrides : Mapping[str, Mapping[str, Any]]
        Rule to ``{"cpus": …, "mem_mb": …, "runtime_min": …, "gpu_mem_mb": …}``; absent or None
        means computed.
    """

    size_of: Callable[[str | None], DataSize]
    kinds_of: Mapping[str, tuple[DeviceKind, ...]]
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def models(self) -> dict[str, ResourceModel]:
        """Return the model of each rule."""
        return {
            rule: ResourceModel(
                self.kinds_of.get(rule, ("cpu",)),
                partial(self.request, rule),
                partial(self.cpu_seconds, rule),
            )
            for rule in RULES
        }

    def request(self, rule: str, wildcards: Any, device: DeviceKind) -> ResourceRequest:
        """Return the request of one job on a device kind; rules not in the table count as small."""
        size = self.size_of(wildcards.get("sample"))
        overrides = self.overrides.get(rule, {})
        cpus = overrides.get("cpus") or self._cpus(rule, size)
        cost = self._cost(rule, size, cpus)
        gpus = int(device == "gpu" and rule in GPU_RULES)
        mem_mb = overrides.get("mem_mb") or math.ceil(
            _MEMORY_FACTOR * (SNAKEMAKE_MB + _PYTHON_MB + cost.mb) + gpus * _GPU_MB
        )
        work_min: float = math.ceil(_TIME_FACTOR * cost.work_s / 60)
        if gpus:
            cpus = overrides.get("cpus") or min(cpus, _GPU_CPUS)
            work_min /= _GPU_FASTER
        minutes = overrides.get("runtime_min") or math.ceil(_START_MIN + work_min)
        gpu_mb = _GPU_MEMORY_FACTOR * self._cost(rule, size, cpus).mb
        gpu_mem_mb = gpus * (overrides.get("gpu_mem_mb") or gpu_mb)
        return ResourceRequest(cpus, mem_mb, gpus, minutes, math.ceil(gpu_mem_mb))

    def cpu_seconds(self, rule: str, wildcards: Any) -> float:
        """Return about how long one job takes on CPUs, Snakemake's two starts included."""
        size = self.size_of(wildcards.get("sample"))
        return _START_S + self._cost(rule, size, self._cpus(rule, size)).work_s

    def _cpus(self, rule: str, size: DataSize) -> int:
        """Return one CPU per 200 Mvoxel of work, at most 8 or 4: below that starting costs more."""
        voxels = size.mosaic_voxels if rule in IMAGE_RULES else 0
        if rule == "assemble":
            voxels = size.mosaic_px * size.channels
        return max(1, min(_MOST_CPUS.get(rule, 8), math.ceil(voxels / 200e6)))

    def _cost(self, rule: str, size: DataSize, cpus: int) -> Cost:
        return RULES.get(rule, Rule(rule)).cost(size, cpus)
