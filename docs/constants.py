"""The table of tuned constants of a design note, from lists of this folder and the modules.

A list is ``docs/constants-NAME.csv``. Its column ``kind`` says where a value comes from:
``figures`` (those of ``tuned_on``), ``chosen`` (no figure is written down), ``grid`` (other
constants or the layout of arrays ask for it) or ``cost`` (time or memory only). What half and twice
of a value cost is in ``docs/constants-NAME-scores.csv``, which ``python -m benchmarks.constants
NAME`` prints.
"""

import csv
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from docs.markdown import table

FOLDER = Path(__file__).parent
_ORIGIN = {"chosen": "no figure", "grid": "follows from others", "cost": "time, memory"}


def listed(name: str) -> list[dict[str, str]]:
    """Return the rows of a list."""
    with (FOLDER / f"constants-{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(value: Any) -> str:
    """Return a constant as it is written in a table.

    >>> written((0.25, 0.5)), written(2 / 3), written(2**20)
    ('0.25, 0.5', '0.667', '1048576')
    """
    numbers = np.atleast_1d(value).tolist()
    return ", ".join(str(n) if isinstance(n, int) else f"{n:.3g}" for n in numbers)


def changes(as_is: dict[str, str], scores: dict[str, str]) -> str:
    """Return by how much scores change; a change of less than 0.03 % is none.

    >>> as_is = {"constant": "", "times": "1", "tissue": "36.5", "haze": "31.2", "error": ""}
    >>> changes(as_is, as_is | {"tissue": "36.38", "haze": "31.201"})
    'tissue -0.12'
    """
    if scores["error"]:
        return "refused"
    found = []
    for score in (name for name in list(as_is)[2:-1] if scores[name]):
        before, after = float(as_is[score]), float(scores[score])
        if abs(after - before) > 3e-4 * abs(before):
            found.append(f"{score} {after - before:+.2g}")
    return ", ".join(found) or "0"


def constants(name: str) -> str:
    """Return the table of a list."""
    as_is, *scores = listed(f"{name}-scores")
    cost = {(row["constant"], float(row["times"])): changes(as_is, row) for row in scores}
    rows = []
    for row in listed(name):
        constant = f"{row['module'].rpartition('.')[2]}.{row['name']}"
        rows.append((
            f"`{constant}`",
            written(getattr(importlib.import_module(row["module"]), row["name"])),
            row["unit"],
            row["trades"],
            row["tuned_on"] or _ORIGIN[row["kind"]],
            cost.get((constant, 0.5), ""),
            cost.get((constant, 2.0), ""),
        ))  # fmt: skip
    return table(("Constant", "Value", "Unit", "Trades", "Tuned on", "Half", "Twice"), *rows)
