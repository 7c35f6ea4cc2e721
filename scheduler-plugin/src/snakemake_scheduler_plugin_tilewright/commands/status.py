"""How far a run is, from another terminal or after its end."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..runtime.cause import failed_since
from ..runtime.ledger import LEDGER, STATE, failure_lines, read_ledger
from ..runtime.run_state import RunState, read_state, span_text
from ..runtime.words import printable
from .checks import plain


def show_status(results: Path) -> None:
    """Print how far the last run into a results folder is.

    A folder in which any other workflow was placed may be given too.
    """
    folders = (results / "placement", results / LEDGER.parent)
    found = next((folder for folder in folders if (folder / STATE).is_file()), None)
    if found is None:
        raise SystemExit(
            f"status: no run of tilewright has written in {results.absolute()} "
            "how far it is; name the folder in which snakemake was started (with the workflow of "
            "tilewright: its results folder), and wait until its first jobs were sent"
        )
    try:
        state = read_state(found / STATE)
    except (OSError, ValueError) as error:
        raise SystemExit(f"status: {printable(error)}") from None
    ledger = Path(state.ledger) if state.ledger else found / LEDGER.name
    events = read_ledger(ledger)
    own = (event for event in events if event["time_s"] >= state.began_s)
    failed = failure_lines(own, ended=state.ended)
    if not failed and not state.complete and (results / "logs").is_dir():
        failed = list(failed_since(results / "logs", state.began_s))
    print_status(state, [*failed, *filter(None, [events.note])], time.time(), Console())


def print_status(state: RunState, failures: Sequence[str], now_s: float, console: Console) -> None:
    """Print a state: what became of the run, jobs by rule, what waits and what failed."""
    console.print(plain(_what(state, now_s)))
    console.print(plain(state.line()))
    table = Table.grid(padding=(0, 2, 0, 0))
    for rule, count in state.jobs.items():
        table.add_row(plain(rule), f"{state.done.get(rule, 0)}/{count}")
    console.print(table)
    for text in failures:
        console.print(plain(text))


def _what(state: RunState, now_s: float) -> str:
    """Return what became of a run."""
    begun = f"begun {_clock(state.began_s)}"
    if state.ended:
        how = "complete" if state.complete else "ended before all was done"
        return f"{how}: {begun}, ended {_clock(state.at_s)}"
    age = span_text(max(0.0, now_s - state.at_s))
    match state.life(now_s):
        case "killed":
            return f"ended without writing its end; it was probably killed: {begun}, {state.where}"
        case "silent":
            return f"not heard of for {age}; look whether it still runs: {begun}, {state.where}"
        case _:
            return f"running: {begun}, {state.where}, seen {age} ago"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
