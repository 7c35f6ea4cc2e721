"""Stitched images of three formats and sizes, from ``init`` to the report."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml

from tests.support.runs import Run
from tests.support.stitched_files import (
    PIXEL_UM,
    cycle_image,
    tissue,
    write_bigtiff,
    write_ome_pyramid,
    write_qptiff,
)
from tilewright.config.load import read_experiment
from tilewright.follow import Follower
from tilewright.init.folder import create_experiment
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.registration import read_transform

pytestmark = pytest.mark.workflow

SHIFTS_PX = {1: (0.0, 0.0), 2: (13.4, -21.7), 3: (-9.25, 6.6)}
SHAPES = {1: (700, 720), 2: (660, 740), 3: (690, 640)}
MARKERS = [
    "1,1,DAPI_1,TRUE,,", "1,2,CD8,,,", "2,1,DAPI_2,TRUE,,20", "2,2,CD4,,,20",
    "3,1,cycle3_channel1,TRUE,,",
]  # fmt: skip


@pytest.mark.parametrize("cycles", [[1, 3], pytest.param([1, 2, 3], marks=pytest.mark.long)])
def test_three_formats_are_registered_and_judged(tmp_path: Path, cycles: list[int]) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    nuclei, marker = tissue(2)
    images = {
        cycle: cycle_image([nuclei, marker][: 1 + (cycle < 3)], shift, SHAPES[cycle], cycle)
        for cycle, shift in SHIFTS_PX.items()
    }
    write_ome_pyramid(raw / "slide_cycle1.ome.tif", images[1], ["DAPI", "CD8"])
    write_qptiff(raw / "slide_cycle2.qptiff", images[2], ["DAPI", "CD4"])
    write_bigtiff(raw / "slide_cycle3.btf", images[3])
    result = create_experiment(raw, tmp_path)
    assert not result.notes.unknown
    run = Run(tmp_path, result.config)
    assert yaml.safe_load(run.config.read_text())["acquisition"] == {
        "convention": "stitched",
        "pixel_um": PIXEL_UM,
        "reference_cycle": 1,
    }
    assert (tmp_path / "markers.csv").read_text().splitlines()[1:] == MARKERS
    jobs = run.planned("registration", "qc")
    assert jobs == {
        "stitched_plane": 5, "register": 2, "resample": 3, "assemble": 1, "qc_cycle": 3,
        "qc_register": 2, "report": 1, "summary": 1, "verdict": 1,
    }  # fmt: skip
    check_a_cycle_before_the_reference_cycle(run)
    run.edit(cycles=cycles)
    run.snakemake("registration", "qc", "--cores", "2")
    (sample,) = (path for path in run.results.iterdir() if (path / "registration").is_dir())
    inside = 100 + 50 * np.indices((10, 10)).reshape(2, -1).T.astype(np.float64)
    for cycle in cycles:
        for channel, counts in enumerate(images[cycle], start=1):
            plane = open_mosaic(sample / f"edf/cycle{cycle}_channel{channel}.zarr")
            assert np.array_equal(plane.read(0), counts)
        if cycle > 1:
            transform = read_transform(sample / f"register/cycle{cycle}.npz")
            off = transform.points(inside) - inside - SHIFTS_PX[cycle]
            assert np.abs(off).max() < 0.1
    lines = [line.split(",") for line in MARKERS if int(line[0]) in cycles]
    (image_file,) = (sample / "registration").glob("*.ome.tif")
    with tifffile.TiffFile(image_file) as tiff:
        assert tiff.series[0].shape == (len(lines), *SHAPES[1])
        assert len(tiff.series[0].levels) > 1
        assert f'PhysicalSizeX="{PIXEL_UM}"' in tiff.ome_metadata
        assert all(f'Name="{line[2]}"' in tiff.ome_metadata for line in lines)
        final = tiff.series[0].asarray()
    assert np.array_equal(final[:2], images[1])
    # The same tissue in another cycle, with photons of its own.
    first = [k for k, line in enumerate(lines) if line[1] == "1"]
    nuclei = np.sqrt(final[first, 60:600, 60:600].astype(np.float64))
    assert np.corrcoef(nuclei.reshape(len(cycles), -1)).min() > 0.97
    page = (run.results / "report.html").read_text()
    assert "Stitched image" in page
    assert "How it was stitched was not judged" in page
    assert "Tile positions" not in page


def check_a_cycle_before_the_reference_cycle(run: Run) -> None:
    """What `tilewright follow` asks Snakemake for then is the cycle's planes, judged."""
    with contextlib.chdir(run.folder):
        follower = Follower(run.config, [], 0.0, [])
        (own,) = follower._own(read_experiment(run.config).of_cycles([2]), 2)
    assert run.planned(own, "--config", "cycles=[2]") == {"stitched_plane": 2, "qc_cycle": 1}
