from __future__ import annotations

import pytest

from tests.support.runs import Run, make_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An experiment processed to the end, quality report included; it is left as it was found."""
    made = make_run(tmp_path_factory.mktemp("experiment"))
    made.edit(output={"keep": "stacks"})
    made.snakemake("registration", "qc")
    return made
