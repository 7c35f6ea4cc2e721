"""Detection end to end on recorded answers: use by others, failures, old limits."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from tilewright.commands.accounts import as_json, print_survey
from tilewright.placement.cluster import Note, Survey, SurveyError, survey
from tilewright.placement.site import Site, SiteError, read_site
from tilewright.runtime.snakemake_adapter import beside_profile
from tilewright.slurm.query import SlurmClient, Unknown, run_command

REPO = Path(__file__).parents[1]
HIPERGATOR = REPO / "profiles/hipergator/site.yaml"
LIMITS = """\
brusko|ada||brusko|brusko||||||||
clive-b|ada||clive-b|clive-b||||||||
clive|ada||clive,clive-b|clive||||||||
maigan|ada||maigan,maigan-b|maigan||||||||
clive|cpu=104,gres/gpu=3,mem=812G||||||||
maigan|cpu=80,gres/gpu=2,mem=625G||||||||
brusko|cpu=32,gres/gpu=1,mem=250G||||||||
"""
USE = """\
QOS=clive(2) GrpJobs=N(2) GrpSubmitJobs=N(2) GrpTRES=cpu=104(40),mem=831488(716800),gres/gpu=3(1)\
 User Limits= 1002={MaxJobsPU=N(1) MaxTRESPU=cpu=N(32),mem=N(614400),gres/gpu=N(0)}\
 1001={MaxJobsPU=N(1) MaxTRESPU=cpu=N(8),mem=N(102400),gres/gpu=N(1)}
QOS=brusko(4) GrpJobs=N(0) GrpTRES=cpu=32(0),mem=256000(0),gres/gpu=1(0)
QOS=maigan(3) GrpJobs=N(0) GrpSubmitJobs=N(0) GrpTRES=cpu=80(0),mem=640000(0),gres/gpu=2(0)
"""
PARTITIONS = """\
PartitionName=hpg-default AllowAccounts=ALL Default=YES QoS=N/A MaxTime=31-00:00:00 State=UP\
 TRES=cpu=256
PartitionName=hpg-b200 AllowAccounts=ALL Default=NO QoS=N/A MaxTime=7-00:00:00 State=UP\
 TRES=cpu=112,gres/gpu=8
"""


@dataclass
class Recorded:
    """Answers by the command's word; counts how often each was asked."""

    answers: dict[str, str | Unknown]
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        words = ("sacctmgr", "flags=qos", "flags=assoc", "partition", "squeue", "config")
        word = next(word for word in words if word in argv)
        self.asked.append(word)
        return self.answers.get(word, Unknown(word, "Access/permission denied"))


@pytest.fixture
def recorded() -> Recorded:
    return Recorded({"sacctmgr": LIMITS, "flags=qos": USE, "partition": PARTITIONS})


def client(recorded: Recorded, folder: Path, now: list[float] | None = None) -> SlurmClient:
    clock = now if now is not None else [1000.0]
    return SlurmClient("ada", folder, run=recorded, clock=lambda: clock[0])


def text_of(found: Survey) -> str:
    stream = io.StringIO()
    print_survey(found, Console(file=stream, width=80))
    return stream.getvalue()


def test_the_worked_example_with_a_labmate(recorded: Recorded, tmp_path: Path) -> None:
    found = survey(client(recorded, tmp_path), 1001, read_site(HIPERGATOR))
    numbers = as_json(found)
    assert numbers["total"] == {"independent": 24, "shared": 15}
    slots = {f"{p['account']}_{p['kind']}": p for p in numbers["pools"]["independent"]}
    assert {name: pool["slots"] for name, pool in slots.items()} == {
        "clive_gpu": 3,
        "clive_cpu": 11,
        "maigan_gpu": 2,
        "maigan_cpu": 8,
    }
    # 112 GB are left on clive: no GPU job of 180 GB, two CPU jobs of 48 GB.
    assert (slots["clive_gpu"]["free"], slots["clive_cpu"]["free"]) == (0, 2)
    assert (found.sharing, found.notes) == ("shared", ())
    shown = text_of(found)
    assert "5 GPU + 19 CPU = 24 jobs" in shown
    assert "5 GPU + 10 CPU = 15 jobs" in shown
    assert "brusko   blocked: its members keep" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_one_sacctmgr_and_a_cache(recorded: Recorded, tmp_path: Path) -> None:
    now = [0.0]
    asking = client(recorded, tmp_path, now)
    for _ in range(3):
        survey(asking, 1001, Site())
    assert recorded.asked == ["sacctmgr", "partition", "flags=qos"]
    now[0] = 31.0
    survey(asking, 1001, Site())
    assert recorded.asked[3:] == ["flags=qos"]


def test_limits_of_a_dead_slurmdbd_are_the_last_good_ones_and_said_to_be_old(
    recorded: Recorded, tmp_path: Path
) -> None:
    survey(client(recorded, tmp_path, [0.0]), 1001, Site())
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    found = survey(client(recorded, tmp_path, [7300.0]), 1001, Site())
    assert [account.name for account in found.accounts] == ["brusko", "clive", "maigan"]
    assert found.notes == (
        Note("limits", "limits are 2 hours old: sacctmgr did not answer: Connection refused"),
    )


def test_never_known_limits_are_an_error_and_not_no_accounts(
    recorded: Recorded, tmp_path: Path
) -> None:
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    with pytest.raises(SurveyError, match="Connection refused"):
        survey(client(recorded, tmp_path), 1001, Site())
    recorded.answers["sacctmgr"] = "no table"
    with pytest.raises(SurveyError, match="holds no table"):
        survey(client(recorded, tmp_path), 1001, Site())
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    (tmp_path / "limits-ada.json").write_text("{broken")
    with pytest.raises(SurveyError, match="Connection refused"):
        survey(client(recorded, tmp_path), 1001, Site())


def test_unknown_use_is_a_question_mark_and_a_note(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["flags=qos"] = Unknown("scontrol", "no answer within 15 s")
    found = survey(client(recorded, tmp_path), 1001, Site())
    clive = as_json(found)["accounts"][1]
    assert clive["used"] is None
    assert clive["free"] == {"cpu": None, "gres/gpu": None, "mem": None}
    assert found.notes == (
        Note("use", "use is not known: scontrol did not answer: no answer within 15 s"),
    )
    free = next(line for line in text_of(found).splitlines() if "free" in line)
    assert free.count("?") == 4


def test_a_partition_that_is_not_there_is_named(recorded: Recorded, tmp_path: Path) -> None:
    site = Site.model_validate({"partitions": {"gpu": "gpu-old"}})
    found = survey(client(recorded, tmp_path), 1001, site)
    assert found.notes == (
        Note("site", "partition gpu-old is not up; up are hpg-b200, hpg-default"),
    )


def test_a_cluster_without_gpus_has_no_gpu_slots(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["partition"] = PARTITIONS.splitlines()[0]
    found = survey(client(recorded, tmp_path), 1001, Site())
    assert {pool.kind for pool in found.pools["independent"]} == {"cpu"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("blocked: {brusko: ''}", "'blocked.brusko'"),
        ("utilisation: 2", "'utilisation'"),
        ("burst: '['", "not a regular expression"),
        ("bursts: x", "'bursts': extra inputs are not permitted; remove it"),
        ("restarts: false", "'restarts': extra inputs are not permitted; remove it"),
        ("a: [", "is not YAML"),
        ("- a", "valid"),
        ("caps: {clive: 'cpus=40'}", "'cpus=40' is none of"),
        ("caps: {clive: 'cpu=40,mem=lots'}", "'mem=lots' is none of"),
    ],
)
def test_site_files_are_checked(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(content)
    with pytest.raises(SiteError) as caught:
        read_site(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_site_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "binary", "is not text")):
        with pytest.raises(SiteError, match=f"{path} cannot be read: .*{reason}"):
            read_site(path)


def test_a_copied_profile_has_the_site_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
        (tmp_path / name / "site.yaml").touch()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.yaml").touch()
    site = Path("site.yaml")

    def found(command: str) -> Path:
        return beside_profile(site, ["snakemake", *command.split()])

    assert found("all --workflow-profile theirs") == Path("theirs/site.yaml")
    assert found("--workflow-profile=ours/config.yaml -n").resolve() == tmp_path / "ours/site.yaml"
    assert found("--profile theirs --jobs 3").resolve() == tmp_path / "theirs/site.yaml"
    assert found("--workflow-profile bare --profile ours").resolve() == tmp_path / "ours/site.yaml"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "ours").rename(tmp_path / "profiles/hidden")
    assert found("--workflow-profile hidden") == Path("profiles/hidden/site.yaml")
    (tmp_path / "profiles/hidden").rename(tmp_path / "ours")
    assert found("--workflow-profile bare") == found("all") == found("--no-such") == site
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "ours")
    assert found("all").resolve() == tmp_path / "ours/site.yaml"
    whole = tmp_path / "elsewhere.yaml"
    whole.touch()
    assert beside_profile(whole, ["snakemake", "--workflow-profile", "ours"]) == whole


def test_commands_that_fail_hang_or_are_absent_are_unknown(tmp_path: Path) -> None:
    assert run_command(["sh", "-c", "cat; echo out"], "in\n") == "in\nout\n"
    failed = run_command(["sh", "-c", "echo broken >&2; exit 3"])
    assert failed == Unknown("sh", "broken")
    silent = run_command(["sh", "-c", "echo 'sacctmgr: error: refused' >&2"])
    assert isinstance(silent, Unknown)
    hung = run_command(["sleep", "30"], timeout_s=0.2)
    assert hung == Unknown("sleep", "no answer within 0.2 s", refused=False)
    absent = run_command([str(tmp_path / "sacctmgr")])
    assert isinstance(absent, Unknown)
    assert "No such file" in absent.reason
