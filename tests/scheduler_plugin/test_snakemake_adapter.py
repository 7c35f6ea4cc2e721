"""All that placement touches of Snakemake beyond its interfaces, and the commands of runs."""

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_adapter import runs_nothing, targets

NEEDED = [(what, name) for what in adapter.NEEDED for name in adapter.NEEDED[what]]


def thing_without(what: str, absent: str = "") -> Any:
    return SimpleNamespace(**{name: None for name in adapter.NEEDED[what] if name != absent})


def test_what_is_needed_is_little_and_refused_with_its_name_where_it_is_absent() -> None:
    assert len(NEEDED) <= 12
    for what, name in NEEDED:
        adapter.check(what, thing_without(what))
        words = rf"^Snakemake [\d.]+ has no {what}\.{name}, which placement needs; install"
        with pytest.raises(PlacementError, match=words):
            adapter.check(what, thing_without(what, name))


@pytest.mark.parametrize(
    ("errors", "killed", "keep_going", "why"),
    [
        (False, False, False, ""), (True, False, True, ""), (False, True, True, "asked to stop"),
        (True, False, False, "a job failed (--keep-going goes on)"),
    ],
)  # fmt: skip
def test_why_snakemake_starts_no_more_jobs(
    *, errors: bool, killed: bool, keep_going: bool, why: str
) -> None:
    workflow = SimpleNamespace(
        scheduler=SimpleNamespace(_errors=errors, _user_kill=killed),
        execution_settings=SimpleNamespace(keep_going=keep_going),
    )
    found = adapter.stopping(workflow)
    assert (why in found, bool(found)) == (True, bool(why))
    workflow.scheduler = None
    assert adapter.stopping(workflow) == ""


def test_snakemakes_words_of_each_round_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("chatter")
    adapter.forget_chatter(log.getChild("tilewright"))
    with caplog.at_level(logging.INFO, "chatter"):
        for line in (
            "Select jobs to execute...",
            "Execute 2 jobs...",
            "rule a:",
            "rule a:",
            *2 * ["Will exit after finishing currently running jobs (scheduler)."],
        ):
            log.info(line)
    assert caplog.messages == [
        "rule a:",
        "rule a:",
        "Will exit after finishing currently running jobs (scheduler).",
    ]


LOOK = """
-n; -np; -pn; -kn; -nk; -kpn; -Fn; -nj4; -fn; -S; -t; --config a=1 -n; --dry-run; --dryrun; --dryru;
registration -n --configfile c.yaml; registration -nj4; --summary; --detailed-summary; --dag;
--dag=mermaid-js; --rulegraph; --filegraph; --d3dag; --lint; --lint json; --list; --list-rules;
--list-changes code; --lc code; --list-untracked; --report; --report=out.html; --archive a.tar.gz;
--containerize; --touch; --cleanup-metadata out.txt
"""
RUN = """
; registration qc; --unlock; -j4; -j 4 -k; -s Snakefile; --snakefile n; --config n=1;
--config -C nn=1; --configfile new.yaml; -p; -F; -R stitch; --nolock; --notemp; -c2; -q rules;
--rerun-incomplete; --scheduler greedy; --set-resources work:slurm_account=clive;
--cleanup-shadow; n; results/run-n; --no-hooks; --delete-all-output;
registration --report-after-run
"""


@pytest.mark.parametrize(
    ("command", "looks"),
    [(one, text == LOOK) for text in (LOOK, RUN) for one in re.split(r";\s+", text.strip())],
)
def test_what_only_looks_and_what_runs_jobs_or_unlocks(command: str, looks: bool) -> None:
    assert runs_nothing(command.split()) == looks


def test_targets_are_those_of_snakemakes_own_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["registration", "qc", "-n", "--configfile", "edf", "--until", "stitching"]
    assert targets(command) == ["registration", "qc"]
    assert targets(["plan", "--target", "qc"]) == []
    assert capsys.readouterr().err == ""
