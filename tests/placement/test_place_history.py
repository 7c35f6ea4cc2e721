"""The first job of a rule at each place, and what is refused: by sbatch, or by the executor."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.request import Target
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.failures import NextTry, may_pass
from snakemake_scheduler_plugin_tilewright.placement.place_history import FIRST, Admission
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from tests.placement.dispatched import CLIVE_GPU, answer, dispatcher, events, nodes, pending

#: As snakemake-executor-plugin-slurm 2.8 says it.
SBATCH = (
    "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch --parsable"
)
INVALID = SBATCH.format("sbatch: error: Batch job submission failed: Invalid qos specification")
SUBMIT_LIMIT = SBATCH.format(
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job "
    "violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
LOG_FOLDER = (
    "Job submission failed with exception: [Errno 13] Permission denied: '.snakemake/slurm_logs'"
)


def new_run(folder: Path, ready: int, **of: Any) -> Dispatcher:
    """Return a run that has sent nothing yet."""
    run = dispatcher("", folder, 0, ready, nodes(8), **of)
    run.admission = Admission()
    return run


def refuse(run: Dispatcher, name: str, words: str) -> NextTry:
    run.admission.note_submission(run.tasks[name], words)
    return run.failed(name)


def play(run: Dispatcher, refusal: Callable[[Target], str]) -> list[str]:
    """Send and end all jobs, and return those that were refused."""
    ready, refused = list(run.tasks), list[str]()
    while ready and len(refused) < 40:
        sent = run.round(ready, [])
        for name, place in sent.items():
            if words := refusal(place.target):
                refused.append(name)
                found = refuse(run, name, words)
                assert found.free or found.give_up
                if found.give_up:
                    ready.remove(name)
            else:
                run.admission.note_submission(run.tasks[name], "")
        for name in [name for name in sent if run.tasks[name].assignment]:
            run.done(name)
            ready.remove(name)
    assert not ready
    return refused


def test_one_job_of_a_rule_goes_first_to_each_place(tmp_path: Path) -> None:
    run = new_run(tmp_path, 9)
    names = list(run.tasks)
    first = run.round(names, [])
    places = [place.target for place in first.values()]
    assert len(places) == len(set(places)) > 1
    rest = [name for name in names if name not in first]
    assert FIRST in {run.why_waiting[name] for name in rest}
    assert not {place.target for place in run.round(rest, []).values()} & {*places}
    waits = [run.admission.note_submission(run.tasks[name], "") for name in first]
    assert waits == [True] * len(first)  # then Snakemake asks again at once
    assert {place.target for place in run.round(rest, []).values()} <= {*places}
    run.admission.note_submission(run.tasks[names[0]], "SLURM-job '7' failed")
    assert run.tasks[names[0]].submission == ""


def test_where_half_of_the_places_refuse_each_is_tried_once(tmp_path: Path) -> None:
    """Accounts in halves: of 18 refusals there are as many left as wrong places."""
    run, wrong = new_run(tmp_path, 18), {("clive", "gpu"), ("maigan", "cpu")}
    refused = play(run, lambda to: INVALID if (to.account, to.device) in wrong else "")
    assert 1 <= len(refused) <= 2
    done = {(event["account"], event["kind"]) for event in events(run, "done")}
    assert done
    assert not done & wrong
    assert not run.backoff


def test_what_every_place_refuses_ends_by_name(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1, kinds=("gpu",))
    assert len(play(run, lambda to: INVALID)) == 3
    (*_, last) = events(run, "fail")
    assert (last["cause"], last["words"]) == ("refused", "Invalid qos specification")
    assert last["give_up"]
    assert last["next"] == (
        "is not tried again: sbatch refuses it everywhere (Invalid qos specification)"
    )


def test_a_refusal_where_others_of_the_rule_were_taken_is_the_jobs_own(tmp_path: Path) -> None:
    run = new_run(tmp_path, 3, kinds=("gpu",))
    first, second, _ = run.tasks
    run.admission.taken.add(("work", CLIVE_GPU))
    sent = run.round([first], [])
    run.tasks[first].assignment = sent[first]
    target = sent[first].target
    run.admission.taken.add(("work", target))
    assert refuse(run, first, INVALID).free
    run.begin_round(run.state())
    assert target in run.tasks[first].excluded_targets
    assert target not in run.tasks[second].excluded_targets


def test_a_limit_on_submitted_jobs_closes_the_place_for_a_while(tmp_path: Path) -> None:
    run = new_run(tmp_path, 2, kinds=("gpu",))
    first, other = run.tasks
    target = run.round([first], [])[first].target
    found = refuse(run, first, SUBMIT_LIMIT)
    assert (found.free, found.give_up) == (True, False)
    assert (set(run.backoff), run.admission.refused) == ({target}, {})
    (place,) = run.round([other], []).values()
    assert place.target != target
    (said,) = events(run, "fail")
    assert said["words"].startswith("QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS pol")


def test_the_executors_own_error_is_no_refusal(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    (name,) = run.tasks
    for again in (False, True):
        run.round([name], [])
        found = refuse(run, name, LOG_FOLDER)
        assert (found.give_up, found.free) == (again, False)
    said = events(run, "fail")[-1]
    assert said["cause"] == "error"
    assert said["words"].startswith("Snakemake's executor: [Errno 13] Permission denied")
    assert not run.backoff
    assert not run.admission.refused


def test_where_a_limit_was_reached_one_job_goes_until_it_starts(tmp_path: Path) -> None:
    now = [5000.0]
    run = dispatcher("", tmp_path, 0, 3, nodes(8), kinds=("gpu",))
    run.clock = lambda: now[0]
    for account in run.cluster.look().accounts:
        to = run.cluster.state.target(account, "gpu")
        run.backoff.avoid(to, "QOSGrpBilling", now[0], for_all=True)
    names = list(run.tasks)
    assert run.round(names, []) == {}
    now[0] += 61
    answer(run)
    sent = run.round(names, [])
    assert len({place.target for place in sent.values()}) == len(sent)
    rest = [name for name in names if name not in sent]
    answer(run, squeue=pending(len(sent), "None"))
    clive = [place.target for place in run.round(rest, []).values()]
    assert CLIVE_GPU not in clive


@pytest.mark.parametrize(
    ("words", "later"),
    [
        ("Unable to contact slurm controller (connect failure)", True),
        ("Socket timed out on send/recv operation", True),
        ("QOSGrpSubmitJobsLimit; Job violates accounting/QOS policy", True),
        ("QOSMaxCpuPerJobLimit; Job violates accounting/QOS policy", False),
        ("Required partition not available (inactive or drain)", True),
        ("Invalid account or account/partition combination specified", False),
        ("Requested node configuration is not available", False),
        ("GPU jobs go to lab_gpu; Unspecified error", False),
    ],
)
def test_words_of_sbatch_that_may_pass(words: str, later: bool) -> None:
    assert may_pass(words) == later


def test_submissions_are_heard_and_passed_on() -> None:
    heard: list[tuple[str, str]] = []
    passed: list[str] = []
    executor = SimpleNamespace(
        report_job_error=lambda info, msg=None, **more: passed.append(f"{info.job} {msg}"),
        report_job_submission=lambda info: passed.append(info.job),
    )
    dag: Any = SimpleNamespace(workflow=SimpleNamespace(scheduler=SimpleNamespace()))
    dag.workflow.scheduler._executor = executor
    adapter.hear_submissions(dag, lambda job, refusal: heard.append((job, refusal)))
    executor.report_job_error(SimpleNamespace(job="a"), msg=INVALID)
    executor.report_job_submission(SimpleNamespace(job="c"))
    assert heard == [("a", INVALID), ("c", "")]
    assert passed == [f"a {INVALID}", "c"]
