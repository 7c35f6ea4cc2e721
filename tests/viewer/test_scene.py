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
    scene = build_scene(tmp_path, "tonsil")
    assert scene.judged
    assert [place.verdict for place in scene.places] == ["fail"] * 3 + ["pass"]
    seam, *_, match = scene.places
    assert seam.title.startswith("Cycle 2, Pan CK/8: strongest step at a tile border, 1e+04")
    assert (seam.y_px, seam.x_px) == pytest.approx((200 - SHIFT[0], 300 - SHIFT[1]), abs=0.01)
    assert list(seam.colours) == [3]
    # The stage "register" names places of the reference.
    assert (match.title, match.y_px, match.x_px) == (
        "Cycle 2: weakest match of nuclei, NCC 0.95",
        350,
        450,
    )
    assert list(match.colours) == [0, 2]
    assert scene.channels[3].verdict == "fail"
    assert not scene.channels[3].visible


def test_verdicts_of_channels_that_the_image_lacks_are_left_out(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    add_quality(tmp_path, "tonsil", seam=1e4)
    with Path(Layout(str(tmp_path)).trusted_markers).open("a") as table:
        table.write("tonsil,3,2,Blank,pass,\n")
    verdicts = [channel.verdict for channel in build_scene(tmp_path, "tonsil").channels]
    assert "" not in verdicts
    assert verdicts[3] == "fail"


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


def test_what_cannot_be_shown_is_said_in_one_sentence(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))

    def refused() -> str:
        with pytest.raises(ViewError) as told:
            find_samples(tmp_path)
        return str(told.value)

    with pytest.raises(ViewError, match="is no folder"):
        find_samples(tmp_path / "absent")
    assert "holds no registered image; run `snakemake registration`" in refused()
    tiff = Path(layout.image_tiff.format(sample="tonsil"))
    tiff.parent.mkdir(parents=True)
    tiff.touch()
    assert f"{tiff} is there, but not the OME-Zarr" in refused()
    shutil.rmtree(tmp_path / "tonsil")

    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    make_image(elsewhere, "tonsil")
    (tmp_path / "tonsil").symlink_to(elsewhere / "tonsil")
    assert f"leads out of the results folder, to {elsewhere}" in refused()

    quality_file = Path(Layout(str(elsewhere)).qc_json)
    quality_file.write_text("{}")
    with pytest.raises(ViewError, match=rf"{quality_file} is no summary .*no 'items'\); delete it"):
        build_scene(elsewhere, "tonsil")
    quality_file.unlink()
    table = Path(Layout(str(elsewhere)).image_markers.format(sample="tonsil"))
    table.write_text("channel_number,cycle_number,marker_name\n1,1,Other\n")
    with pytest.raises(ViewError, match=r"markers\.csv does not list the image's channels"):
        build_scene(elsewhere, "tonsil")
    (elsewhere / "tonsil/registration/tonsil.ome.zarr/.zattrs").write_text("{}")
    with pytest.raises(ViewError, match=r"tonsil cannot be shown: .*multiscales"):
        build_scene(elsewhere, "tonsil")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda content: content["items"][1].pop("verdict"), "row 2 of items has no 'verdict'"),
        (lambda content: content["numbers"][0].pop("stage"), "row 1 of numbers has no 'stage'"),
        (
            lambda content: content["numbers"][0]["2"]["places"][0].pop("x_px"),
            "row 1 of the places of stage stitch, cycle 2, has no 'x_px'",
        ),
    ],
)
def test_a_row_of_the_summary_that_lacks_a_key_is_named(
    tmp_path: Path, damage: Callable[[Any], None], told: str
) -> None:
    make_image(tmp_path, "tonsil")
    add_quality(tmp_path, "tonsil")
    path = Path(Layout(str(tmp_path)).qc_json)
    content = json.loads(path.read_text())
    content["numbers"].sort(key=lambda numbers: numbers["stage"] != "stitch")
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ViewError) as refused:
        build_scene(tmp_path, "tonsil")
    sentence = f"{path} is no summary of quality ({told}); delete it to have it made again"
    assert str(refused.value) == f"tonsil cannot be shown: {sentence}"


@pytest.mark.parametrize("template", ["trusted_markers", "image_markers"])
def test_a_table_of_channels_that_lacks_a_column_is_named(tmp_path: Path, template: str) -> None:
    make_image(tmp_path, "tonsil")
    path = Path(getattr(Layout(str(tmp_path)), template).format(sample="tonsil"))
    path.write_text("sample,cycle_number\ntonsil,1\n")
    with pytest.raises(ViewError, match=rf"{path} is no table of channels \(no 'marker\w*'\)"):
        build_scene(tmp_path, "tonsil")


def test_a_scene_is_plain_data(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    add_quality(tmp_path, "tonsil")
    scene = dataclasses.asdict(build_scene(tmp_path, "tonsil"))
    assert {type(channel["low"]) for channel in scene["channels"]} == {float}
