from pathlib import Path
from typing import Any

import pytest
from snakemake.iocontainers import Wildcards

from tests.config.configs import refused, set_key
from tilewright.config.consistency import check_targets
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.config.rule_files import RuleFiles
from tilewright.errors import ConfigError


def test_valid(config: dict[str, Any]) -> None:
    assert "--configfile" in str(refused({}))
    experiment = load_experiment(config)
    assert experiment.cycles == (1, 2)
    assert experiment.moving_cycles == (2,)
    assert experiment.reference_channels == {1: "1", 2: "1"}
    assert [c.marker for c in experiment.channels] == ["DAPI_1", "CD3", "DAPI_2"]
    assert experiment.voxel_um == (1.5, 0.377, 0.377)
    assert experiment.optics_of(1, "2")["emission_nm"] == 525
    assert experiment.options("deconvolve")["iterations"] == 32
    assert experiment.options("illumination")["method"] == "auto"


def test_cycles_to_process(config: dict[str, Any]) -> None:
    config["registration"] = {"allow_unregistered": [2]}  # of the table, not of what is processed
    experiment = load_experiment({**config, "cycles": [1]})
    assert experiment.cycles == (1,)
    assert experiment.moving_cycles == ()
    assert [c.marker for c in experiment.channels] == ["DAPI_1", "CD3"]
    assert experiment.of_cycles([1, 2]).channels == load_experiment(config).channels
    check_targets(experiment, [])
    late = load_experiment({**config, "cycles": [2]})
    check_targets(late, ["edf", "stitching"])
    for targets in ([], ["qc"], ["edf", "registration"]):
        with pytest.raises(ConfigError, match=r"lacks the reference cycle 1.* the target edf"):
            check_targets(late, targets)


def test_backgrounds_and_what_is_left_out(config: dict[str, Any]) -> None:
    Path(config["markers"]).write_text(
        "cycle,channel,marker,emission_nm,exposure_ms,background,remove,reference\n1,1,D1,461,10,,,TRUE\n"
        "1,2,CD3,525,300,Blank,false\n2,1,D2,461,10,,,TRUE\n2,2,Blank,525,100,,TRUE\n"
    )
    experiment = load_experiment(config)
    blank = {"cycle": 2, "channel": "2", "marker": "Blank", "factor": 3.0}
    assert [experiment.background_of(c) for c in experiment.channels] == [None, blank, None, None]
    assert [one["marker"] for one in experiment.image_table()] == ["D1", "CD3", "D2"]
    table = experiment.channel_table()
    assert table[0] == {"cycle": 1, "channel": "1", "marker": "D1"}
    assert table[1] == {"cycle": 1, "channel": "2", "marker": "CD3", "background": blank}
    assert table[3] == {"cycle": 2, "channel": "2", "marker": "Blank", "remove": True}
    first = load_experiment({**config, "cycles": [1]})
    assert "background" not in first.channel_table()[1]  # its cycle is not processed yet
    fitted = load_experiment(set_key(config, "subtract.method", "regression"))
    assert fitted.channel_table()[1]["background"] == {**blank, "factor": None}
    kept = load_experiment(set_key(config, "subtract.method", "none"))
    assert "background" not in kept.channel_table()[1]


def test_samples_are_read_or_refused(config: dict[str, Any], tmp_path: Path) -> None:
    path = Path(config["samples"])
    raw = tmp_path / "raw"
    path.write_text(f"sample\traw_dir\tregion\nleft\t{raw}\tB05\nright\t{raw}\t\n")
    samples = load_experiment(config).samples
    assert [samples[name].region for name in ("left", "right")] == ["B05", None]
    for line, message in [
        (f"left\t{raw}\t5", "duplicate sample 'left' (rows 2 and 3); remove one"),
        (f"le ft\t{raw}\t5", "must be letters"),
        ("other\tnowhere\t5", "raw_dir 'nowhere' is not a folder"),
        (f"other\t{raw}\tB 2", "region 'B 2' must be letters"),
    ]:
        path.write_text(f"sample\traw_dir\tregion\nleft\t{raw}\t5\n{line}\n")
        said = str(refused(config))
        assert "row 3" in said or "rows 2 and 3" in said
        assert message in said


def test_samples_of_one_folder_share_flat_fields_unless_the_table_says_otherwise(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path, raw = Path(config["samples"]), tmp_path / "raw"
    path.write_text(f"sample\traw_dir\tscan\na\t{raw}\t\nb\t{raw}\t\nc\t{raw}\tmonday\n")
    files = RuleFiles(load_experiment(config), Layout("r"))
    job = Wildcards(fromdict={"sample": "b", "cycle": "2", "channel": "1"})
    assert files.experiment.scan_of("b") == ["a", "b"]
    assert files.calibration(job)["flat"] == "r/a/illumination/cycle2-ffp.tif"
    assert files.experiment.scan_of("c") == ["c"]
    config["illumination"] = {"method": "file", "flat_file": "{sample}_{channel}.tif"}
    assert load_experiment(config).scan_of("b") == ["b"]
