"""The wheels alone, used in an empty folder without the clone."""

import csv
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml

from tests.conftest import REPO
from tests.support.convention_raw import PIXEL_UM, make_tiles, write_as
from tests.support.runs import job_counts
from tests.support.wheels import install_wheels, run

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

#: Somebody else's workflow after ours: cells from the nuclei of the registered image.
FOREIGN = """
from tilewright.installed import snakefile

configfile: "lab/config.yaml"

module images:
    snakefile: snakefile()
    config: config["images"]

use rule * from images as images_*

rule segment:
    default_target: True
    input:
        image=config["images"]["results"] + "/demo/registration/demo.ome.tif",
    output:
        "cells.csv",
    run:
        import tifffile
        from scipy import ndimage
        nuclei = ndimage.gaussian_filter(tifffile.imread(input.image)[0].astype(float), 2)
        marked, count = ndimage.label(nuclei > 3 * nuclei.mean())
        with open(output[0], "w") as stream:
            stream.write(f"cells\\n{count}\\n")
"""


@dataclass(frozen=True)
class Installed:
    """An environment of the wheels, and folders beside no clone."""

    bin: Path
    folder: Path

    def __call__(self, *argv: str, cwd: str = ".") -> str:
        """Run a command of the environment, and return all it said."""
        # Bytecode is written of what is imported, and of no more: see `installed`.
        not_its_own = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
        own = {k: v for k, v in os.environ.items() if k not in not_its_own}
        env = {**own, "PATH": f"{self.bin}:/usr/bin:/bin", "TILEWRIGHT_DEVICE": "cpu"}
        program, *words = argv
        where = self.folder / cwd
        return run(self.bin / program, *words, cwd=where, env=env, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """This checkout in an empty environment."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "empty").mkdir()
    return Installed(install_wheels(folder, "scheduler-plugin", "."), folder / "empty")


@pytest.fixture(scope="module")
def experiment(installed: Installed) -> Installed:
    """From five raw tiles to the report."""
    raw, my = installed.folder / "demo/raw", installed.folder / "my"
    design, tiles = make_tiles(cols=3)
    write_as("pattern", raw, tiles, round(design.step_px))
    # One place of the grid has no tile.
    (raw / "cycle1/tile_r0_c0_ch1.tif").unlink()
    installed("tilewright", "init", "demo/raw", "--output", "my")
    # braces in the configuration, which the report shows once more
    config = yaml.safe_load((my / "config.yaml").read_text())
    config["acquisition"] |= {"pixel_um": PIXEL_UM}
    config["illumination"] = {"method": "file", "flat_file": str(my / "flat_{channel}.tif")}
    (my / "config.yaml").write_text(yaml.safe_dump(config))
    flat = np.ones((design.tile_px, design.tile_px), np.float32)
    tifffile.imwrite(my / "flat_1.tif", flat)
    said = installed("snakemake", "qc", cwd="my")
    assert "profile profiles/default" in said
    jobs = job_counts(said)
    assert jobs["assemble"] == jobs["stitch"] == 1
    return installed


def test_nothing_is_read_from_the_clone(installed: Installed) -> None:
    where = "from tilewright.installed import shipped, snakefile; print(snakefile(), shipped('x'))"
    for path in installed("python", "-c", where).split():
        assert Path(path).is_relative_to(installed.bin.parent)
        assert "site-packages/tilewright/workflow" in path


def test_from_raw_tiles_to_the_report(experiment: Installed) -> None:
    results = experiment.folder / "my/results"
    assert json.loads((results / "qc.json").read_text())["verdict"] in ("pass", "warn", "fail")
    page = (results / "report.html").read_text()
    assert "tilewright 0" in page
    assert str(REPO) not in page
    assert "tile_r{row}_c{col}" in page
    assert "flat_{channel}.tif" in page
    image = tifffile.imread(results / "demo/registration/demo.ome.tif")
    assert 1.2 * image.shape[0] < image.shape[1]
    assert np.count_nonzero(image[:130, :130]) < 0.01 * 130**2
    with (results / "trusted_markers.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 1


@pytest.mark.long
def test_from_elsewhere_and_snakemakes_report(experiment: Installed) -> None:
    where = "from tilewright.installed import snakefile; print(snakefile())"
    snakefile = experiment("python", "-c", where).strip()
    options = ["--snakefile", snakefile, "--configfile", "my/config.yaml"]
    said = experiment("snakemake", "registration", "qc", "-n", *options)
    assert "Nothing to be done" in said
    assert "workflow/profiles/default" in said
    experiment("snakemake", "registration", "qc", "--report", "told.html", cwd="my")
    told = (experiment.folder / "my/told.html").read_text()
    assert "registered, quality-checked image" in told
    assert "Cycle 1 of demo" in told


def test_as_a_module_with_other_names_in_somebody_elses_workflow(experiment: Installed) -> None:
    there = experiment.folder / "lab"
    (there / "lab").mkdir(parents=True)
    config = yaml.safe_load((experiment.folder / "my/config.yaml").read_text())
    # In a configuration of another workflow they are beside no file of init's.
    for key in ("samples", "tiles", "markers", "results"):
        config[key] = str(experiment.folder / "my" / config.get(key, key))
    (there / "lab/config.yaml").write_text(yaml.safe_dump({"images": config, "own": 3}))
    results = experiment.folder / "my/results"
    (there / "Snakefile").write_text(FOREIGN)
    options = ("--cores", "2", "--scheduler", "tilewright")
    (results / "trusted_markers.csv").unlink()
    said = experiment("snakemake", "segment", "images_qc", *options, cwd="lab")
    assert job_counts(said) == {"segment": 1, "images_verdict": 1, "images_qc": 1}
    assert (results / "trusted_markers.csv").is_file()
    assert int((there / "cells.csv").read_text().split()[1]) > 3
