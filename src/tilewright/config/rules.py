"""The workflow's rules in one table: what a job of each costs, and how its results are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_MB = 2**20


@dataclass(frozen=True)
class DataSize:
    """How much one sample is.

    Attributes
    ----------
    tiles, planes, height_px, width_px : int
        Tiles of one cycle, z-planes, and pixels of one tile.
    overlap : float
        Fraction of a tile that its neighbour sees too.
    cycles, channels : int
        Cycles of the sample, and channels over all cycles.
    """

    tiles: int
    planes: int
    height_px: int
    width_px: int
    overlap: float
    cycles: int
    channels: int

    @property
    def tile_px(self) -> int:
        """Pixels of one plane of one tile."""
        return self.height_px * self.width_px

    @property
    def mosaic_px(self) -> float:
        """Pixels of one plane of the mosaic."""
        return self.tiles * self.tile_px * (1 - self.overlap) ** 2

    @property
    def mosaic_voxels(self) -> float:
        """Voxels of the mosaic of one channel."""
        return self.mosaic_px * self.planes


@dataclass(frozen=True)
class BlockSizes:
    """Chunk edge of the stores; tile edge and halo of the deconvolution; all in px.

    ``direct_plane``: the in-focus plane is estimated from the raw stack, in tiles of its own.
    """

    chunk_px: int = 1024
    tile_px: int = 1024
    halo_px: int = 64
    direct_plane: bool = False

    @property
    def chunk_mb(self) -> float:
        """Memory of one plane of a chunk in float32."""
        return self.chunk_px**2 * 4 / _MB


class Cost(NamedTuple):
    """What one job takes on CPUs: memory beyond the interpreter's, and seconds of work.

    Seconds are those measured on 2 cores.
    """

    mb: float
    work_s: float


CostOf = Callable[[DataSize, BlockSizes, int], Cost]


def _illumination(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    mb = size.tiles * 256**2 * 4 * 6 / _MB + size.tile_px * 24 / _MB + 100
    # the tiles' places once, then channel after channel
    channels = 1 + size.channels / max(size.cycles, 1)
    return Cost(mb, channels * size.tiles * size.tile_px * size.planes / 40e6)


def _tile_positions(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    strips = 4 * size.tiles * size.tile_px * max(size.overlap, 0.05)
    mb = strips * 4 * 3 / _MB + size.tile_px * 24 / _MB + 100
    return Cost(mb, size.tiles * size.tile_px * size.planes / 20e6)


def _stitch(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    row_px = math.ceil(math.sqrt(size.tiles)) * size.tile_px  # the grid taken as square
    mb = row_px * 3 * 2 / _MB + cpus * blocks.chunk_mb * 12 + 100
    return Cost(mb, size.mosaic_voxels / (15e6 * cpus))


def _deconvolve(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    edge = min(blocks.tile_px, math.sqrt(size.mosaic_px)) + 2 * (blocks.halo_px + 16)
    # 47 bytes per padded voxel measured; two tiles are in flight while reading
    mb = edge**2 * (size.planes + 16) * 60 / _MB + 200
    return Cost(mb, size.mosaic_voxels / (0.6e6 * cpus))


def _edf_plane(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    mb = cpus * blocks.chunk_mb * (6 * size.planes + 12) + 100
    if blocks.direct_plane:
        window_mb = (min(1024, math.sqrt(size.mosaic_px)) + 176) ** 2 * 4 / _MB
        # 14 filters for all; 536 and 1097 MB measured for 20 planes on 1 and 3 threads
        mb = window_mb * (3.5 * size.planes + cpus * (1.5 * size.planes + 28)) + 100
    return Cost(mb, size.mosaic_voxels / ((6.5e6 if blocks.direct_plane else 15e6) * cpus))


def _stitched_plane(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    # a row of chunks for files in strips; two pieces of a file of at most 256 MB
    return Cost(4 * size.width_px * blocks.chunk_px / _MB + 600, size.mosaic_px / 20e6)


def _register(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    mb = math.sqrt(size.mosaic_px) * blocks.chunk_px * 4 * 8 / _MB + 600
    return Cost(mb, size.mosaic_px / 1e6)


def _resample(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    mb = cpus * blocks.chunk_mb * 16 + 300
    # what a background is judged by: at most 2048² cells of 8 px
    mb += 60 * min(size.mosaic_px / 64, 2048**2) / _MB
    return Cost(mb, size.mosaic_px * size.channels / max(size.cycles, 1) / (15e6 * cpus))


def _assemble(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    # two rows of chunks, and what is being compressed
    mb = 2 * math.sqrt(size.mosaic_px) * blocks.chunk_px * 2 / _MB + 200
    return Cost(mb, size.mosaic_px * size.channels / (15e6 * cpus))


def _judging(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    # one plane of each channel is read whole, of the others some blocks
    return Cost(800.0, size.mosaic_px * size.channels / max(size.cycles, 1) / 10e6)


def _judging_stacks(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    # and every plane of the stitched stacks for what was never written
    voxels = size.mosaic_voxels * size.channels / max(size.cycles, 1)
    return Cost(800.0, 5 * _judging(size, blocks, cpus).work_s + voxels / 100e6)


def _telling(size: DataSize, blocks: BlockSizes, cpus: int) -> Cost:
    return Cost(800.0, 0.1 * size.channels)


@dataclass(frozen=True)
class Stage:
    """What is judged of a rule's results, by module ``report.qc_<name>``.

    Attributes
    ----------
    name : str
        As in ``results/<sample>/qc/<name>_cycle1.json`` and in the table of verdicts.
    title, about : str
        Heading in the report, and what its pictures show.
    by_channel : bool
        Whether the channels of a cycle are judged one by one, or the cycle at once.
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
    cost : callable
        Size of the data, sizes of blocks and CPUs to :class:`Cost`.
    stage : Stage or None
        What is judged of its results.
    """

    name: str
    cost: CostOf = _judging
    stage: Stage | None = None


_IMAGE_RULES = (
    Rule("illumination", _illumination, Stage(
        "illumination", "Illumination",
        "The flat-field of each channel, and how well tiles agree in overlaps it was not "
        "fitted to.",
    )),
    Rule("tile_positions", _tile_positions, Stage(
        "tile_positions", "Tile positions",
        "Where each tile lies, which overlaps agreed, and what nothing ties down.",
        by_channel=False,
    )),
    Rule("stitch", _stitch, Stage(
        "stitch", "Stitching", "The mosaic in its sharpest plane.",
    )),
    Rule("deconvolve", _deconvolve, Stage(
        "deconvolve", "Deconvolution", "The same place before and after.",
    )),
    Rule("edf_plane", _edf_plane, Stage(
        "edf", "In-focus plane",
        "One plane made from the stack, and where in z the tissue lies.",
    )),
    Rule("register", _register, Stage(
        "register", "Registration",
        "Nuclei of this cycle on those of the reference cycle, before and after.",
        by_channel=False,
    )),
    Rule("resample", _resample),
)  # fmt: skip

_ASSEMBLE = Rule("assemble", _assemble, Stage(
    "image", "Final image",
    "Each channel of the final image beside what was stitched, and whether its files agree.",
))  # fmt: skip

#: In place of those before the registration, where images are stitched already; it only copies.
_STITCHED_PLANE = Rule("stitched_plane", _stitched_plane, Stage(
    "stitched", "Stitched image",
    "Each channel as its file holds it. How it was stitched was not judged: flat-field, tile "
    "positions and overlaps are not in the file.",
))  # fmt: skip

#: Stages with quality numbers, in the order of the workflow.
STAGES = {
    rule.stage.name: rule.stage
    for rule in (_STITCHED_PLANE, *_IMAGE_RULES, _ASSEMBLE)
    if rule.stage
}

#: Quality rules, and the stages that each judges in one cycle: those of a cycle's own images at
#: once, because a job takes as long to start as one stage to judge.
QUALITY_RULES = {
    "qc_cycle": ("illumination", "tile_positions", "stitch", "deconvolve", "edf", "stitched"),
    "qc_register": ("register",),
    "qc_image": ("image",),
}

#: All rules that do work, in the order of the workflow: their resources can be configured.
RULES = {
    rule.name: rule
    for rule in (
        *_IMAGE_RULES,
        _ASSEMBLE,
        _STITCHED_PLANE,
        Rule("qc_cycle", _judging_stacks),
        *(Rule(name) for name in QUALITY_RULES if name != "qc_cycle"),
        *(Rule(name, _telling) for name in ("report", "summary", "verdict")),
    )
}

#: Rules whose kernels run on a GPU when the device is ``gpu``.
GPU_RULES = frozenset(rule.name for rule in _IMAGE_RULES)
