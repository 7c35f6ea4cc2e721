from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest

from tests.support.report_pages import GOOD, Page, make_inputs
from tilewright.io.results.ome_zarr import create_image
from tilewright.report.figures import render
from tilewright.report.page.html import write_report

CHANNELS = [
    {"cycle": c, "channel": str(k), "marker": name}
    for c, k, name in [(1, 1, "DAPI-1"), (1, 2, "CD3<&>"), (2, 1, "DAPI-2"), (2, 2, "PanCK")]
]


def make_image(path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [str(c["marker"]) for c in CHANNELS]
    with create_image(path, (300, 400), np.uint16, 128, (0.4, 0.4), names, name="s") as writer:
        for k in range(len(names)):
            block = rng.integers(0, 1000, (300, 400)).astype(np.uint16)
            for y in range(0, 300, 128):
                for x in range(0, 400, 128):
                    writer.write(k, y, x, block[y : y + 128, x : x + 128])


def report(folder: Path, values: dict[tuple[str, int, str], float | None], **options: Any) -> str:
    jsons, pngs = make_inputs(folder, values)
    write_report(
        jsons,
        pngs,
        options.get("images", {}),
        CHANNELS,
        folder / "report.html",
        title="Tonsil <pilot>",
        reference_cycle=1,
        reference_channel="1",
        software={"tilewright": "0.1.0"},
        config_text="qc: {on_fail: stop}\n</pre><script>alert(1)</script>",
    )
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    image = tmp_path / "image.ome.zarr"
    make_image(image)
    text = report(tmp_path, GOOD, images={"tonsil": image})
    page = Page(text)
    bare = re.sub(r"data:image/webp;base64,[A-Za-z0-9+/=]+", "", text)
    assert "://" not in bare
    assert "@import" not in bare
    assert "url(" not in bare
    assert {"script", "link", "iframe"}.isdisjoint(tag for tag, _ in page.tags)
    sources = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(sources) == 1 + len(CHANNELS) + 3  # composite, channels, figures of GOOD
    for source in sources:
        assert source is not None
        code = base64.b64decode(source.removeprefix("data:image/webp;base64,"))
        assert imagecodecs.webp_decode(code).ndim == 3


def test_headings_descend_one_step_at_a_time_and_images_are_described(tmp_path: Path) -> None:
    image = tmp_path / "image.ome.zarr"
    make_image(image)
    page = Page(report(tmp_path, GOOD, images={"tonsil": image}))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"]) for tag, a in page.tags if tag == "a" and a.get("href")]
    assert {t[1:] for t in targets} <= set(ids)


def test_all_good_says_so(tmp_path: Path) -> None:
    page = Page(report(tmp_path, GOOD))
    assert "1 sample, 3 checks: all within their limits." in page.text
    assert "NOT REGISTERED" not in page.text


def test_the_first_screen_names_what_failed_before_what_warns(tmp_path: Path) -> None:
    values = {**GOOD, ("stitch", 1, "focus"): None, ("register", 2, "ncc"): 0.1}
    page = Page(report(tmp_path, values))
    assert "4 checks: 1 fail, 1 warn." in page.text
    first = page.text.split("How this was made")[0]
    assert first.index("nuclei of this cycle do not lie") < first.index("could not be computed")


def test_an_unregistered_cycle_is_a_red_banner(tmp_path: Path) -> None:
    page = Page(report(tmp_path, {**GOOD, ("register", 2, "unregistered"): 1.0}))
    assert "NOT REGISTERED: cycle 2." in page.text
    assert ("p", {"class": "banner", "role": "alert"}) in page.tags


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    text = report(tmp_path, GOOD)
    assert "<script>" not in text
    assert "CD3&lt;&amp;&gt;" in text
    assert "Tonsil <pilot>" in Page(text).text


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts.append(report(tmp_path / name, GOOD))
    assert texts[0] == texts[1]
    assert not list(tmp_path.rglob("*.partial"))


def test_several_samples_stay_apart(tmp_path: Path) -> None:
    one = make_inputs(tmp_path, GOOD, "a_1")
    two = make_inputs(tmp_path, {("stitch", 1, "seam"): 99.0}, "b 2")
    write_report(
        [*one[0], *two[0]],
        [*one[1], *two[1]],
        {},
        CHANNELS,
        tmp_path / "report.html",
        title="Two",
        reference_cycle=1,
        reference_channel="1",
        software={},
        config_text="",
    )
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "2 samples, 4 checks: 1 fail." in page.text
    assert "All 3 checks are within their limits." in page.text


def test_lists_of_other_length_are_refused(tmp_path: Path) -> None:
    jsons, pngs = make_inputs(tmp_path, GOOD)
    with pytest.raises(ValueError, match="zip"):
        write_report(
            jsons,
            pngs[1:],
            {},
            [],
            tmp_path / "r.html",
            title="",
            reference_cycle=1,
            reference_channel="1",
            software={},
            config_text="",
        )


def test_composite_leaves_out_what_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "image.ome.zarr"
    make_image(path)
    rendering = render(path, 0, [2])
    assert [name for name, _ in rendering.key] == ["DAPI-1", "CD3<&>", "PanCK"]
    assert len(rendering.channels) == 4
    assert [name for name, _ in render(path, 0, [1, 2]).key] == ["DAPI-1", "PanCK"]
    assert render(path, 2).key[0][0] == "DAPI-2"


def test_the_picture_has_the_nuclei_of_the_reference_cycle_only(tmp_path: Path) -> None:
    image = tmp_path / "image.ome.zarr"
    make_image(image)
    text = report(tmp_path, GOOD, images={"tonsil": image})
    shown = re.findall(r'alt="Registered image of tonsil: ([^"]*)"', text)
    assert shown
    assert all("DAPI-1" in names and "DAPI-2" not in names for names in shown)
