"""The same situation on three releases of Slurm, recorded on real clusters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.site import Site
from snakemake_scheduler_plugin_tilewright.placement.survey import Survey, survey
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Holder
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown
from tests.support.recorded import Recorded, queue_line

RELEASES: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "releases.json").read_text(encoding="utf-8")
)
LIMITS = """\
maigan|{user}||maigan|maigan|||||||||||||
clive|{user}||clive|clive|||||||||||||
maigan|cpu=80,gres/gpu=2,mem=625G||cpu=16|||4|20|1-00:00:00||cpu=64|||cpu=100000|||
clive|cpu=104,gres/gpu=3,mem=812G|||||||||||||||
"""
#: What everybody's queue showed meanwhile.
QUEUE = "".join(
    queue_line(
        JobID=str(number), State="RUNNING", Account="maigan", QOS="maigan", UserName=user,
        Partition="hpg-default", **{"tres-alloc": f"cpu={cpus},mem=1G,node=1"},
    ) + "\n"
    for number, user, cpus in ((1, "root", 8), (4, "kuser", 4))
)  # fmt: skip


def look(
    release: str, user: str, folder: Path, use: str | None = None, queue: str | Unknown = QUEUE
) -> Survey:
    said = RELEASES[release]
    answers = {**said, "sacctmgr": LIMITS.format(user=user), "squeue": queue}
    answers["flags=qos"] = said["qos"] if use is None else use
    uid = {"root": 0, "kuser": 1001, "labmate": 1002}[user]
    if release != "22.05.8" and uid:
        uid -= 1
    return survey(SlurmClient(user, folder, run=Recorded(answers)), uid, Site())


def holders(found: Survey) -> dict[str, Holder]:
    (maigan,) = [account for account in found.accounts if account.name == "maigan"]
    return {holder.name: holder for holder in maigan.at("").holders}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("user", "used"),
    [
        ("root", {"cpu": 16, "mem": 4096, "gres/gpu": 0, "jobs": 2, "submit": 3}),
        ("kuser", {"cpu": 4, "mem": 1024, "gres/gpu": 0, "jobs": 1, "submit": 1}),
        ("labmate", {"cpu": 0, "mem": 0, "gres/gpu": 0, "jobs": 0, "submit": 0}),
    ],
)
def test_use_reads_the_same_in_each_release(
    release: str, user: str, used: dict[str, int], tmp_path: Path
) -> None:
    found = look(release, user, tmp_path)
    own = holders(found)[f"{user} on QOS maigan"]
    assert own.limit == {"cpu": 16, "jobs": 4, "submit": 20}
    assert own.used is not None
    assert {tres: own.used.get(tres) for tres in used} == used
    of_account = holders(found)["account maigan on QOS maigan"]
    assert (of_account.limit["cpu"], (of_account.used or {})["cpu"]) == (64, 20)
    assert not [note for note in found.notes if note.about == "use"]


#: What of a record is gone or has another name, and whose use of what is then not known.
DAMAGES = {
    "record": (r"QOS=maigan\(.*\n", "", "QOS maigan", "cpu"),
    "GrpTRES": (r" GrpTRES=", " GroupTRES=", "QOS maigan", "cpu"),
    "a TRES": (r"(QOS=maigan.*? GrpTRES=)cpu=80\(20\),", r"\1", "QOS maigan", "cpu"),
    "budget": (r" GrpTRESMins=", " GrpMins=", "QOS maigan", "cpu/min"),
    "running": (r" GrpTRESRunMins=", " GrpRunMins=", "QOS maigan", "cpu/min"),
    "MaxTRESPU": ("MaxTRESPU=", "MaxTRESPerUser=", "{user} on QOS maigan", "cpu"),
    "MaxJobsPU": (r"MaxJobsPU=", "MaxRunPU=", "{user} on QOS maigan", "jobs"),
    "submit": (r"MaxSubmitJobsPU=20\(", "MaxSubmitJobsPU=20[", "{user} on QOS maigan", "submit"),
    "section": (r"User Limits=", "Users=", "{user} on QOS maigan", "cpu"),
    "entry": (r"\b(kuser\()?(100[01])\)?=\{", r"kuser/\2={", "{user} on QOS maigan", "cpu"),
    "accounts": (r"Account Limits=", "Accounts=", "account maigan on QOS maigan", "cpu"),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_absent_is_unknown(release: str, damage: str, tmp_path: Path) -> None:
    old, new, holder, tres = DAMAGES[damage]
    use, number = re.subn(old, new, RELEASES[release]["qos"])
    assert number
    holder = holder.format(user="kuser")
    found = look(release, "kuser", tmp_path, use, Unknown("squeue", "Access/permission denied"))
    assert tres not in (holders(found)[holder].used or {})
    (note,) = [str(note) for note in found.notes if note.about == "use"]
    assert re.search(rf"\b{holder}\b.* not known: ", note)
    if tres in ("cpu", "jobs", "submit"):  # what squeue shows is a lower bound
        seen = look(release, "kuser", tmp_path, use)
        assert (holders(seen)[holder].used or {})[tres] > 0
        (note,) = [str(note) for note in seen.notes if note.about == "use"]
        assert f"{holder}" in note
        assert "a lower bound" in note


@pytest.mark.parametrize("release", RELEASES)
def test_an_entry_of_somebody_else_that_cannot_be_read_may_be_ones_own(
    release: str, tmp_path: Path
) -> None:
    use = re.sub(r"(root\()?\b0\)?=\{", "root?={", RELEASES[release]["qos"])
    denied = Unknown("squeue", "Access/permission denied")
    assert (
        holders(look(release, "labmate", tmp_path, use, denied))["labmate on QOS maigan"].used
        is None
    )
    assert holders(look(release, "kuser", tmp_path, use, denied))["kuser on QOS maigan"].used
