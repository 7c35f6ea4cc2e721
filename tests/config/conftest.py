from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A valid configuration of two cycles and two channels."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "samples.tsv").write_text(f"sample\traw_dir\ntonsil\t{tmp_path / 'raw'}\n")
    (tmp_path / "markers.csv").write_text(
        "cycle,channel,marker,reference,emission_nm\n"
        "1,1,DAPI_1,TRUE,461\n1,2,CD3,,525\n2,1,DAPI_2,TRUE,461\n"
    )
    return {
        "samples": str(tmp_path / "samples.tsv"),
        "markers": str(tmp_path / "markers.csv"),
        "acquisition": {
            "convention": "codex",
            "rows": 2,
            "cols": 2,
            "pixel_um": 0.377,
            "z_step_um": 1.5,
        },
        "optics": {
            "numerical_aperture": 0.75,
            "immersion_refractive_index": 1.0,
            "sample_refractive_index": 1.44,
        },
    }
