"""No third outcome: an answer in other words is read as before, or is unknown by name."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.cluster.tres import why_not_counted
from snakemake_scheduler_plugin_tilewright.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.accounts import LimitScope
from snakemake_scheduler_plugin_tilewright.slurm.jobs import cause_of, parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.nodes import (
    parse_licences,
    parse_nodes,
    parse_reservations,
)
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    fields_of,
    parse_partitions,
    parse_sacctmgr,
)
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded import RELEASES, Recorded, details, uid_of_kuser

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


def state_of(release: str, folder: Path, **other: str) -> ClusterState:
    said = RELEASES[release]
    answers: dict[str, str | SlurmQueryError] = {
        **said, "flags=assoc": said["assoc"], "flags=qos": said["qos"],
        "squeue": SlurmQueryError("squeue", "Access/permission denied"), **other,
    }  # fmt: skip
    client = SlurmClient("kuser", folder, run=Recorded(answers))
    return query_cluster(client, uid_of_kuser(release), Site())


def scopes_of(state: ClusterState) -> dict[str, LimitScope]:
    return {
        f"{one.name} {scope.name}": scope for one in state.accounts for scope in one.at("").scopes
    }


def check(base: ClusterState, other: ClusterState, word: str) -> None:
    """Check that another answer changed nothing, or made use unknown with a note that says so."""
    before, after = scopes_of(base), scopes_of(other)
    assert after.keys() == before.keys()
    new = " ".join(str(note) for note in other.notes if note not in base.notes)
    for name, scope in before.items():
        was, now = scope.used or {}, after[name].used or {}
        assert (now.items() <= was.items(), after[name].limit) == (True, scope.limit)
        counted = {tres for tres in scope.limit if not why_not_counted(tres, None)}
        lost = counted & was.keys() - now.keys()
        assert not lost or scope.name in new
        assert word[:40] in new or all(tres in new for tres in lost)
    assert (other.partitions, other.nodes) == (base.partitions, base.nodes)


@EACH_RELEASE
@pytest.mark.parametrize("answer", ["qos", "assoc"])
def test_live_use_in_other_words(release: str, answer: str, tmp_path: Path) -> None:
    base, text, outcomes = state_of(release, tmp_path), RELEASES[release][answer], set[bool]()
    for word, other in (*other_fields(text), *other_records(text)):
        state = state_of(release, tmp_path, **{f"flags={answer}": other})
        check(base, state, word)
        outcomes.add(state.notes == base.notes)
    assert outcomes == {True, False}


PARSERS: dict[str, Callable[[str], list[object]]] = {
    "partition": lambda text: [*parse_partitions(text)],
    "node": lambda text: [*parse_nodes(text)],
    "reservation": lambda text: [*parse_reservations(text)],
    "licenses": lambda text: [*parse_licences(text).items()],
    "squeue": lambda text: [*parse_queue(text)],
}


def read_or_why(read: Callable[[str], list[object]], text: str) -> list[object] | str:
    """Return what is read, or why it is not."""
    try:
        return read(text)
    except PlacementError as error:
        return str(error)


#: What the tests' cluster has none of.
MORE = {
    "reservation": "ReservationName=r StartTime=2026-11-25T04:30:44 EndTime=2026-11-25T05:30:44"
    " Duration=01:00:00 Nodes=b1 NodeCnt=1 CoreCnt=112 Features=(null) Flags=SPEC_NODES"
    " TRES=cpu=112 Users=root State=INACTIVE\n",
    "licenses": "LicenseName=matlab Total=4 Used=1 Free=3 Reserved=0 Remote=no\n",
}


@EACH_RELEASE
@pytest.mark.parametrize("answer", PARSERS)
def test_records_in_other_words(release: str, answer: str) -> None:
    text = MORE.get(answer, RELEASES[release][answer])
    read, lines = PARSERS[answer], text.splitlines(keepends=True)
    base = read(text)
    for word, other in () if answer == "squeue" else other_fields(text):
        found = read_or_why(read, other)
        assert found == base or (isinstance(found, str) and word in found)
    for at in range(len(lines)) if len(lines) > 1 else ():
        assert read("".join(lines[:at] + lines[at + 1 :])) == base[:at] + base[at + 1 :]
    assert read("".join(reversed(lines))) == base[::-1]


@EACH_RELEASE
def test_limits_in_other_words(release: str, tmp_path: Path) -> None:
    base, text = state_of(release, tmp_path), RELEASES[release]["sacctmgr"]
    for line, other in other_records(text):
        state = state_of(release, tmp_path / "a", sacctmgr=other)
        name, user, *_ = f"{line}||".split("|")
        if new := [str(note) for note in state.notes if note not in base.notes]:
            assert name in " ".join(new)
        elif user == "kuser":
            assert {one.name for one in base.accounts} - {one.name for one in state.accounts} <= {
                name
            }
        else:
            assert scopes_of(state) == scopes_of(base)
    queue = RELEASES[release]["squeue"]
    for line in [*text.splitlines(), *queue.splitlines()]:
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
        found, said = cause_of(other)
        assert found == cause or (found == "unknown" and (word in said or word == "JobState"))


def test_percentages_of_a_relative_qos_are_no_numbers(tmp_path: Path) -> None:
    text = RELEASES["24.11.5"]["sacctmgr"].replace("|1-00:00:00||", "|1-00:00:00|Relative|")
    state = state_of("24.11.5", tmp_path, sacctmgr=text)
    scopes = scopes_of(state)
    assert scopes["maigan QOS maigan"].limit == {"cpu/min": 100_000}
    assert scopes["maigan kuser on QOS maigan"].limit == {"jobs": 4, "submit": 20}
    assert "QOS maigan (in percent)" in str(state.notes[0])
