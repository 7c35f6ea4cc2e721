from pathlib import Path
from typing import Any

import pytest

from tests.support.tile_tables import write_tiles


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A valid configuration of two cycles and two channels."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "samples.tsv").write_text(f"sample\traw_dir\ntonsil\t{tmp_path / 'raw'}\n")
    (tmp_path / "markers.csv").write_text(
        "cycle,channel,marker,reference,emission_nm\n"
        "1,1,DAPI_1,TRUE,461\n1,2,CD3,,525\n2,1,DAPI_2,TRUE,461\n"
    )
    write_tiles(tmp_path / "tiles.csv", ["tonsil"], (1, 2), 2, 2, 0.3, (72, 80))
    return {
        "samples": str(tmp_path / "samples.tsv"),
        "tiles": str(tmp_path / "tiles.csv"),
        "markers": str(tmp_path / "markers.csv"),
        "acquisition": {
            "convention": "codex",
            "pixel_um": 0.377,
            "z_step_um": 1.5,
        },
        "optics": {
            "numerical_aperture": 0.75,
            "immersion_refractive_index": 1.0,
            "sample_refractive_index": 1.44,
        },
    }
