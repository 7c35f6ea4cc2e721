"""A page of HTML that needs nothing else."""

from __future__ import annotations

from pathlib import Path

import jinja2

from snakemake_scheduler_plugin_tilewright.report.run_section import run_section
from snakemake_scheduler_plugin_tilewright.runtime.files import write_text_atomic


def environment(*folders: Path) -> jinja2.Environment:
    """Return the templates of some folders beside those of here; ``style`` is the style of all."""
    every = [Path(__file__).parent / "templates", *folders]
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(every),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    styles = (
        folder / f"{name}.css" for folder, name in zip(every, ("page", "style"), strict=False)
    )
    found.globals["style"] = "".join(path.read_text(encoding="utf-8") for path in styles)
    return found


def write_run_report(ledger: Path, output: Path) -> None:
    """Write the page of the runs of any workflow, from the ledger of their placement.

    Parameters
    ----------
    output : Path
        The HTML file.

    Raises
    ------
    ValueError
        The ledger is absent, or no job of it ended.
    """
    found = run_section(ledger) if ledger.is_file() else None
    if found is None:
        state = "holds no job that ended" if ledger.is_file() else "does not exist"
        raise ValueError(f"{ledger} {state}; name the ledger.jsonl of a run")
    page = environment().get_template("run.html")
    write_text_atomic(output, page.render(title="Where it ran", ran=found))
