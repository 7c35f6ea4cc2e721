"""Jobs that write into a folder before a run begins there: whose they are, and their end.

A coordinator that was killed leaves its jobs to Slurm. Those of one that is active look alike.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from .placement.cluster import own_client
from .runtime.errors import PlacementError, SlurmQueryError
from .runtime.ledger import LEDGER, STATE
from .runtime.run_state import RunState, read_state, span_text
from .runtime.snakemake_adapter import is_locked
from .runtime.words import count, printable
from .slurm.jobs import SlurmJob
from .slurm.query import SlurmClient, has_slurm

#: Numbers and names of the jobs that Slurm took from a folder.
_SUBMITTED = "submitted"
_RESUME = """\
the folder is still locked; unless a run is active in it, run the same command twice:
  snakemake … --unlock
  snakemake … --rerun-incomplete"""


@dataclass(frozen=True)
class Sender:
    """The run that sent the jobs of a folder, as far as is known here; None: not known."""

    active: bool | None
    words: str = "of an earlier run"
    """After "jobs": whose they are."""
    stop: str = ""
    """How to stop it; empty where it has ended."""

    def listed(self, jobs: Sequence[SlurmJob], workdir: str) -> str:
        """Return how many jobs there are, whose, and a line for each."""
        lines = [f"{count(len(jobs), 'job')} {self.words} may still write into {workdir}:"]
        lines += [f"  {job.id}  {job.state:<10} {job.comment}" for job in jobs]
        return "\n".join(map(printable, lines))

    @property
    def advice(self) -> str:
        """What can be done about its jobs."""
        wait = "wait until they have ended (`tilewright-placement orphaned` lists them)"
        if self.active:
            return f"{wait}, or stop that run, which ends them: {self.stop}"
        end = "end them with `tilewright-placement orphaned --cancel`"
        if self.active is None:
            return f"{wait}; only where that run is not active, {end}"
        return f"{wait}, or {end}"


def sender_of(folder: Path, *, has_lock: bool = False) -> Sender:
    """Return the run that sent the jobs of a folder.

    A run says itself in its working directory that it is active. Snakemake's lock says less: a run
    that was killed leaves it, and some take none.

    Parameters
    ----------
    has_lock : bool
        Whether this process itself has locked the folder.
    """
    state, now_s = None, time.time()
    with contextlib.suppress(ValueError):  # one that is damaged says nothing
        state = _state_of_another(folder / LEDGER.with_name(STATE))
    life = state.life(now_s) if state else "ended"
    if state and life == "active":
        age = span_text(max(0.0, now_s - state.at_s))
        words = f"of the run that is active now ({state.where}, seen {age} ago)"
        return Sender(True, words, state.stop)
    if state and life == "silent":
        silent = span_text(now_s - state.at_s)
        why = f"{state.where} was last heard of {silent} ago, and cannot be seen from here"
        return Sender(None, f"of a run that may be active ({why})")
    if life == "ended" and not has_lock and is_locked(folder):
        why = "the folder is locked; the run that locked it cannot be seen, or was killed"
        return Sender(None, f"of a run that may be active ({why})")
    return Sender(False)


def _state_of_another(path: Path) -> RunState | None:
    """Return what another process last wrote of its run, None where none did.

    Raises
    ------
    ValueError
        The file is damaged, or of a later version.
    """
    try:
        state = read_state(path)
    except OSError:
        return None
    own = state.pid == os.getpid() and state.host == socket.gethostname()
    return None if own else state


def refuse_second_run(ledger: Path) -> str:
    """Refuse a run while one of another working directory may write the same results.

    Snakemake's lock keeps runs of one working directory apart.

    Parameters
    ----------
    ledger : Path
        Next to it each run says how far it is.

    Returns
    -------
    str
        The other working directory of an earlier run, whose jobs may be there still; "" for none.

    Raises
    ------
    PlacementError
        There is such a run, or it is not known whether it still is.
    """
    path, now_s = ledger.absolute().with_name(STATE), time.time()
    try:
        state = _state_of_another(path)
    except ValueError as error:
        raise PlacementError(f"{printable(error)} if no run is active") from None
    if state is None or state.folder in ("", str(Path.cwd())):
        return ""
    life, age = state.life(now_s), span_text(max(0.0, now_s - state.at_s))
    if life in ("ended", "killed"):
        return state.folder
    where = "" if life == "active" else ", and cannot be seen from here"
    raise PlacementError(
        printable(
            f"a run in {state.folder} ({state.where}, seen {age} ago{where}) writes the same "
            f"results; wait for its end, stop it ({state.stop}), name another folder for the "
            f"results, or remove {path} if that run does not write here any more"
        )
    )


def active_run(ledger: Path) -> str:
    """Return the run of another process that writes there now, "" where none is known."""
    with contextlib.suppress(ValueError):
        state = _state_of_another(ledger.absolute().with_name(STATE))
        if state and state.life(time.time()) == "active":
            return f"in {state.folder} ({state.where})"
    return ""


def before_run(client: SlurmClient, folder: Path, ledger: Path = LEDGER) -> None:
    """Refuse a run while another one, or jobs of one, may write into its folders.

    Parameters
    ----------
    folder : Path
        The working directory, which this run has locked.
    ledger : Path
        Where decisions are written.

    Raises
    ------
    PlacementError
        There are such runs or jobs, the queue is not known, or the working directory has a line
        break in its name.
    """
    other = refuse_second_run(ledger)
    if "\n" in str(folder):
        raise PlacementError(
            f"the working directory {str(folder)!r} has a line break in its name, which squeue "
            "cannot tell from the end of a job; rename it"
        )
    for workdir in filter(None, (str(folder), other)):
        if jobs := find_orphaned(client, workdir):
            sender = sender_of(Path(workdir), has_lock=workdir == str(folder))
            unlock = "" if sender.active else "; then unlock with --unlock if Snakemake asks for it"
            there = f"; these commands are for the folder {workdir}" * (workdir == other)
            listed = sender.listed(jobs, workdir)
            raise PlacementError(f"{listed}\n{sender.advice}{there}{unlock}")
    (folder / LEDGER.parent / _SUBMITTED).unlink(missing_ok=True)


def note_submission(folder: Path, slurm_id: int, name: str) -> None:
    """Note a job that Slurm took, before anything else happens: it may be all that is left."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _SUBMITTED).open("a", encoding="utf-8") as stream:
        stream.write(f"{slurm_id} {name}\n")


def _is_of_folder(job: SlurmJob, workdir: str, ids: Collection[str]) -> bool:
    """Return whether a job is of a Snakemake that was started in a folder.

    Its number is known, or its name is one that placement gives; Snakemake's own executor writes
    its rule into the comment. Sites rewrite names and comments, and numbers start anew.
    """
    if not job.active or job.workdir != workdir:
        return False
    named = re.fullmatch(r"tw-[0-9a-f]{8}\.[0-9]+", job.name)
    return str(job.id) in ids or bool(named or re.match(r"(rule|group)_", job.comment))


def find_orphaned(client: SlurmClient, workdir: str) -> list[SlurmJob]:
    """Return the jobs of Snakemake that may write into a folder.

    Raises
    ------
    PlacementError
        The queue is not known: then it is not sure that nothing writes there.
    """
    ids: set[str] = set()
    with contextlib.suppress(OSError):
        noted = Path(workdir, LEDGER.parent, _SUBMITTED).read_text(encoding="utf-8")
        ids = {line.partition(" ")[0] for line in noted.splitlines()}
    try:
        return [job for job in client.queue() if _is_of_folder(job, workdir, ids)]
    except SlurmQueryError as error:
        raise PlacementError(
            f"whether jobs of an earlier run still write into {workdir} is not known: {error}; "
            "try again when Slurm answers"
        ) from None


def cancel_orphaned(client: SlurmClient, jobs: Sequence[SlurmJob], sender: Sender) -> None:
    """Cancel jobs that were left.

    Raises
    ------
    PlacementError
        Their run is active, or Slurm does not cancel them.
    """
    if sender.active:
        raise PlacementError(
            f"they are not cancelled while that run is active; stop it first: {sender.stop}"
        )
    try:
        client.cancel(job.id for job in jobs)
    except SlurmQueryError as error:
        raise PlacementError(f"they could not be cancelled: {error}") from None


def show_orphaned(*, cancel: bool) -> None:
    """List those of the current folder and end with status 1 if there are some, or cancel them."""
    if not has_slurm():
        typer.echo("no Slurm here, so no job of Snakemake is left in its queue")
        return
    client, folder = own_client(), Path.cwd()
    sender = sender_of(folder)
    try:
        if jobs := find_orphaned(client, str(folder)):
            typer.echo(sender.listed(jobs, str(folder)))
            if cancel:
                cancel_orphaned(client, jobs, sender)
            typer.echo("cancelled; Slurm ends them soon" if cancel else sender.advice)
            raise SystemExit(0 if cancel else 1)
    except PlacementError as error:
        raise SystemExit(f"orphaned: {error}") from None
    typer.echo(f"no job of Snakemake writes into {printable(folder)}")
    if is_locked(folder) and not sender.active:
        typer.echo(_RESUME)
