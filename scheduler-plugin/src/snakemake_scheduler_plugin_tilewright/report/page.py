"""The page of where jobs ran, and its table as CSV next to it."""

import itertools
from pathlib import Path
from typing import Any

import jinja2

from ..runtime.files import write_text_atomic
from ..runtime.ledger import read_ledger
from ..runtime.run_state import span_text
from ..runtime.words import count
from .gantt import colours_of, draw_gantt
from .runs import as_csv, cluster_runs, rows_of


def environment(*folders: Path) -> jinja2.Environment:
    """Return the templates of some folders besides those of here.

    A ``style.css`` there adds to the style of all pages. The filter ``span`` writes a length of
    time with its unit.
    """
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent / "templates", *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    found.filters["span"] = span_text
    return found


def run_section(ledger: Path, page: Path) -> dict[str, Any] | None:
    """Write the table next to a page, and return what the page says of the runs on a cluster.

    Returns None and writes nothing where no job ended on one.

    Parameters
    ----------
    ledger : Path
        Need not exist.
    page : Path
    """
    events = read_ledger(ledger)
    runs = [run for run in cluster_runs(events) if run.tries]
    if not runs:
        return None
    tries = [one for run in runs for one in run.tries]
    colours = colours_of(one.rule for one in tries)
    rows, table = rows_of(runs, colours), page.with_suffix(".jobs.csv")
    pools = itertools.groupby(rows, lambda row: (row.account, row.device))
    write_text_atomic(table, as_csv(rows))
    jobs = count(len(tries), "job")
    took = span_text(sum(run.span_s for run in runs))
    lead = f"{jobs} in {count(len(runs), 'run')} that took {took}."
    return {
        "lead": lead,
        "picture": draw_gantt(runs[-1], colours, lead),
        "number": runs[-1].number,
        "note": events.note,
        "csv": table.name,
        "pools": [list(own) for _, own in pools],
    }


def write_run_report(ledger: Path, output: Path) -> None:
    """Write the page (HTML) of the runs of any workflow, from the ledger of their placement."""
    found = run_section(ledger, output)
    if found is None:
        state = "holds no job that ended" if ledger.is_file() else "does not exist"
        raise SystemExit(f"run-report: {ledger} {state}; name the ledger.jsonl of a run")
    page = environment().get_template("run.html")
    write_text_atomic(output, page.render(title="Where it ran", ran=found))
