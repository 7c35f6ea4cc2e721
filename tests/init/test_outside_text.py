"""Text of microscopes' files in what init writes: data, whatever is in it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.init.raw_folders import two_fields
from tests.support.microscope_files import write_phenix
from tests.support.runs import mark_references
from tilewright.config.tables import Channel, read_markers
from tilewright.errors import ConfigError
from tilewright.init.folder import InitResult, create_experiment
from tilewright.init.metadata import Metadata
from tilewright.init.notes import Notes
from tilewright.init.recognise import RawFolder
from tilewright.init.write import config_text, readme_text
from tilewright.io.formats.common import RawPlane, ScanOptions
from tilewright.runtime.text import printable

KEYS = {"samples", "tiles", "markers", "results", "acquisition", "optics", "deconvolve"}
LIVE = "\nillumination:\n  flat_file: /tmp/x.npy\n#"
BREAKS = ["\n", "\r", "\x85", "\u2028", "\u2029"]


def codex(raw: Path, folder: str = "Cyc1_reg1", name: str = "1_00001_Z001_CH1.tif") -> None:
    (raw / folder).mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(raw / folder / name, np.full((64, 64), 100, np.uint16))


def checked(result: InitResult) -> dict[str, Any]:
    """Return the config, that has no key but its own, and check that lines hold no control."""
    text = result.config.read_text("utf-8")
    config: dict[str, Any] = yaml.safe_load(text)
    assert config.keys() <= KEYS
    summary = result.summary()
    for said in (text, result.config.with_name("README.md").read_text("utf-8"), summary):
        assert all(line.isprintable() for line in said.split("\n"))
    assert max(map(len, summary.split("\n"))) <= 1000
    return config


@pytest.mark.parametrize("odd", [LIVE, "\x00", "\x1b[2J", *(f"{b}illumination: x" for b in BREAKS)])
def test_a_channel_name_is_no_key(tmp_path: Path, odd: str) -> None:
    codex(tmp_path / "raw")
    names = f"DAPI{odd}" if odd not in (LIVE, "\n", "\r") else "DAPI"
    told = {"channelNames": {"channelNamesArray": [f"DAPI{odd}"]}, "numChannels": 1}
    (tmp_path / "raw/experiment.json").write_text(json.dumps(told))
    checked(create_experiment(tmp_path / "raw", tmp_path / "json"))
    (tmp_path / "raw/channelnames.txt").write_text(names, newline="")
    result = create_experiment(tmp_path / "raw", tmp_path / "text")
    checked(result)
    if names.count("illumination") == 0:
        assert read_markers(result.markers)


@pytest.mark.parametrize("odd", [LIVE.replace("/", ""), "\x1b[2J", *BREAKS])
def test_file_and_folder_names_are_no_keys(tmp_path: Path, odd: str) -> None:
    for folder in ("raw", f"raw{odd}"):
        codex(tmp_path / folder)
        codex(tmp_path / folder, name=f"other{odd}.tif")
        codex(tmp_path / folder, f"beside{odd}", "a.tif")
        for path in (tmp_path / folder).glob("*/*_CH1.tif"):
            path.with_name(path.name.replace("00001", "00002")).write_bytes(b"no TIFF")
        config = checked(create_experiment(tmp_path / folder, tmp_path / f"out{folder}"))
        assert config["samples"] == "samples.tsv"


@pytest.mark.parametrize("odd", [LIVE, *BREAKS])
def test_a_url_of_phenix_is_no_key(tmp_path: Path, odd: str) -> None:
    write_phenix(tmp_path / "raw", 1, two_fields())
    (index,) = (tmp_path / "raw").rglob("Index.idx.xml")
    escaped = "".join(f"&#{ord(c)};" if c in BREAKS else c for c in odd)
    index.write_text(index.read_text().replace(".tiff</URL>", f"{escaped}.tiff</URL>", 1))
    checked(create_experiment(tmp_path / "raw", tmp_path / "out"))


def test_a_folder_that_no_table_can_name_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw\udcff"
    codex(raw)
    with pytest.raises(ConfigError, match=r"raw\\udcff.* rename it"):
        create_experiment(raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


texts = st.text(st.characters(exclude_categories=()), max_size=30) | st.sampled_from(
    [LIVE, "off", "null", "1e5", "- a", "a: b", "'", '"\\', "%Y", "\ufeff", "\udc80", "{x}", "\x07"]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts, texts, texts, texts, st.lists(texts, max_size=2))
def test_the_config_says_what_is_meant_whatever_the_text(
    marker: str, channel: str, pattern: str, folder: str, warnings: list[str]
) -> None:
    planes = [RawPlane(1, channel, 0, folder, tile=1)]
    recognised = RawFolder("pattern", ScanOptions(pattern=pattern), planes, [], Path(folder))
    metadata = Metadata([Channel(1, channel, marker)], 1, pixel_um=1e-5)
    said = config_text(recognised, metadata, [], 1)
    config = yaml.safe_load(said)
    assert config == {
        **{"samples": "samples.tsv", "tiles": "tiles.csv", "markers": "markers.csv"},
        "results": "results",
        "acquisition": {
            **{"convention": "pattern", "pattern": pattern, "pixel_um": 1e-5},
            "reference_cycle": 1,
        },
        "deconvolve": {"method": "none"},
    }
    assert all(line.isprintable() for line in said.split("\n"))
    readme = readme_text("x", Path(folder), Notes(warnings, warnings, warnings))
    assert all(line.isprintable() for line in readme.split("\n"))


@given(texts, st.integers(1, 40))
def test_printable_is_one_line_of_at_most_so_many_letters(text: str, most: int) -> None:
    line = printable(text, most)
    assert line.isprintable()
    assert len(line) <= most
    line.encode()
    if text.isprintable() and len(text) <= most:
        assert line == text


def test_a_marker_of_any_text_is_one_that_the_table_takes(tmp_path: Path) -> None:
    codex(tmp_path / "raw")
    codex(tmp_path / "raw", name="1_00001_Z001_CH2.tif")
    odd = '"\x07,\x1b]0;x' + "x" * 200
    (tmp_path / "raw/channelnames.txt").write_text(f"{odd}\n{odd}\n")
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    mark_references(result.markers)
    names = [channel.marker for channel in read_markers(result.markers)]
    assert len(set(names)) == 2
    with result.markers.open(newline="") as stream:
        assert [row["marker"] for row in csv.DictReader(stream)] == names
