import base64
import re
from pathlib import Path

import imagecodecs
import numpy as np
import pytest

from tests.support.report_pages import GOOD, Page, Values, make_inputs, report
from tilewright.io.results.ome_zarr import create_image
from tilewright.report.pictures import render

CHANNELS = [
    {"cycle": c, "channel": str(k), "marker": name}
    for c, k, name in [(1, 1, "DAPI-1"), (1, 2, "CD3<&>"), (2, 1, "DAPI-2"), (2, 2, "PanCK")]
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.ome.zarr"
    names = [str(c["marker"]) for c in CHANNELS]
    pixels = np.random.default_rng(0).integers(0, 1000, (len(names), 300, 400)).astype(np.uint16)
    with create_image(path, (300, 400), np.uint16, 128, (0.4, 0.4), names, name="s") as writer:
        writer.write(0, 0, 0, pixels)
    return path


def test_the_page_needs_nothing_else_and_describes_its_images(tmp_path: Path, image: Path) -> None:
    text = report(
        tmp_path,
        images={"tonsil": image},
        channels=CHANNELS,
        software={"tilewright": "0.1.0"},
        config_text="qc: {on_fail: stop}\n</pre><script>alert(1)</script>",
    )
    page = Page(text)
    bare = re.sub(r"data:image/webp;base64,[A-Za-z0-9+/=]+", "", text)
    assert not [word for word in ("://", "@import", "url(", "<script>") if word in bare]
    assert {"script", "link", "iframe"}.isdisjoint(tag for tag, _ in page.tags)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 1 + len(CHANNELS) + 3  # composite, channels, pictures of GOOD
    for attrs in images:
        assert attrs["alt"]
        code = base64.b64decode(str(attrs["src"]).removeprefix("data:image/webp;base64,"))
        assert imagecodecs.webp_decode(code).ndim == 3
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"]) for tag, a in page.tags if tag == "a" and a.get("href")]
    assert {t[1:] for t in targets} <= set(ids)
    assert "CD3&lt;&amp;&gt;" in text
    # The nuclei of the reference cycle alone.
    shown = re.findall(r'alt="Registered image of tonsil: ([^"]*)"', text)
    assert shown
    assert all("DAPI-1" in names and "DAPI-2" not in names for names in shown)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, ["1 sample, 3 checks: all within their limits."]),
        # What failed stands before what warns.
        (
            {("stitch", 1, "focus"): None, ("register", 2, "poor_blocks"): 0.9},
            ["4 checks: 1 fail, 1 warn.", "nuclei do not lie", "could not be comp"],
        ),
        ({("register", 2, "unregistered"): 1.0}, ["NOT REGISTERED: cycle 2."]),
    ],
)
def test_the_first_screen_says_what_is_bad(tmp_path: Path, bad: Values, said: list[str]) -> None:
    page = Page(report(tmp_path, make_inputs(tmp_path, GOOD | bad), channels=CHANNELS))
    first = page.text.split("How this was made")[0]
    assert re.search(".*".join(map(re.escape, said)), first, re.DOTALL)
    unregistered = ("register", 2, "unregistered") in bad
    assert ("NOT REGISTERED" in page.text) == unregistered
    assert (("p", {"class": "banner", "role": "alert"}) in page.tags) == unregistered


def test_several_samples_stay_apart(tmp_path: Path) -> None:
    inputs: dict[str, Values] = {"a_1": GOOD, "b 2": {("stitch", 1, "tile_brightness"): 99.0}}
    made = [make_inputs(tmp_path, values, name) for name, values in inputs.items()]
    page = Page(report(tmp_path, *made, channels=CHANNELS))
    assert "2 samples, 4 checks: 1 fail." in page.text
    assert "All 3 checks are within their limits." in page.text


def test_composite_leaves_out_what_it_is_told(image: Path) -> None:
    rendering = render(image, 0, [2])
    assert [name for name, _ in rendering.key] == ["DAPI-1", "CD3<&>", "PanCK"]
    assert len(rendering.channels) == 4
    assert [name for name, _ in render(image, 0, [1, 2]).key] == ["DAPI-1", "PanCK"]
    assert render(image, 2).key[0][0] == "DAPI-2"
