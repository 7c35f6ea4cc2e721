"""Files of microscopes: every plane, place and number that the writer gave is read again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.microscope_files import WRITERS, Specimen
from tilewright.commands.dag import read_experiment
from tilewright.init.folder import create_experiment
from tilewright.io.conventions import described_images, scan
from tilewright.io.conventions.common import RawDataError
from tilewright.io.raw_headers import read_headers
from tilewright.io.tiles import read_plane

STEP_PX = 40


@pytest.fixture(scope="module")
def specimen() -> Specimen:
    rng = np.random.default_rng(8)
    tiles = {
        (row, col): rng.integers(90, 4000, (2, 3, 48, 56)).astype(np.uint16)
        for row in range(2)
        for col in range(3)
    }
    return Specimen(tiles, STEP_PX, ("DAPI", "CD8"), (461.0, 519.0))


@pytest.mark.parametrize("convention", WRITERS)
def test_every_plane_at_its_place(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    for cycle in (1, 2):
        WRITERS[convention](tmp_path, cycle, specimen)
    planes = scan(convention, tmp_path)
    assert len(planes) == 2 * 6 * 2 * 3
    first_y = min(plane.y_px for plane in planes if plane.y_px is not None)
    first_x = min(plane.x_px for plane in planes if plane.x_px is not None)
    for plane in planes:
        assert plane.y_px is not None
        assert plane.x_px is not None
        assert plane.page is not None
        at = np.array([plane.y_px - first_y, plane.x_px - first_x]) / STEP_PX
        assert np.allclose(at, np.round(at), atol=1e-3)
        row, col = np.round(at).astype(int)
        truth = specimen.tiles[row, col][int(plane.channel) - 1, plane.z]
        assert np.array_equal(read_plane(plane.path, plane.page), truth)
    headers = read_headers({plane.path: (plane.page or 0) + 1 for plane in planes}, {}, 2)
    assert {header[2:5] for header in headers.values()} == {(48, 56, "uint16")}
    assert {header.problem for header in headers.values()} == {""}


#: What a writer cannot tell: ZEISS' library writes no optics, NDTiff has no field for them.
UNTOLD = {"czi": {"emission", "exposure", "aperture"}, "ndtiff": {"emission", "aperture"}}
UNTOLD |= {"nd2": {"exposure"}, "ome_tiff": {"aperture"}}


@pytest.mark.parametrize("convention", WRITERS)
def test_what_the_microscope_knows(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    WRITERS[convention](tmp_path, 1, specimen)
    located = described_images(convention, tmp_path)
    assert located is not None
    untold = UNTOLD.get(convention, set())
    for _, _, image in located:
        assert [channel.name for channel in image.channels] == list(specimen.names)
        assert image.pixel_um == pytest.approx(specimen.pixel_um)
        assert image.pixel_y_um == pytest.approx(specimen.pixel_um)
        assert image.z_step_um == pytest.approx(specimen.z_step_um)
        emission = [channel.emission_nm for channel in image.channels]
        assert emission == ([None] * 2 if "emission" in untold else list(specimen.emission_nm))
        exposure = {channel.exposure_ms for channel in image.channels}
        assert exposure == {None if "exposure" in untold else specimen.exposure_ms}
        assert image.numerical_aperture == (None if "aperture" in untold else specimen.aperture)


@pytest.mark.parametrize("convention", WRITERS)
def test_init_writes_what_runs(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    WRITERS[convention](tmp_path / "raw", 1, specimen)
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    assert result.convention == convention
    assert "1 cycles, 2 channels, 3 z-planes, 1 region" in result.found[0]
    text = result.markers.read_text()
    assert "1,1,DAPI" in text
    assert "1,2,CD8" in text
    assert f"pixel_um: {specimen.pixel_um}" in result.config.read_text()


@pytest.mark.parametrize("convention", ["czi", "nd2", "lif"])
def test_a_damaged_container_is_named(tmp_path: Path, specimen: Specimen, convention: str) -> None:
    WRITERS[convention](tmp_path, 1, specimen)
    path = tmp_path / f"cycle1.{convention}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "cannot be read" in read_headers({str(path): 1}, {}, 1)[str(path)].problem


def test_a_missing_library_is_one_sentence(
    tmp_path: Path, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS["nd2"](tmp_path, 1, specimen)
    monkeypatch.setitem(sys.modules, "nd2", None)
    monkeypatch.delitem(sys.modules, "tilewright.io.conventions.containers.nd2", raising=False)
    with pytest.raises(RawDataError, match=r"needs nd2.*pip install 'tilewright\[nd2\]'"):
        scan("nd2", tmp_path)


def test_regions_of_a_slide(tmp_path: Path, specimen: Specimen) -> None:
    """Scenes of a CZI are samples of their own."""
    from pylibCZIrw import czi

    with czi.create_czi(str(tmp_path / "slide.czi")) as document:
        for scene in (0, 1):
            for (row, col), stack in specimen.tiles.items():
                at = (col * STEP_PX + 900 * scene, row * STEP_PX)
                document.write(stack[0, 0][..., None], location=at, plane={}, scene=scene)
    planes = scan("czi", tmp_path)
    assert [plane.region for plane in planes] == ["1"] * 6 + ["2"] * 6
    result = create_experiment(tmp_path, tmp_path / "out")
    config = result.config.read_text().replace("pixel_um: null", "pixel_um: 0.5")
    result.config.write_text(config)
    assert len(result.samples.read_text().splitlines()) == 3
    assert len(read_experiment(result.config).samples) == 2
