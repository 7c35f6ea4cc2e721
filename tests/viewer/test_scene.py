"""What the viewer shows of results that the project's own writers made."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.viewer.viewed_results import CHANNELS, SHAPE, SHIFT, add_quality, make_image
from tilewright.config.layout import Layout
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.zarr_store import OmeZarrVersion
from tilewright.kernels.register.warp import Transform
from tilewright.report import quality
from tilewright.report.figures import display_range
from tilewright.viewer import scene
from tilewright.viewer.scene import ViewError, build_scene, find_samples, in_reference


def path_of(folder: Path, name: str) -> Path:
    return Path(getattr(Layout(str(folder)), name).format(sample="tonsil"))


@pytest.mark.parametrize(("version", "zarr_format"), [("0.4", 2), ("0.5", 3)])
def test_an_image_alone(tmp_path: Path, version: OmeZarrVersion, zarr_format: int) -> None:
    path = make_image(tmp_path, "tonsil", version)
    assert find_samples(tmp_path) == ["tonsil"]
    scene = build_scene(tmp_path, "tonsil")
    assert scene.zarr_format == zarr_format
    assert (scene.shape_px, scene.pixel_um) == (SHAPE, (0.4, 0.5))
    assert [channel.name for channel in scene.channels] == [c["marker"] for c in CHANNELS]
    assert [channel.cycle for channel in scene.channels] == [1, 1, 2, 2]
    # The nuclear stain of the second cycle would hide the markers.
    assert [channel.visible for channel in scene.channels] == [True, True, False, True]
    shown = [channel.colour for channel in scene.channels if channel.visible]
    assert len(set(shown)) == len(shown)
    smallest = open_image(path).levels[-1]
    for k, channel in enumerate(scene.channels):
        assert (channel.low, channel.high) == display_range(np.asarray(smallest[k]))
        assert channel.high < channel.top <= 65535
    assert (scene.places, scene.judged) == ([], False)


def test_places_lie_in_the_final_image_and_the_failed_come_first(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    add_quality(tmp_path, "tonsil", seam=1e4)
    # A channel that the image lacks.
    with path_of(tmp_path, "trusted_markers").open("a") as table:
        table.write("tonsil,3,2,Blank,pass,\n")
    scene = build_scene(tmp_path, "tonsil")
    assert scene.judged
    assert [place.verdict for place in scene.places] == ["fail"] * 3 + ["pass"]
    seam, *_, match = scene.places
    assert seam.title.startswith("Cycle 2, Pan CK/8: strongest step at a tile border, 1e+04")
    assert (seam.y_px, seam.x_px) == pytest.approx((200 - SHIFT[0], 300 - SHIFT[1]), abs=0.01)
    assert list(seam.colours) == [3]
    # The stage "register" names places of the reference.
    assert match.title == "Cycle 2: weakest match of nuclei, NCC 0.95"
    assert (match.y_px, match.x_px, list(match.colours)) == (350, 450, [0, 2])
    verdicts = [channel.verdict for channel in scene.channels]
    assert "" not in verdicts
    assert (verdicts[3], scene.channels[3].visible) == ("fail", False)
    # What is sent is plain data.
    assert {type(c["low"]) for c in dataclasses.asdict(scene)["channels"]} == {float}


def test_every_kind_of_place_that_checks_name_has_a_title() -> None:
    named = {
        name
        for path in Path(quality.__path__[0]).glob("*.py")
        for name in re.findall(r'\bPlace\(\s*"(\w+)"', path.read_text())
    }
    assert {"dark_rings", "lost_tissue", "ncc"} <= named <= scene._TITLES.keys()


def test_of_what_passes_only_the_worst_place_is_listed(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    add_quality(tmp_path, "tonsil")
    places = build_scene(tmp_path, "tonsil").places
    assert [place.title for place in places] == [
        "Cycle 2: weakest match of nuclei, NCC 0.95",
        "Cycle 2, Pan CK/8: strongest step at a tile border, 3 times chance",
    ]


def test_the_place_in_the_reference_is_exact_under_elastic_deformation() -> None:
    rng = np.random.default_rng(0)
    field = rng.normal(0, 3, (2, 8, 8)).astype(np.float32)
    rotated = np.array([[0.999, 0.05, 12.0], [-0.05, 0.999, -7.0]])
    bent = Transform(rotated, field, np.zeros(2), 100.0, np.ones((8, 8), np.float32))
    for moving in rng.uniform(50, 600, (20, 2)):
        found = np.array([in_reference(bent, *moving.tolist())])
        assert np.abs(bent.points(found) - moving).max() < 0.01


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    def refused(folder: Path, words: str) -> None:
        with pytest.raises(ViewError, match=words):
            find_samples(folder)

    refused(tmp_path / "absent", "is no folder")
    refused(tmp_path, "holds no registered image; run `snakemake registration`")
    tiff = path_of(tmp_path, "image_tiff")
    tiff.parent.mkdir(parents=True)
    tiff.touch()
    refused(tmp_path, f"{tiff} is there, but not the OME-Zarr")
    shutil.rmtree(tmp_path / "tonsil")
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    make_image(elsewhere, "tonsil")
    (tmp_path / "tonsil").symlink_to(elsewhere / "tonsil")
    refused(tmp_path, f"leads out of the results folder, to {elsewhere}")


def without(*keys: Any) -> Callable[[str], str]:
    """Return a change of JSON that takes out what lies at a path of keys."""

    def harm(text: str) -> str:
        content = json.loads(text)
        content["numbers"].sort(key=lambda numbers: numbers["stage"] != "stitch")
        part = content
        for key in keys[:-1]:
            part = part[key]
        del part[keys[-1]]
        return json.dumps(content)

    return harm


SUMMARY = r" is no summary of quality \(%s\); delete it to have it made again$"
TABLE = r" is no table of channels \(no 'marker\w*'\)"


@pytest.mark.parametrize(
    ("name", "harm", "told"),
    [
        ("qc_json", lambda _: "{}", SUMMARY % "no 'items'"),
        ("qc_json", without("items", 1, "verdict"), SUMMARY % "row 2 of items has no 'verdict'"),
        ("qc_json", without("numbers", 0, "stage"), SUMMARY % "row 1 of numbers has no 'stage'"),
        (
            "qc_json",
            without("numbers", 0, "2", "places", 0, "x_px"),
            SUMMARY % "row 1 of the places of stage stitch, cycle 2, has no 'x_px'",
        ),
        ("trusted_markers", lambda _: "sample,cycle_number\ntonsil,1\n", TABLE),
        ("image_markers", lambda _: "sample,cycle_number\ntonsil,1\n", TABLE),
        (
            "image_markers",
            lambda _: "channel_number,cycle_number,marker_name\n1,1,Other\n",
            " does not list the image's channels",
        ),
        ("image_zarr", lambda _: "{}", ".*multiscales"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, harm: Callable[[str], str], told: str
) -> None:
    make_image(tmp_path, "tonsil")
    if not name.startswith("image"):
        add_quality(tmp_path, "tonsil")
    path = path_of(tmp_path, name)
    harmed = path / ".zattrs" if path.is_dir() else path
    harmed.write_text(harm(harmed.read_text()))
    with pytest.raises(ViewError, match=rf"^tonsil cannot be shown: (file://)?{path}{told}"):
        build_scene(tmp_path, "tonsil")
