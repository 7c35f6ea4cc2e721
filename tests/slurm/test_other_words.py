"""No third outcome: an answer in other words is read as before, or is unknown."""

import re
from collections.abc import Callable, Iterator

import pytest

from snakemake_scheduler_plugin_tilewright.placement.accounts import Scope
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    fields_of,
    parse_partitions,
    parse_sacctmgr,
)
from snakemake_scheduler_plugin_tilewright.slurm.reasons import cause_of
from tests.support.recorded import Recorded, client, details, uid_of_kuser
from tests.support.recorded_texts import RELEASES

EACH_RELEASE = pytest.mark.parametrize("release", RELEASES)
Words = tuple[str, str]


def other_fields(text: str) -> Iterator[Words]:
    """Yield each field's name, and the text without it, under another name, and elsewhere."""
    pairs = [pair for line in text.splitlines() for pair in fields_of(line).items()]
    names = {name for name, value in pairs if not value.startswith("{")}  # of users and accounts
    names |= set(re.findall(r"\b(Max\w+P[AU])=", text))
    for name in sorted(names):
        key = rf"(?<![^\s{{]){re.escape(name)}="
        yield name, re.sub(key, f"{name}New=", text)
        yield name, re.sub(rf"{key}[^\s}}]*", "", text)
        for moved in (r"\1\3 \2", r"\2 \1\3"):
            yield name, re.sub(rf"(?m)^(.*?)({key}\S*)(.*)$", moved, text)


def other_records(text: str) -> Iterator[Words]:
    """Yield the beginning of each line and the text without it; and all lines, last first."""
    lines = text.splitlines(keepends=True)
    yield "", "".join(reversed(lines))
    for at, line in enumerate(lines):
        yield line, "".join(lines[:at] + lines[at + 1 :])


def look(release: str, **other: str) -> Cluster:
    answers: dict[str, str | SlurmQueryError] = {**RELEASES[release], **other}
    found = Cluster(client(Recorded(answers), user="kuser", uid=uid_of_kuser(release)))
    found.look()
    return found


def scopes_of(found: Cluster) -> dict[str, Scope]:
    return {f"{one.label} {scope.name}": scope for one in found.accounts for scope in one.scopes}


@EACH_RELEASE
def test_live_use_in_other_words(release: str) -> None:
    """Use is as before, or unknown; limits are those of the database where live ones are absent."""
    base, outcomes = look(release), set[bool]()
    before = scopes_of(base)
    text = RELEASES[release]["use"]
    for _, other in (*other_fields(text), *other_records(text)):
        state = look(release, use=other)
        after = scopes_of(state)
        assert after.keys() == before.keys()
        for name, scope in before.items():
            now = after[name].used
            assert after[name].limit == scope.limit
            assert (now or {}).items() <= (scope.used or {}).items()
        outcomes.add(after == before)
        assert state.partitions == base.partitions
    assert outcomes == {True, False}


def read_or_why(read: Callable[[str], list[object]], text: str) -> list[object] | str:
    """Return what is read, or why it is not."""
    try:
        return read(text)
    except PlacementError as error:
        return str(error)


@EACH_RELEASE
def test_partitions_in_other_words(release: str) -> None:
    def read(text: str) -> list[object]:
        return [*parse_partitions(text)]

    text = RELEASES[release]["partition"]
    lines, base = text.splitlines(keepends=True), read(text)
    optional = {"Nodes", "MinNodes", "MaxNodes", "RootOnly", "ReqResv", "PriorityTier",
                "PreemptMode", "AllowAccounts", "AllowQos", "DenyAccounts", "DenyQos"}  # fmt: skip
    for word, other in other_fields(text):
        found = read_or_why(read, other)
        assert found == base or word in optional or (isinstance(found, str) and word in found)
    for at in range(len(lines)):
        assert read("".join(lines[:at] + lines[at + 1 :])) == base[:at] + base[at + 1 :]
    assert read("".join(reversed(lines))) == base[::-1]


@EACH_RELEASE
def test_limits_in_other_words(release: str) -> None:
    base, text = look(release), RELEASES[release]["sacctmgr"]
    for line, other in other_records(text):
        name, user, *_ = f"{line}||".split("|")
        state = look(release, sacctmgr=other)
        gone = {one.name for one in base.accounts} - {one.name for one in state.accounts}
        assert gone == ({name} if user == "kuser" else set())
    queue = RELEASES[release]["squeue"]
    of_accounts = [one for one in text.splitlines() if one.count("|") == 13]
    for line in [*of_accounts, *queue.splitlines()]:
        cells = line.split("|")
        for at in range(len(cells) - (line in queue)):  # squeue ends each cell with a bar
            fewer = "|".join(cells[:at] + cells[at + 1 :])
            read = parse_queue if line in queue else parse_sacctmgr
            with pytest.raises(PlacementError, match="no record in"):
                read(fewer)


ENDS = {
    **{release: said["job"] for release, said in RELEASES.items()},
    "memory": details("FAILED", "NonZeroExitCode", "1:0", "0:125"),
    "error": details("FAILED", "NonZeroExitCode", "3:0", "3:0"),
    "time": details("TIMEOUT", "TimeLimit", "0:0", "0:15"),
    "node": details("NODE_FAIL", "NodeDown", "0:0", "0:0"),
}


@pytest.mark.parametrize("end", ENDS)
def test_why_a_job_ended_in_other_words(end: str) -> None:
    cause, _ = cause_of(ENDS[end])
    for word, other in other_fields(ENDS[end]):
        found, _ = cause_of(other)
        # without the exit code of its steps, a job that ran out of memory ended with an error
        lost = "error" if word == "DerivedExitCode" else "unknown"
        assert found == cause or (found == lost and word in ("JobState", "DerivedExitCode"))
