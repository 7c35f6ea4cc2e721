"""Tiles cut from one textured specimen, by a stage whose axes are those of the camera or others."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float64]

TILE_PX = 200
OVERLAP = 0.15
#: By which tiles miss their places at most, per axis.
JITTER_PX = 1.5


def grid_px(rows: int, cols: int, overlap: float = OVERLAP) -> Floats:
    """Return the stage positions (n, 2) of a grid, row by row."""
    places = np.indices((rows, cols), dtype=np.float64).reshape(2, -1).T
    return np.asarray(places * (TILE_PX * (1.0 - overlap)))


def turn(degrees: float) -> Floats:
    """Return the matrix that turns (y, x)."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def image_places(nominal_px: Floats, matrix: Floats) -> Floats:
    """Return where tiles lie in the image: their positions through a matrix, and jitter."""
    rng = np.random.default_rng(0)
    return nominal_px @ matrix.T + rng.uniform(-JITTER_PX, JITTER_PX, nominal_px.shape)


def sparse_tiles(places_px: Floats, seed: int) -> NDArray[np.float32]:
    """Return tiles at whole places, with a few bright grains in patches on a tenth of them."""
    rng = np.random.default_rng([seed, 3])
    at = np.rint(places_px - places_px.min(axis=0)).astype(np.int64)
    high, wide = (int(n) + TILE_PX for n in at.max(axis=0))
    grain, patch = (ndimage.gaussian_filter(rng.normal(size=(high, wide)), n) for n in (3.0, 24.0))
    tissue = ndimage.gaussian_filter((patch > np.quantile(patch, 0.9)).astype(np.float64), 2.0)
    light = 1000.0 + 100.0 * np.exp(grain / grain.std()) * tissue
    tiles = np.stack([light[y : y + TILE_PX, x : x + TILE_PX] for y, x in at])
    return np.asarray(tiles + rng.normal(0, 10.0, tiles.shape), np.float32)


def cut_tiles(
    places_px: Floats, blank: tuple[int, ...] = (), seed: int = 0, grain_px: float = 2.0
) -> NDArray[np.float32]:
    """Return the tiles (n, y, x) whose first pixels lie at places; blank ones hold noise alone."""
    rng = np.random.default_rng([seed, 1])
    at = places_px - places_px.min(axis=0) + 8.0
    high, wide = (int(n) + TILE_PX + 16 for n in at.max(axis=0))
    texture = ndimage.gaussian_filter(rng.normal(size=(high, wide)), grain_px)
    spline = ndimage.spline_filter(texture / texture.std())
    pixels = np.indices((TILE_PX, TILE_PX), dtype=np.float64)
    tiles = np.empty((len(at), TILE_PX, TILE_PX), np.float32)
    for k, place in enumerate(at):
        light = 100.0 * ndimage.map_coordinates(
            spline, pixels + place[:, None, None], prefilter=False
        )
        tiles[k] = 1000.0 + (0.0 if k in blank else 1.0) * light
    return np.asarray(tiles + rng.normal(0, 10.0, tiles.shape), np.float32)
