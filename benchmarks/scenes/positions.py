"""Grids of tiles with known truth for the benchmark of tile positions: tissue, noise and dirt."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.scenes.array_tiles import ArrayTiles

Floats = NDArray[np.float64]
Image = NDArray[np.float32]

#: Counts: camera offset, read noise, glass in electrons, gain.
OFFSET, READ_NOISE, GLASS_E, GAIN = 100.0, 2.0, 10.0, 2.0

#: Grids whose tiles share no signal, so that every accepted overlap is a false one.
NULL_KINDS = (
    "noise",
    "dark",
    "smooth background",
    "camera pattern",
    "specks on the camera",
    "tissue on one side",
    "different tissue",
    "few different cells",
    "repeated structure",
    "saturated",
)
#: Grids whose overlaps hold little: dim tissue, single cells, specks on the glass.
WEAK_KINDS = (
    "20 electrons",
    "40 electrons",
    "60 electrons",
    "1 cell",
    "2 cells",
    "4 cells",
    "glass",
)


@dataclass(frozen=True)
class Grid:
    """Tiles of a grid, their true positions (n, 2), and the fields that the camera has."""

    tiles: ArrayTiles
    true_px: Floats
    flat: Image
    dark: Image


def nuclei(rng: np.random.Generator, shape: tuple[int, int], number: int) -> Image:
    """Return a canvas (y, x) of nuclei, 1 at their plateau: turned ellipses with texture."""
    canvas = np.zeros(shape, np.float32)
    y, x = np.mgrid[-16:17, -16:17]
    stamps = []
    for _ in range(min(number, 48)):
        turn, a, b = rng.uniform(0, np.pi), rng.uniform(5, 9), rng.uniform(4, 7)
        v, u = y * np.cos(turn) + x * np.sin(turn), x * np.cos(turn) - y * np.sin(turn)
        inside = 1 / (1 + np.exp(3.0 * (np.hypot(v / a, u / b) - 1) * np.sqrt(a * b) / 2))
        grain = ndimage.gaussian_filter(rng.standard_normal(y.shape), 2.0)
        stamps.append((inside * np.clip(1 + 0.25 * grain / grain.std(), 0.3, None)).astype("f4"))
    places = rng.integers(16, np.array(shape) - 17, (number, 2))
    kind = rng.integers(0, max(len(stamps), 1), number)
    level = rng.uniform(0.5, 1.3, number).astype(np.float32)
    for (py, px), k, gain in zip(places.tolist(), kind.tolist(), level, strict=True):
        canvas[py - 16 : py + 17, px - 16 : px + 17] += gain * stamps[k]
    return canvas


def field(rng: np.random.Generator, shape: tuple[int, int], width: float) -> Image:
    """Return smooth noise of mean 0 and standard deviation 1."""
    small = tuple(int(np.ceil(n / 8)) + 2 for n in shape)
    rough = ndimage.gaussian_filter(rng.standard_normal(small), width / 8, mode="reflect")
    smooth = ndimage.zoom(rough, 8, order=1)[: shape[0], : shape[1]]
    return np.asarray((smooth - smooth.mean()) / smooth.std(), np.float32)


def cut(canvas: Image, at: Floats, size: int) -> Image:
    """Return the tile whose first pixel lies at ``at`` (y, x) of a canvas."""
    low = np.floor(at).astype(int) - 3
    part = canvas[low[0] : low[0] + size + 7, low[1] : low[1] + size + 7]
    moved = ndimage.shift(part, -(at - low), order=3, mode="nearest")
    return np.asarray(np.maximum(moved[:size, :size], 0.0), np.float32)


def stage(
    rng: np.random.Generator, rows: int, cols: int, step: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Return row, col, nominal and true positions: skew, scale, backlash and jitter."""
    row, col = (axis.ravel() for axis in np.mgrid[:rows, :cols])
    nominal = np.stack([row, col], axis=1) * step
    angle = rng.uniform(-0.006, 0.006)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    true = nominal @ turn * rng.uniform(0.998, 1.002)
    true = true + rng.normal(0, rng.uniform(0.5, 2.0), nominal.shape)
    true[:, 1] += rng.uniform(-3, 3) * (row % 2)
    return row, col, nominal, true


def expose(rng: np.random.Generator, light_e: Image) -> NDArray[np.uint16]:
    """Return counts of a camera that sees ``light_e`` electrons."""
    counts = rng.poisson(light_e) * GAIN + rng.normal(0, READ_NOISE * GAIN, light_e.shape)
    return np.clip(np.rint(counts + OFFSET), 0, 65535).astype(np.uint16)


def specks(rng: np.random.Generator, shape: tuple[int, int], number: int) -> Image:
    """Return transmission (y, x) behind dirt: blurred discs and rings that take 5 to 40 %."""
    through = np.ones((shape[0] + 40, shape[1] + 40), np.float32)
    y, x = np.ogrid[-19.5:20.5, -19.5:20.5]
    places = rng.integers(0, shape, (number, 2))
    for py, px in places.tolist():
        radius, edge = rng.uniform(1, 7), rng.uniform(0.7, 2.0)
        distance = np.hypot(y, x)
        disc = 1 / (1 + np.exp(np.clip((distance - radius) / edge, -30, 30)))
        if rng.random() < 0.3:
            disc *= distance / radius
        part = through[py : py + 40, px : px + 40]
        part *= 1 - (rng.uniform(0.05, 0.4) * disc).astype(np.float32)
    return through[20:-20, 20:-20]


def null_grid(kind: str, seed: int, rows: int, cols: int, overlap: float, size: int) -> Grid:
    """Return a grid of one of ``NULL_KINDS``."""
    rng = np.random.default_rng([seed, NULL_KINDS.index(kind)])
    row, col, nominal, true = stage(rng, rows, cols, size * (1 - overlap))
    count, shape = rows * cols, (size, size)
    flat, dark = np.ones(shape, np.float32), np.full(shape, OFFSET, np.float32)
    pattern = np.zeros(shape, np.float32)
    through = np.ones(shape, np.float32)
    if kind == "camera pattern":
        pattern += rng.normal(0, rng.uniform(0.3, 3), size)[None, :].astype(np.float32)
        pattern += rng.normal(0, rng.uniform(0.3, 3), shape).astype(np.float32)
    if kind == "specks on the camera":
        through = specks(rng, shape, int(rng.integers(5, 60)))
    level = 10 ** rng.uniform(1.3, 3.2)
    density = 1 / rng.uniform(250, 1500)
    stack = np.empty((count, 1, *shape), np.uint16)
    for tile in range(count):
        light = np.zeros(shape, np.float32)
        if kind in ("smooth background", "specks on the camera", "saturated"):
            light += level * np.exp(0.5 * field(rng, shape, 60.0))
        if kind == "different tissue" or (kind == "tissue on one side" and (row + col)[tile] % 2):
            light += level * nuclei(rng, shape, max(1, round(density * size**2)))
        if kind == "few different cells":
            light += level * nuclei(rng, shape, int(rng.integers(8, 80) * size**2 / 256**2))
        if kind == "repeated structure":
            period = 6 + 18 * np.random.default_rng(seed).random()
            y, x = np.mgrid[:size, :size] + rng.uniform(0, 100, 2)[:, None, None]
            wave = np.sin(2 * np.pi * y / period) * np.sin(2 * np.pi * x / period)
            light += level * (1 + wave).astype(np.float32)
        if kind == "saturated":
            light += 60000.0 * (field(rng, shape, 25.0) > 0.3)
        glass = 0.0 if kind == "dark" else GLASS_E
        counts = expose(rng, (light + glass) * through) + np.rint(pattern)
        stack[tile, 0] = np.clip(counts, 0, 65535)
    return Grid(ArrayTiles(stack, row, col, nominal), true, flat, dark)


def weak_grid(kind: str, seed: int, rows: int, cols: int, overlap: float, size: int) -> Grid:
    """Return a grid of one of ``WEAK_KINDS``: every overlap holds its little signal."""
    rng = np.random.default_rng([seed, 100 + WEAK_KINDS.index(kind)])
    row, col, nominal, true = stage(rng, rows, cols, size * (1 - overlap))
    margin = 40
    true = true - true.min(axis=0) + margin
    shape = tuple(np.ceil(true.max(axis=0)).astype(int) + size + margin)
    word = kind.split()[0]
    canvas = np.zeros(shape, np.float32)
    if word in ("20", "40", "60"):
        canvas += float(word) * nuclei(rng, shape, round(canvas.size / 600))
    elif word in ("1", "2", "4"):
        level = rng.uniform(60, 300)
        for at in _overlap_places(rng, nominal, true, rows, cols, size, overlap, int(word)):
            one = nuclei(rng, (35, 35), 1) * level
            y, x = (int(v) - 17 for v in at)
            canvas[y : y + 35, x : x + 35] += one
    light = np.asarray(canvas + GLASS_E, np.float32)
    if kind == "glass":
        light = np.asarray(200 * np.exp(0.3 * field(rng, shape, 80.0)), np.float32)
        light *= specks(rng, shape, round(canvas.size / 4000))
    stack = np.stack([expose(rng, cut(light, at, size))[None] for at in true])
    flat, dark = np.ones((size, size), np.float32), np.full((size, size), OFFSET, np.float32)
    return Grid(ArrayTiles(stack, row, col, nominal), true, flat, dark)


def _overlap_places(
    rng: np.random.Generator,
    nominal: Floats,
    true: Floats,
    rows: int,
    cols: int,
    size: int,
    overlap: float,
    each: int,
) -> Floats:
    """Return centres (m, 2) of cells: ``each`` in every overlap of two tiles."""
    places = []
    for tile in range(rows * cols):
        for step, axis in ((1, 1), (cols, 0)):
            if (axis == 1 and (tile + 1) % cols == 0) or tile + step >= rows * cols:
                continue
            low, high = true[tile + step], true[tile] + size
            middle = 0.5 * (low[axis] + high[axis])
            for _ in range(each):
                at = np.empty(2)
                at[axis] = middle + rng.uniform(-0.25, 0.25) * overlap * size
                other = 1 - axis
                at[other] = true[tile][other] + size * rng.uniform(0.12, 0.88)
                places.append(at)
    return np.array(places)


def mosaic(
    rng: np.random.Generator,
    rows: int,
    cols: int,
    overlap: float,
    empty: float,
    peak: float,
    size: int,
) -> Grid:
    """Return tiles of ``size`` px: nuclei of ``peak`` electrons, a part of it ``empty``."""
    row, col, nominal, true = stage(rng, rows, cols, size * (1 - overlap))
    true = true - true.min(axis=0) + 40
    shape = tuple(np.ceil(true.max(axis=0)).astype(int) + size + 40)
    where = field(rng, (shape[0], shape[1]), rng.uniform(0.3, 1.0) * size)
    mask = 1 / (1 + np.exp(-np.clip((where - np.quantile(where, empty)) / 0.05, -30, 30)))
    canvas = nuclei(rng, (shape[0], shape[1]), round(shape[0] * shape[1] / rng.uniform(200, 600)))
    light = (peak * canvas * mask + 25).astype(np.float32)
    hot = rng.integers(0, size, (2, 20))
    stack = np.stack([expose(rng, cut(light, at, size))[None] for at in true])
    stack[:, 0, hot[0], hot[1]] += rng.integers(50, 400, 20).astype(np.uint16)
    flat, dark = np.ones((size, size), np.float32), np.full((size, size), OFFSET, np.float32)
    return Grid(ArrayTiles(stack, row, col, nominal), true, flat, dark)
