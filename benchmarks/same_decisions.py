"""Does another CPU decide otherwise? The workflow on a phantom at every level of instructions.

Run as ``python -m benchmarks.same_decisions`` from the repository's folder, with the test
dependencies: ``tests`` holds the runs. A level is an environment of
:func:`tests.phantom.cpu_levels.environments`; each runs on its own copy of the same raw tiles, with
one and two cores in turn. Compared with the first run: every word, truth value and whole number in
the JSON files and tables (accepted edges, islands, chosen models, iterations, verdicts) must be
equal, positions must lie within 1e-3 px; the largest differences of other numbers and of the
final image's pixels are printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from tests.phantom.cpu_levels import environments
from tests.support.runs import Run, make_run

POSITION_PX = 1e-3
#: Not decisions: pictures, text with timings, and what holds paths.
_LEFT_OUT = re.compile(r"logs/|benchmarks/|placement/|\.zarr/|/raw/|\.snakemake")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number, word or truth value of nested lists and dicts, with its place."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        if isinstance(inner, dict | list):
            yield from leaves(inner, f"{key}/{name}")
        else:
            yield f"{key}/{name}", inner


def number(text: str) -> float | str:
    """Return a table's cell as a number where it is one."""
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return text


def results(run: Run) -> dict[str, Any]:
    """Return everything that a run wrote into JSON files and tables, by file and place."""
    found: dict[str, Any] = {}
    for path in sorted(run.results.rglob("*")):
        name = str(path.relative_to(run.results))
        if _LEFT_OUT.search(f"{name}") or path.suffix not in (".json", ".csv"):
            continue
        text = path.read_text()
        if path.suffix == ".json":
            content = json.loads(text)
        else:
            rows = csv.DictReader(text.splitlines())
            content = [{key: number(cell) for key, cell in row.items()} for row in rows]
        found |= {f"{name}:{key}": value for key, value in leaves(content)}
    return found


def compare(first: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what differs and must not, and the largest other differences, worst first."""
    wrong = [f"{key}: only in one" for key in sorted(first.keys() ^ other.keys())]
    near = []
    for key in sorted(first.keys() & other.keys()):
        a, b = first[key], other[key]
        if a == b or (a != a and b != b):
            continue
        text = f"{key}: {a} and {b}"
        if not (isinstance(a, float) and isinstance(b, float)):
            # A sentence's numbers are compared where they stand alone.
            if not key.endswith("/sentence"):
                wrong.append(text)
        elif "positions.csv" in key and abs(a - b) > POSITION_PX:
            wrong.append(text)
        else:
            near.append((abs(a - b) / max(abs(a), abs(b)), text))
    return wrong, [text for _, text in sorted(near, reverse=True)]


def image(run: Run) -> Any:
    """Return the final image as float64."""
    (path,) = run.results.glob("*/registration/*.ome.tif")
    return tifffile.imread(path).astype(np.float64)


def main() -> int:
    """Run all levels and return 1 if any decided otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--show", type=int, default=5, help="largest differences of numbers")
    options = parser.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = make_run(folder / "raw", seed=options.seed).folder / "raw"
        first: tuple[dict[str, Any], Any] | None = None
        for k, (level, env) in enumerate(environments().items()):
            cores = 2 - k % 2
            run = make_run(folder / level, raw=raw, seed=options.seed)
            run.snakemake("registration", "qc", "--cores", str(cores), env=env)
            found = results(run), image(run)
            first = first or found
            wrong, near = compare(first[0], found[0])
            pixels = np.abs(found[1] - first[1])
            print(f"{level}, {cores} cores: {len(found[0])} values, {len(wrong)} decided otherwise,"
                  f" {len(near)} numbers differ, pixels by up to {pixels.max():g} counts,"
                  f" {(pixels > 0).mean():.2%} of them", flush=True)  # fmt: skip
            for text in [*(f"OTHERWISE {text}" for text in wrong), *near[: options.show]]:
                print(f"  {text}")
            different += len(wrong)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
