"""A synthetic tissue section: cells of several types, vessels and fibres in a wavy sheet."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree
from scipy.special import expit

Image = NDArray[np.float32]

CELL_TYPES = ("T", "B", "epithelial", "macrophage", "stromal", "endothelial")
#: Half axes of a nucleus in µm and radius of the whole cell, by cell type.
_SIZES_UM = {
    "T": (2.7, 2.4, 4.4),
    "B": (2.8, 2.5, 4.2),
    "epithelial": (3.7, 3.0, 6.0),
    "macrophage": (3.4, 2.6, 6.5),
    "stromal": (4.6, 1.4, 5.2),
    "endothelial": (4.4, 1.2, 5.0),
}
_PITCH_UM = 7.6  # distance between neighbouring cells in dense lymphoid tissue


@dataclass(frozen=True)
class Stain:
    """What a marker stains.

    Attributes
    ----------
    name : str
        Name in ``channelnames.txt``.
    place : str
        Compartment: nucleus, membrane, cytoplasm, vessel or fibre.
    types : tuple[str, ...]
        Cell types that may express it.
    share : float
        Share of the cells of these types that do: the sparsity.
    """

    name: str
    place: str
    types: tuple[str, ...] = ()
    share: float = 1.0


#: Order in which markers fill the channels after the nuclear stain of each cycle.
MARKERS = (
    Stain("CD3", "membrane", ("T",), 0.9),
    Stain("PanCK", "cytoplasm", ("epithelial",), 0.97),
    Stain("CD20", "membrane", ("B",), 0.95),
    Stain("FoxP3", "nucleus", ("T",), 0.06),
    Stain("CD31", "vessel"),
    Stain("CD68", "cytoplasm", ("macrophage",), 0.9),
    Stain("Vimentin", "fibre"),
    Stain("CD8", "membrane", ("T",), 0.3),
    Stain("Ki67", "nucleus", ("B", "epithelial"), 0.3),
    Stain("CD4", "membrane", ("T", "macrophage"), 0.55),
    Stain("ECadherin", "membrane", ("epithelial",), 0.95),
    Stain("SMA", "vessel"),
)


@dataclass(frozen=True)
class Tissue:
    """Compartments of one section on the reference canvas; all images (y, x).

    Attributes
    ----------
    mask : Image
        1 in tissue, 0 on glass, soft edge.
    depth_um : Image
        z of what lies in each pixel: of the middle of the sheet, and cells scatter about it.
    nucleus, cytoplasm, membrane, vessel, fibre : Image
        Stain of each compartment if every cell carried it.
    label : NDArray[np.int32]
        Index of the cell of each pixel, into ``cell_type`` and ``level``.
    cell_type : NDArray[np.int64]
        Index into ``CELL_TYPES``.
    level : NDArray[np.float32]
        Expression level of each cell, log-normal around 1.
    """

    mask: Image
    depth_um: Image
    nucleus: Image
    cytoplasm: Image
    membrane: Image
    vessel: Image
    fibre: Image
    label: NDArray[np.int32]
    cell_type: NDArray[np.int64]
    level: NDArray[np.float32]


def smooth_noise(rng: np.random.Generator, shape: tuple[int, int], scale_px: float) -> Image:
    """Return a smooth random field of standard deviation 1.

    ``scale_px`` is the σ of its Gaussian correlation; wide fields are drawn on a coarse
    grid, since filtering a canvas with σ 200 px would take longer than all else.
    """
    step = max(1, int(scale_px / 4))
    coarse = tuple(n // step + 5 for n in shape)
    field = ndimage.gaussian_filter(rng.standard_normal(coarse), scale_px / step, mode="wrap")
    field = (field - field.mean()) / field.std()
    if step > 1:
        axes = [np.arange(n, dtype=np.float32) / step + 1 for n in shape]
        rows = ndimage.map_coordinates(
            field.astype(np.float32), np.meshgrid(*axes, indexing="ij", sparse=False), order=3
        )
        return np.asarray(rows, np.float32)
    return np.asarray(field[: shape[0], : shape[1]], dtype=np.float32)


def _lognormal(rng: np.random.Generator, sigma: float, size: int | tuple[int, int]) -> Image:
    return np.asarray(rng.lognormal(0, sigma, size), np.float32)


def _bell(x: Image) -> Image:
    return np.asarray(np.exp(-0.5 * x * x), np.float32)


def _level_set_distance(field: Image) -> Image:
    """Approximate distance in px to the zero line of a smooth field."""
    gy, gx = np.gradient(field)
    slope = np.sqrt(gy * gy + gx * gx)
    return np.asarray(np.abs(field) / np.maximum(slope, 1e-4), dtype=np.float32)


def tissue_of_canvas(
    rng: np.random.Generator,
    shape: tuple[int, int],
    tissue_share: float,
    empty: Sequence[tuple[int, int, int, int]],
) -> Image:
    """Return the soft tissue mask; boxes (y0, x0, y1, x1) in ``empty`` hold none."""
    extent = float(max(shape))
    field = smooth_noise(rng, shape, 0.16 * extent)
    y2, x2 = (np.square(np.linspace(-1, 1, n, dtype=np.float32)) for n in shape)
    field = field - np.float32(1.1) * np.add.outer(y2 * y2, x2 * x2)
    field += 0.04 * smooth_noise(rng, shape, 12.0)
    threshold = np.quantile(field[::8, ::8], 1 - tissue_share)
    mask = expit((field - threshold) * np.float32(60))
    ragged = 14 * smooth_noise(rng, shape, 30.0) + 3 * smooth_noise(rng, shape, 6.0)
    rows, cols = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    for y0, x0, y1, x1 in empty:
        above_below = np.maximum(np.maximum(y0 - rows, rows - y1), 0)
        left_right = np.maximum(np.maximum(x0 - cols, cols - x1), 0)
        outside = np.sqrt(above_below**2 + left_right**2).astype(np.float32)
        # The ragged edge never reaches into the box: at least 4 px of glass around it.
        mask = mask * expit(outside - np.maximum(30 + ragged, 10))
        mask[max(y0, 0) : y1, max(x0, 0) : x1] = 0
    return np.asarray(mask, dtype=np.float32)


def _seeds(
    rng: np.random.Generator, shape: tuple[int, int], pitch_px: float
) -> NDArray[np.float64]:
    """Return jittered hexagonal points (n, 2) covering the canvas."""
    rows = np.arange(-1, shape[0] / (pitch_px * 0.866) + 1)
    cols = np.arange(-1, shape[1] / pitch_px + 1)
    r, c = np.meshgrid(rows, cols, indexing="ij")
    points = np.stack([r * 0.866, c + 0.5 * (r % 2)], -1).reshape(-1, 2) * pitch_px
    return np.asarray(points + rng.uniform(-0.36, 0.36, points.shape) * pitch_px)


def _cell_types(
    rng: np.random.Generator,
    at: tuple[NDArray[np.int64], NDArray[np.int64]],
    shape: tuple[int, int],
    vessel_px: Image,
) -> NDArray[np.int64]:
    """Choose a type per cell from where it lies: nests, follicles, vessel walls, between."""
    scale = 0.055 * max(shape)
    nests = smooth_noise(rng, shape, scale)[at]
    follicles = smooth_noise(rng, shape, scale)[at]
    mixed = rng.choice(len(CELL_TYPES), size=len(at[0]), p=(0.66, 0.07, 0.0, 0.09, 0.18, 0.0))
    types = np.where(follicles > 0.75, np.where(rng.random(len(mixed)) < 0.9, 1, mixed), mixed)
    types = np.where(nests > 0.8, 2, types)
    return np.asarray(np.where(vessel_px[at] < 14, 5, types), dtype=np.int64)


def _cells(
    points: NDArray[np.float64], types: NDArray[np.int64], shape: tuple[int, int], pixel_um: float
) -> tuple[NDArray[np.int32], Image]:
    """Return the nearest seed of each pixel, and its distance in px inside its cell's wall."""
    pixels = np.indices(shape, dtype=np.float32).reshape(2, -1).T
    distance, index = map(np.asarray, cKDTree(points).query(pixels, k=2, workers=2))
    near, second = (distance[:, k].reshape(shape).astype(np.float32) for k in (0, 1))
    label = index[:, 0].reshape(shape).astype(np.int32)
    radius = np.array([_SIZES_UM[name][2] for name in CELL_TYPES], np.float32)[types] / pixel_um
    return label, np.minimum((second - near) / 2, radius[label] - near)


def make_tissue(
    rng: np.random.Generator,
    shape: tuple[int, int],
    pixel_um: float,
    *,
    tissue_share: float,
    relief_um: float,
    scatter_um: float,
    empty: Sequence[tuple[int, int, int, int]] = (),
) -> Tissue:
    """Draw a section of ``shape`` (y, x).

    Cells are the Voronoi cells of jittered seeds, cut at their type's radius, so packed
    cells share walls and loose ones are round; nuclei are irregular ellipses with chromatin
    texture. ``relief_um`` is the half range of the sheet's height, ``scatter_um`` of the
    cells around it.
    """
    mask = tissue_of_canvas(rng, shape, tissue_share, empty)
    height = np.clip(smooth_noise(rng, shape, 0.2 * max(shape)) / 2, -1, 1) * relief_um
    vessel_px = _level_set_distance(smooth_noise(rng, shape, 0.07 * max(shape)))
    vessel_px[smooth_noise(rng, shape, 0.06 * max(shape)) < 0.3] = 1e3

    points = _seeds(rng, shape, _PITCH_UM / pixel_um)
    at = tuple(np.clip(points[:, k].astype(np.int64), 0, shape[k] - 1) for k in (0, 1))
    where = (at[0], at[1])
    types = _cell_types(rng, where, shape, vessel_px)
    keep = (mask[where] > 0.4) & (vessel_px[where] > 7)
    keep &= rng.random(len(points)) > np.where(types == 4, 0.45, 0.04)
    points, types = points[keep], types[keep]

    label, wall = _cells(points, types, shape, pixel_um)
    wall += 0.6 * smooth_noise(rng, shape, 3.0)
    nucleus = _nuclei(rng, points, types, label, wall, pixel_um) * mask
    inside = expit(wall * np.float32(2.5)) * mask
    grain = np.clip(1 + 0.3 * smooth_noise(rng, shape, 1.6), 0.1, None)
    width = np.float32(0.35 / pixel_um)
    scatter = rng.uniform(-scatter_um, scatter_um, len(points)).astype(np.float32)
    return Tissue(
        mask=mask,
        depth_um=np.asarray(height + np.where(wall > 0, scatter[label], 0), np.float32),
        nucleus=nucleus,
        cytoplasm=np.asarray(inside * (1 - 0.75 * np.clip(nucleus, 0, 1)) * grain, np.float32),
        membrane=_bell((wall - width) / width) * inside,
        vessel=_bell((vessel_px - 8) / np.float32(1.3)) * mask * grain,
        fibre=_fibres(rng, shape, mask),
        label=label,
        cell_type=types,
        level=_lognormal(rng, 0.35, len(points)),
    )


def _nuclei(
    rng: np.random.Generator,
    points: NDArray[np.float64],
    types: NDArray[np.int64],
    label: NDArray[np.int32],
    wall: Image,
    pixel_um: float,
) -> Image:
    """Draw one irregular, textured nucleus per cell."""
    n = len(points)
    axes = np.array([_SIZES_UM[name][:2] for name in CELL_TYPES], np.float32)[types] / pixel_um
    axes *= _lognormal(rng, 0.09, (n, 2))
    angle = rng.uniform(0, np.pi, n)
    dent = rng.uniform(0, 0.13, n).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, n)
    level = _lognormal(rng, 0.22, n)
    centre = points.astype(np.float32)
    dy = np.arange(label.shape[0], dtype=np.float32)[:, None] - centre[:, 0][label]
    dx = np.arange(label.shape[1], dtype=np.float32)[None, :] - centre[:, 1][label]
    cos, sin = (f(angle).astype(np.float32)[label] for f in (np.cos, np.sin))
    u = (cos * dy + sin * dx) / axes[:, 0][label]
    v = (cos * dx - sin * dy) / axes[:, 1][label]
    rho = np.sqrt(u * u + v * v)
    turn = 3 * np.arctan2(v, u) + phase.astype(np.float32)[label]
    rho /= 1 + dent[label] * np.cos(turn)
    edge = expit((1 - rho) * axes[:, 1][label] * np.float32(1.6))
    chromatin = 1 + 0.28 * smooth_noise(rng, label.shape, 1.5)
    chromatin += 0.22 * smooth_noise(rng, label.shape, 3.0)
    body = edge * np.clip(chromatin, 0.15, None) * level[label]
    return np.asarray(body * expit(wall * np.float32(2)), np.float32)


def _fibres(rng: np.random.Generator, shape: tuple[int, int], mask: Image) -> Image:
    """Draw a reticular network of thin fibres, dense in some places and absent in others."""
    network = np.zeros(shape, np.float32)
    for scale_px in (9.0, 16.0):
        line = _level_set_distance(smooth_noise(rng, shape, scale_px))
        network += _bell(line / np.float32(1.1))
    return np.asarray(network * mask * expit(3 * smooth_noise(rng, shape, 60.0)), np.float32)


def stain(rng: np.random.Generator, tissue: Tissue, marker: Stain | None) -> Image:
    """Return the stain of a marker (``None``: nuclear dye), 1 in a typical positive cell.

    Every channel also holds a weak autofluorescence of the whole tissue.
    """
    haze = 0.03 * tissue.mask + 0.02 * tissue.cytoplasm
    if marker is None:
        return np.asarray(tissue.nucleus * 0.8 + haze, np.float32)
    if marker.place in ("vessel", "fibre"):
        return np.asarray(getattr(tissue, marker.place) * 0.7 + haze, np.float32)
    kinds = [CELL_TYPES.index(name) for name in marker.types]
    positive = np.isin(tissue.cell_type, kinds) & (rng.random(len(tissue.level)) < marker.share)
    spread = _lognormal(rng, 0.25, len(tissue.level))
    level = np.where(positive, tissue.level * spread, 0.015).astype(np.float32)
    body = getattr(tissue, marker.place) * level[tissue.label]
    if marker.place == "membrane":  # some of the protein is always inside the cell
        body = body + 0.12 * tissue.cytoplasm * level[tissue.label]
    return np.asarray(0.7 * body + haze, np.float32)


def autofluorescence(rng: np.random.Generator, tissue: Tissue) -> Image:
    """Return the autofluorescence of a tissue in one colour, about 1 at its brightest.

    Fibres, cytoplasm that differs from cell to cell, granules in some cells, and a little
    everywhere.
    """
    level = _lognormal(rng, 0.4, len(tissue.level))
    level[rng.random(len(level)) < 0.08] *= 3
    grain = np.maximum(smooth_noise(rng, tissue.mask.shape, 1.5) - np.float32(1.5), 0)
    cells = tissue.cytoplasm * level[tissue.label]
    return np.asarray(
        0.15 * tissue.mask + 0.5 * tissue.fibre + 0.25 * cells * (1 + 2 * grain), np.float32
    )
