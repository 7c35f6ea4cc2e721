"""What ``docs/placement.md`` says is what placement does."""

from snakemake_scheduler_plugin_tilewright.placement.request import SLOWDOWN
from snakemake_scheduler_plugin_tilewright.placement.status import FEW
from snakemake_scheduler_plugin_tilewright.settings import ExecutorSettings
from snakemake_scheduler_plugin_tilewright.slurm import reasons
from snakemake_scheduler_plugin_tilewright.slurm.query import MOST_QUESTIONS_A_MIN
from tests.conftest import REPO

PAGE = REPO / "docs/placement.md"


def test_numbers_of_placement_are_those_that_pages_state() -> None:
    page = PAGE.read_text(encoding="utf-8")
    share, poll_s = ExecutorSettings().cpu_share, ExecutorSettings().poll_seconds
    assert f"{100 * share:g} % of an account's CPUs (`tilewright-cpu-share`)" in page
    assert f"{100 * share:g} % of the CPU limit" in page
    assert f"every {poll_s:g} s (`tilewright-poll-seconds`)" in page
    assert f"limited to {MOST_QUESTIONS_A_MIN} questions a minute" in page
    assert FEW == 4, "pages say four"
    assert "At most four jobs pend there" in page
    assert SLOWDOWN == 5, "pages say five"
    assert "a CPU job counts as five times as long as a GPU job" in page


def test_every_meaning_of_a_reason_is_in_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    meanings = [words for known in reasons._REASONS.values() for words in known.values()]
    assert len(meanings) > 10
    assert not [words for words in meanings if words not in page]
