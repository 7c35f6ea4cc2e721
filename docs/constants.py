"""The table of tuned constants of a design note, from a list of this folder and the modules.

A list is ``docs/constants-NAME.csv``. Its column ``kind`` says where a value comes from:
``figures`` (those of ``tuned_on``), ``chosen`` (no figure is written down), ``grid`` (other
constants or the layout of arrays ask for it) or ``cost`` (time or memory only).
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


def constants(name: str) -> str:
    """Return the table of a list."""
    rows = [
        (
            f"`{row['module'].rpartition('.')[2]}.{row['name']}`",
            written(getattr(importlib.import_module(row["module"]), row["name"])),
            row["unit"],
            row["trades"],
            row["tuned_on"] or _ORIGIN[row["kind"]],
            row["shown"] or "no",
        )
        for row in listed(name)
    ]
    head = ("Constant", "Value", "Unit", "Trades", "Tuned on", "Half and twice shown")
    return table(head, *rows)
