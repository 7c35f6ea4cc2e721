"""Sites that hide, forbid or lack: what is seen counts, and one line says what is not."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest, Target
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded import ANSWERS, CONFIG, LIMITS, RELEASES, Recorded, client, uid_of_kuser

DENIED = SlurmQueryError("it", "slurm_load error: Access/permission denied")
DOWN = SlurmQueryError("sacctmgr", "Connection refused")
#: sacctmgr answers, and of the user it says nothing.
OTHERS = "".join(line for line in LIMITS.splitlines(keepends=True) if "|ada|" not in line)
SHARES = "clive|ada|\nclive-b|ada|\n"
CPU, GPU = ResourceRequest(8, 5000, 0, 60), ResourceRequest(8, 5000, 1, 60)
NOBODY = CONFIG.replace("associations,limits,qos", "none")


def look(
    folder: Path,
    answers: Mapping[str, str | SlurmQueryError],
    site: Site = Site(),  # noqa: B008
) -> ClusterState:
    recorded = Recorded({**ANSWERS, **answers})
    found = query_cluster(client(recorded, folder), 1001, site)
    found.check_known()
    return found


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        ({"sacctmgr": DOWN, "sshare": SHARES}, "Connection refused; accounts are those of sshare"),
        ({"sacctmgr": OTHERS, "sshare": SHARES}, "no account of ada; accounts are those of sshare"),
        ({"sacctmgr": "\n", "sshare": SHARES}, "is empty; accounts are those of sshare"),
        ({"sacctmgr": DENIED, "sshare": "Welcome\n"}, "accounts are those of the site file"),
        ({"sacctmgr": OTHERS, "config": NOBODY}, "accounts are those of the site file"),
    ],
)
def test_accounts_that_sacctmgr_does_not_show(
    answers: dict[str, str | SlurmQueryError], note: str, tmp_path: Path
) -> None:
    """Their limits are not seen, and Slurm's reasons alone tell of them."""
    found = look(tmp_path, answers, Site(allowed=["clive"]))
    assert [(one.name, one.qos) for one in found.accounts] == [("clive", "")]
    assert sum(note in str(one) for one in found.notes) == 1
    for target, request in ((found.target(found.accounts[0], "gpu"), GPU),
                            (found.target(found.accounts[0], "cpu"), CPU)):  # fmt: skip
        assert Room(found).fits(target, request)


@pytest.mark.parametrize("answers", [{"sacctmgr": DENIED}, {"sacctmgr": OTHERS, "config": NOBODY}])
def test_without_any_account_jobs_go_to_the_default_one(
    answers: dict[str, str | SlurmQueryError], tmp_path: Path
) -> None:
    found = look(tmp_path, answers)
    assert Room(found).fits(Target("", "", "hpg-default", "cpu"), CPU)
    assert any("so jobs go to your default account" in str(note) for note in found.notes)
    asking = client(Recorded({**ANSWERS, "sacctmgr": OTHERS}), tmp_path / "b")
    assert query_cluster(asking, 1001, Site()).accounts == ()  # Slurm would refuse all


@pytest.mark.parametrize("release", RELEASES)
def test_limits_that_slurmctld_shows(release: str, tmp_path: Path) -> None:
    said = RELEASES[release]
    assoc = said["assoc"].replace("MaxTRESPJ= ", "MaxTRESPJ=cpu=8 ").replace("PJ= ", "PJ=60 ")
    answers: dict[str, str | SlurmQueryError] = {
        **said,
        "sacctmgr": DOWN,
        "flags=assoc": assoc,
        "flags=qos": said["qos"],
    }
    asking = SlurmClient("kuser", tmp_path, run=Recorded(answers))
    found = query_cluster(asking, uid_of_kuser(release), Site())
    assert "accounts are those of scontrol show assoc_mgr" in str(found.notes[0])
    (clive,) = [one for one in found.accounts if one.name == "clive"]
    (scope,) = clive.at("").scopes
    assert (scope.name, scope.limit["node"], scope.limit["billing"]) == ("account clive", 6, 200)
    assert clive.at("").per_job["cpu"] == 8
    assert "root" in {row.rpartition(" ")[2] for row in clive.at("").counts_on}


def test_limits_that_are_not_enforced_are_not_looked_at(tmp_path: Path) -> None:
    site, config = Site(caps={"clive": "cpu=16"}), CONFIG.replace(",limits,qos", "")
    found = look(tmp_path, {"config": config, "squeue": ""}, site)
    brusko, clive, _ = found.accounts
    assert (brusko.at("").scopes, [scope.cap for scope in clive.at("").scopes]) == ((), [True])
    why = "this Slurm enforces no limits (AccountingStorageEnforce=associations), so none is looked"
    assert why in str(found.notes)


def test_partitions_that_are_hidden(tmp_path: Path) -> None:
    """Of such nodes scontrol does not say the partitions."""
    answers: dict[str, str | SlurmQueryError] = {
        "partition": DENIED,
        "node": ANSWERS["node"].replace("Partitions=", "Of="),
    }
    for site, named in (
        (Site(), ""),
        (Site.model_validate({"partitions": {"gpu": "a100"}}), "a100"),
    ):
        found = look(tmp_path, answers, site)
        assert any(
            "the partitions are not seen, so jobs go to" in str(note) for note in found.notes
        )
        target = found.target(found.accounts[0], "gpu")
        assert target.partition == named
        assert Room(found).fits(target, GPU)
        assert found.can_ever_run(found.target(found.accounts[0], "cpu"), CPU)


def test_nodes_that_are_hidden(tmp_path: Path) -> None:
    found = look(tmp_path, {"node": "No nodes in the system\n"})
    assert "the nodes are not known" in str(found.notes)
    assert Room(found).fits(found.target(found.accounts[0], "gpu"), GPU)
