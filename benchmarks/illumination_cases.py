"""Error of the flat-field where estimating it is hard, and whether the verdict says so.

``python -m benchmarks.illumination_cases [--seeds 11 12 13] [--only NAME ...]``

Each row is a set of synthetic tiles with a known flat-field
(``benchmarks/scenes/illumination.py``), 256 px, 10 % overlap and one plane unless its name says
otherwise, the camera's offset unknown. "ratio" is the stated over the true error.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibrated import estimate_illumination
from benchmarks.scenes.illumination import (
    make_tiles,
    relative_rmse,
    ring,
    stripes,
    vignette,
)
from tilewright.quality.results import METRICS

SIZE = 256
Field = NDArray[np.float64]
GRID = (6, 6)


def _fine_stripes() -> Field:
    _, x = np.mgrid[0:SIZE, 0:SIZE]
    flat = _smooth() * (1 + 0.08 * np.sign(np.sin(np.pi * (x + 0.5) / 8)))
    return np.asarray(flat / flat.mean())


def _gradient() -> Field:
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    return np.asarray(20 * x + 10 * y)


def _smooth() -> Field:
    return vignette(SIZE, 0.55)


#: (name, flat-field, options of ``make_tiles``).
CASES: list[tuple[str, Callable[[], Field], dict[str, Any]]] = [
    ("standard 36 tiles", _smooth, {}),
    ("4 tiles", _smooth, {"grid": (2, 2)}),
    ("4 tiles, tissue", _smooth, {"grid": (2, 2), "empty": 0, "lumps": 0.4}),
    ("9 tiles", _smooth, {"grid": (3, 3)}),
    ("9 tiles, tissue", _smooth, {"grid": (3, 3), "empty": 0, "lumps": 0.4}),
    ("36 tiles, tissue", _smooth, {"empty": 0, "lumps": 0.4}),
    ("2 % overlap", _smooth, {"overlap": 0.02}),
    ("5 % overlap", _smooth, {"overlap": 0.05}),
    ("8 % overlap", _smooth, {"overlap": 0.08}),
    ("25 % overlap", _smooth, {"overlap": 0.25}),
    ("90 % empty", _smooth, {"empty": 0.9}),
    ("dim, 20 electrons", _smooth, {"electrons": 20.0, "haze": 5.0}),
    ("ring", lambda: ring(SIZE), {}),
    ("stripes", lambda: stripes(SIZE), {}),
    ("fine stripes", _fine_stripes, {}),
    ("dark-field gradient", _smooth, {"dark": _gradient}),
]


def verdict(numbers: dict[str, Any]) -> str:
    """Return the worse verdict of the numbers that are judged."""
    told = []
    for name in ("heldout_difference", "flat_error"):
        if name in METRICS:
            value = numbers.get(name)
            told.append("warn" if value is None else METRICS[name].threshold.verdict(value))
    return max(told, key=["pass", "warn", "fail"].index)


def line(*cells: object) -> None:
    """Print one row of the table."""
    widths = (24, 5, 18, 10, 6, 10, 6, 8, 7, 6)
    print("  ".join(f"{c!s:<{w}}" for c, w in zip(cells, widths, strict=False)), flush=True)


def main() -> int:
    """Print one row for each case and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--only", nargs="+", help="cases whose name begins so")
    options = parser.parse_args()
    line(
        "set", "seed", "error", "expected", "ratio", "held out", "says", "method", "offset", "CPU-s"
    )
    for name, flat, making in CASES:
        if options.only and not name.startswith(tuple(options.only)):
            continue
        truth = flat()
        for seed in options.seeds:
            made: dict[str, Any] = {"grid": GRID, "overlap": 0.1} | making
            if callable(made.get("dark")):
                made["dark"] = made["dark"]()
            tiles, places = make_tiles(truth, seed, **made)
            start = time.process_time()
            found, numbers = estimate_illumination(tiles, places)
            seconds = time.process_time() - start
            before = relative_rmse(np.ones_like(truth), truth)
            after = relative_rmse(found.flat, truth)
            expected, ratio = numbers.get("flat_error"), numbers["heldout_difference"]
            line(
                name, seed, f"{100 * before:.1f} -> {100 * after:.2f} %",
                "-" if expected is None else f"{100 * expected:.2f} %",
                "-" if expected is None else f"{expected / after:.2f}",
                "-" if ratio is None else f"{ratio:.4f}",
                verdict(numbers), numbers["method"], f"{numbers['offset_counts']:g}",
                f"{seconds:.1f}",
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
