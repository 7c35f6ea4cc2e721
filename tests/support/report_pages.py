"""Inputs of the report, and its page as a reader sees it."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np

from tilewright.quality.evaluate import QcRecord, write_qc
from tilewright.quality.results import QcContext, resolve_thresholds
from tilewright.report.page.html import ReportInputs, write_report

VOID = {"meta", "img", "br", "link", "hr", "input"}
#: (stage, cycle, metric) to value.
Values = dict[tuple[str, int, str], float | None]
GOOD: Values = {
    ("stitch", 1, "tile_brightness"): 0.1,
    ("stitch", 2, "tile_brightness"): 0.1,
    ("register", 2, "poor_blocks"): 0.0,
}


class Page(HTMLParser):
    """Checks nesting and the order of headings, and gathers what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []
        levels = [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert all(1 < b <= a + 1 for a, b in itertools.pairwise(levels))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data


def make_inputs(
    folder: Path, values: Values, sample: str = "tonsil"
) -> tuple[list[Path], list[Path]]:
    """Write a quality file and a picture per stage and cycle."""
    folder.mkdir(exist_ok=True)
    limits = resolve_thresholds({})
    jsons = []
    for stage, cycle in sorted({key[:2] for key in values}):
        context = QcContext(sample, cycle, stage, limits)
        items = [
            context.evaluate(key[2], v) for key, v in values.items() if key[:2] == (stage, cycle)
        ]
        jsons.append(folder / f"{sample}_{stage}_{cycle}.json")
        found = QcRecord(sample, cycle, stage, tuple(items), {}, f"Picture of {stage}")
        write_qc(jsons[-1], found)
        picture = np.full((20, 30, 3), 40 * cycle, np.uint8)
        jsons[-1].with_suffix(".png").write_bytes(imagecodecs.png_encode(picture))
    return jsons, [path.with_suffix(".png") for path in jsons]


def report(folder: Path, *inputs: tuple[list[Path], list[Path]], **options: Any) -> str:
    """Write the report of such inputs, of ``GOOD`` without any, and return its HTML."""
    made = inputs or (make_inputs(folder, GOOD),)
    jsons, pngs = ([path for paths in kind for path in paths] for kind in zip(*made, strict=True))
    values = {
        "images": {}, "channels": [], "reference_cycle": 1,
        "reference_channels": dict.fromkeys((1, 2, 3), "1"),
        "software": {}, "config_text": "", **options,
    }  # fmt: skip
    sources = ReportInputs(quality_paths=jsons, picture_paths=pngs, **values)
    write_report(sources, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")
