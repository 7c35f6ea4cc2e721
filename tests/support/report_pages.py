"""Inputs of the report, and its page as a reader sees it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tilewright.report.figures import new_figure, save_png
from tilewright.report.judge import Quality, write_quality
from tilewright.report.verdict import Subject, resolve_thresholds

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting, and gathers what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

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
    folder: Path, values: dict[tuple[str, int, str], float | None], sample: str = "tonsil"
) -> tuple[list[Path], list[Path]]:
    """Write a quality file and a picture per stage and cycle; keys are (stage, cycle, metric)."""
    limits = resolve_thresholds({})
    jsons, pngs = [], []
    for stage, cycle in sorted({key[:2] for key in values}):
        items = tuple(
            Subject(sample, cycle, stage, limits).judge(metric, value)
            for (s, c, metric), value in values.items()
            if (s, c) == (stage, cycle)
        )
        jsons.append(folder / f"{sample}_{stage}_{cycle}.json")
        pngs.append(jsons[-1].with_suffix(".png"))
        write_quality(jsons[-1], Quality(sample, cycle, stage, items, {}, f"Picture of {stage}"))
        figure = new_figure(3, 2)
        figure.subplots().plot([0, 1], [0, cycle])
        save_png(figure, pngs[-1])
    return jsons, pngs


GOOD: dict[tuple[str, int, str], float | None] = {
    ("stitch", 1, "seam"): 1.0,
    ("stitch", 2, "seam"): 1.0,
    ("register", 2, "ncc"): 0.95,
}
