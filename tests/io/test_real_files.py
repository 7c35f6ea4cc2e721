"""Files of real microscopes that nobody of this project wrote (``../shared/data/real-files``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tilewright.init.folder import InitResult, create_experiment

pytestmark = pytest.mark.shared


@pytest.fixture
def real(shared: Path) -> Path:
    folder = shared / "data/real-files"
    if not folder.is_dir():
        pytest.skip("../shared/data/real-files is absent: files of real microscopes are not here")
    return folder


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def acquisition(result: InitResult) -> dict[str, object]:
    section: dict[str, object] = yaml.safe_load(result.config.read_text())["acquisition"]
    return section


def test_metaxpress_asks_nothing(real: Path, tmp_path: Path) -> None:
    result = create_experiment(real / "metaxpress", tmp_path)
    assert not result.unknown
    told = acquisition(result)
    assert (told["convention"], told["pixel_um"]) == ("imagexpress", 13.5504)
    assert (told["rows"], told["cols"], told["overlap"]) == (2, 1, pytest.approx(0, abs=1e-3))
    optics = yaml.safe_load(result.config.read_text())["optics"]
    assert optics == {"numerical_aperture": 0.2, "immersion_refractive_index": 1.0}
    markers = ["FITC_{},536,80", "Cy3_{},593,100", "Texas Red_{},624,5"]
    assert lines_of(result.markers)[1:] == [
        f"{cycle},{channel},{marker.format(cycle)}"
        for cycle in (1, 2)
        for channel, marker in enumerate(markers, start=1)
    ]
