"""How jobs ended: by the queue, by what they wrote themselves, and by accounting; and why."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..runtime.cause import last_line, read_cause
from ..runtime.errors import SlurmQueryError
from ..slurm.jobs import ENDED, SlurmJob
from ..slurm.query import SlurmClient
from ..slurm.reasons import Cause, cause_of
from .jobs import Task, exclude, next_try

#: A job that neither queue nor accounting shows for so long is lost: file servers show what a job
#: wrote within their latency, of a minute at most.
_LOST_S = 60.0
#: It is so long after that where there was no question left for sacct (no figure).
_UNASKED_S = 300.0
#: Characters of a log's last line that are recorded.
_MOST_WORDS = 300


@dataclass
class Ends:
    """Finds out how the jobs of a run ended.

    Attributes
    ----------
    folder : Path
        Each job writes its exit code there as it ends, into a file of its name in Slurm: Slurm
        forgets jobs after ``MinJobAge``, and not all sites have accounting.
    """

    client: SlurmClient
    folder: Path
    _missing_s: dict[str, float] = field(default_factory=dict)
    _codes: dict[str, str] = field(default_factory=dict)

    def end_of(
        self, task: Task, queue: Iterable[SlurmJob], asked_s: float
    ) -> tuple[bool, SlurmJob | None] | None:
        """Return whether a job that has ended ended well, and its last record; None if it has not.

        Parameters
        ----------
        asked_s : float
            When the queue was asked: of a job that was sent later it knows nothing.
        """
        job = task.slurm_job
        shown = job is not None and task.observed_s == asked_s
        if task.sent_s >= asked_s or (shown and job is not None and job.active):
            self._missing_s.pop(task.slurm_name, None)
            return None
        if shown and job is not None:
            return job.state == "COMPLETED", job
        return self._end_of_missing(task, asked_s)

    def _end_of_missing(self, task: Task, asked_s: float) -> tuple[bool, SlurmJob | None] | None:
        since_s = self._missing_s.setdefault(task.slurm_name, asked_s)
        path = self.folder / task.slurm_name
        # of a job that ran, the last record has the end of its time limit
        last = replace(task.slurm_job or SlurmJob(task.slurm_id, ""), end_s=None)
        code = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if (code := code.strip()).isdecimal():
            if code == "0":
                return True, replace(last, state="COMPLETED")
            self._codes[task.slurm_name] = code
            return False, replace(last, state="FAILED")
        state, lost_s = "", _LOST_S
        if task.slurm_id and not self.client.may_ask():
            lost_s = _UNASKED_S
        elif task.slurm_id:
            try:
                state = self.client.final_state(task.slurm_id)
            except SlurmQueryError:
                state = ""
        if state in ENDED:
            return state == "COMPLETED", replace(last, state=state)
        if asked_s - since_s < lost_s or state:
            return None
        return False, None

    def cause_of(self, task: Task, job: SlurmJob | None) -> tuple[Cause, str, str]:
        """Return why a job failed, the words of its log or Slurm's, and the log to look at."""
        of_log, words = read_cause(last_line(task.log)) if task.log else ("error", "")
        words, log = words[:_MOST_WORDS], task.log
        if job is None and not task.slurm_id:
            return "refused", "sbatch did not say whether it took it, and the queue has it not", ""
        if job is None:
            return "node", f"Slurm does not know any more how job {task.slurm_id} ended", log
        try:
            cause, of_slurm = cause_of(self.client.job(job.id))
        except SlurmQueryError:
            reason, code = job.reason or "None", self._codes.get(task.slurm_name, "")
            details = f"JobId={job.id} JobState={job.state} Reason={reason}"
            details += f" ExitCode={code}:0" if code else ""
            cause, of_slurm = cause_of(details)
        if cause == "error" and words:
            return of_log, words, log
        if cause == "error" and log:
            of_slurm = f"{of_slurm}; job {job.id} wrote nothing to its log"
        return cause, of_slurm, log

    def next_try(self, task: Task, cause: Cause, words: str) -> tuple[str, bool, bool]:
        """Note a failure; see :func:`~jobs.next_try`."""
        history, place = task.history, task.place
        assert place is not None
        if cause == "refused" and task.slurm_id:
            exclude(history, place, words)
        if cause in ("node", "device"):
            history.failed.add((place.kind, place.partitions))
        if cause == "preempted":
            history.preempted.append(place)
            if history.preempted.count(place) > 1 and place.rank:
                exclude(history, place, "others ended it there twice")
        return next_try(history, cause, words)
