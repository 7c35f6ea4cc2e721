from __future__ import annotations

import csv

from tests.conftest import REPO
from tilewright.phantom.make import PhantomDesign


def test_the_demo_tables_name_what_the_phantom_stains() -> None:
    design = PhantomDesign(seed=1)
    with (REPO / "config/markers.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    stained = [name.replace("-", "_") for names in design.markers() for name in names]
    assert [row["marker"] for row in rows] == stained
    for row in rows:
        assert float(row["emission_nm"]) == design.wavelengths_nm[int(row["channel"]) - 1]
