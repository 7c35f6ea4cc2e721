"""Images of spots at exact places."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Strips = NDArray[np.float32]


def spots(seed: int, height: float, width: float, density: float = 1 / 120) -> Floats:
    """Return (y, x, amplitude, sigma) of cells scattered around a field."""
    rng = np.random.default_rng(seed)
    count = int((height + 60) * (width + 60) * density)
    y, x = rng.uniform(-30, height + 30, count), rng.uniform(-30, width + 30, count)
    return np.stack([y, x, rng.gamma(2.0, 500.0, count), rng.uniform(1.6, 3.5, count)])


def render(cells: Floats, origin: Floats, shape: tuple[int, int]) -> Strips:
    """Sample the exact specimen at ``origin`` + whole pixels."""
    y = np.arange(shape[0])[:, None] + origin[0] - cells[0]
    x = np.arange(shape[1])[:, None] + origin[1] - cells[1]
    rise = np.exp(-0.5 * (y / cells[3]) ** 2) * cells[2]
    return np.asarray(rise @ np.exp(-0.5 * (x / cells[3]) ** 2).T, np.float32)
