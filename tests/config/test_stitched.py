"""What is checked of stitched images before the DAG, and what of the configuration is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tests.config.configs import refused
from tilewright.config.checks import check_raw, data_size, manifests
from tilewright.config.consistency import check_targets
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.errors import ConfigError
from tilewright.run_needs import missing_bytes, run_warnings

SHAPE = (300, 260)


def cells(seed: int = 0, shape: tuple[int, int] = SHAPE) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    light = np.asarray(ndimage.gaussian_filter(rng.random(shape), 4))
    counts = rng.poisson(4000 * (light - light.min()) / np.ptp(light))
    return np.asarray(counts + 100.0, np.float64)


def write(path: Path, *planes: NDArray[np.float64], **options: Any) -> None:
    image = np.stack(planes).astype(np.uint16)
    tifffile.imwrite(path, image, photometric="minisblack", metadata=None, **options)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    raw = tmp_path / "raw"
    raw.mkdir()
    write(raw / "cycle1.tif", cells(), cells(1))
    write(raw / "cycle2.tif", cells(2, (280, 240)), tile=(128, 128), compression="deflate")
    (tmp_path / "samples.tsv").write_text(f"sample\traw_dir\ns\t{raw}\n")
    (tmp_path / "markers.csv").write_text(
        "cycle,channel,marker,reference\n1,1,a,TRUE\n1,2,b\n2,1,c,TRUE\n"
    )
    return {
        "samples": str(tmp_path / "samples.tsv"),
        "markers": str(tmp_path / "markers.csv"),
        "results": str(tmp_path / "results"),
        "acquisition": {"convention": "stitched", "pixel_um": 0.5},
    }


def checked(config: dict[str, Any]) -> tuple[Experiment, Layout]:
    experiment = load_experiment(config)
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    return experiment, layout


def said(config: dict[str, Any]) -> str:
    return str(refused(config, checked))


def test_manifests_know_the_size_of_each_cycle(config: dict[str, Any]) -> None:
    experiment, layout = checked(config)
    first, second = (
        Path(layout.manifest.format(sample="s", cycle=cycle)).read_text().splitlines()
        for cycle in (1, 2)
    )
    assert [line.split(",")[:7] for line in first[1:]] == [
        ["1", "1", "0", "cycle1.tif", "0", "0.0", "0.0"],
        ["2", "1", "0", "cycle1.tif", "1", "0.0", "0.0"],
    ]
    assert second[1].split(",")[7:10] == ["280", "240", "uint16"]
    size_of = data_size(experiment, layout, manifests(layout))
    assert size_of("s").mosaic_px == SHAPE[0] * SHAPE[1]
    assert missing_bytes(experiment, layout, size_of, 1)[1] == 0
    stamp = Path(layout.manifest.format(sample="s", cycle=1)).stat().st_mtime_ns
    check_raw(experiment, layout)
    assert Path(layout.manifest.format(sample="s", cycle=1)).stat().st_mtime_ns == stamp


#: Keys of tiles, with values that they may have.
TILES: dict[str, dict[str, Any]] = {
    "tile_positions": {"max_shift_px": 20.0},
    "deconvolve": {"iterations": 9},
    "edf": {"method": "multiplane_wiener"},
}


def test_keys_columns_and_targets_of_tiles_are_refused(config: dict[str, Any]) -> None:
    for section, keys in TILES.items():
        for key, value in keys.items():
            error = refused({**config, section: {**config.get(section, {}), key: value}})
            assert str(error).startswith(f"{section}.{key} is {value!r}, but acquisition.conventi")
    assert "tiles is set, but acquisition.convention is" in str(refused({**config, "tiles": "t"}))
    experiment = load_experiment(config)
    check_targets(experiment, ["registration", "qc", "all"])
    for target in ("stitching", "deconvolution", "edf"):
        with pytest.raises(ConfigError, match=f"the target {target} needs tiles, but"):
            check_targets(experiment, ["qc", target])


def test_a_constant_channel_and_a_reference_without_structure_are_refused(
    config: dict[str, Any], tmp_path: Path
) -> None:
    noise = np.random.default_rng(3).poisson(200, SHAPE).astype(float)
    path = tmp_path / "raw/cycle1.tif"
    write(path, noise, np.full(SHAPE, 7.0))
    text = said(config)
    assert "channel 1 (the reference channel): every part of it is noise without struct" in text
    assert "cycle 1, channel 2: every part of it is constant, for example" in text
    # Structure in one corner of a large dark image is enough.
    wide = np.zeros((2600, 2500))
    wide[2200:2500, 2200:2460] = cells()
    write(path, wide, wide)
    checked(config)


def test_a_run_warns_of_jpeg(config: dict[str, Any], tmp_path: Path) -> None:
    experiment, layout = checked(config)
    size_of = data_size(experiment, layout, manifests(layout))
    assert run_warnings(experiment, layout, size_of, manifests(layout), 1, None) == []
    image = (cells(2) / 20).astype(np.uint8)
    path, jpeg = tmp_path / "raw/cycle2.tif", {"compression": "jpeg", "tile": (128, 128)}
    tifffile.imwrite(path, image, metadata=None, **jpeg)
    lossy, coarse = run_warnings(*checked(config), size_of, manifests(layout), 1, None)
    assert lossy.startswith("cycle2.tif: pixels are compressed as JPEG")
    assert coarse.startswith("cycle2.tif: pixels have 8 bits")
