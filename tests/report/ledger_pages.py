"""The report of a run whose ledger is written here."""

from __future__ import annotations

from pathlib import Path

from tests.support.report_pages import GOOD, make_inputs
from tilewright.report.page.html import write_report


def page(folder: Path, ledger: Path | None, devices: Path | None = None) -> str:
    folder.mkdir(exist_ok=True)
    jsons, pngs = make_inputs(folder, GOOD)
    write_report(
        jsons, pngs, {}, [], folder / "report.html", title="t", reference_cycle=1,
        reference_channel="1", software={}, config_text="", ledger=ledger,
        devices=devices,
    )  # fmt: skip
    return (folder / "report.html").read_text(encoding="utf-8")
