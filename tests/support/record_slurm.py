"""Record what the Slurm of this machine answers: ``python -m tests.support.record_slurm``, as root.

It brings up the tests' cluster and writes ``tests/slurm/recorded/RELEASE.json``, the data of the
parsers' tests: limits of a user, jobs that run, pend and failed. `tests/slurm_root` has other
releases.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial

from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, run_command
from tests.support.recorded import QUESTIONS
from tests.support.recorded_texts import FOLDER
from tests.support.slurm_cluster import Cluster, wait_for

#: What configuration says that placement may ask for.
CONFIG = r"Configuration data|ClusterName|SLURM_VERSION|AccountingStorage(Enforce|TRES)|SelectType"


def prepare(slurm: Cluster) -> int:
    """Send the jobs whose words are recorded; return the id of the one that failed."""
    of_user = "MaxTRESPerUser=cpu=16", "MaxJobsPerUser=4", "MaxSubmitJobsPerUser=20"
    others = "GrpTRESMins=cpu=100000", "MaxTRESPerAccount=cpu=64", "MaxWall=1-00:00:00"
    slurm.set_qos("maigan", *of_user, *others)
    minutes = "MaxTRESRunMinsPU=cpu=9000", "MaxTRESRunMinsPA=mem=900000"
    sizes = "MaxTRESPerNode=cpu=24,gres/gpu=1", "MinTRESPerJob=cpu=2,mem=1G"
    slurm.modify("qos", "brusko", *minutes, *sizes, "Preempt=clive-b,maigan-b")
    slurm.modify("account", "clive", "GrpTRES=billing=200,node=6", "GrpTRESRunMins=cpu=500000")
    maigan, clive = ("-Amaigan", "-t10", "-c8", "--mem=2G"), ("-Aclive", "-t10", "--mem=1G")
    for user, *args in (
        ("root", *maigan, "--comment=rule_a_wildcards_x"), ("root", *maigan),
        ("root", *maigan),  # beyond the limit of one user
        ("kuser", *maigan, "-c4", "--mem=1G"),
        ("root", *clive, "-phpg-b200", "-c2", "--gres=gpu:1"),
    ):  # fmt: skip
        slurm.sbatch(user, *args, command="sleep 300")
    failed = slurm.sbatch("root", *clive, "-phpg-default", command="exit 3")
    slurm.wait_job(failed)
    wait_for(lambda: "QOSMaxCpuPerUserLimit" in slurm.run(["squeue", "-o%r"]).stdout, 60)
    return failed


def record(slurm: Cluster) -> dict[str, str]:
    """Return the answers to all questions of placement, without names of this machine."""
    failed = prepare(slurm)
    os.environ.update(slurm.env)
    printed: list[str] = []

    def keep(argv: Sequence[str], stdin: str | None = None) -> str:
        printed.append(run_command(argv, stdin))
        return printed[-1]

    asking, said = SlurmClient("kuser", keep), {}
    questions: dict[str, Callable[[SlurmClient], object]] = {
        **QUESTIONS,
        "use": partial(
            SlurmClient.usage, qos=("brusko", "clive", "maigan"),
            accounts=("root", "clive", "maigan"), uids={},
        ),
        "job": partial(SlurmClient.job, job_id=failed),
    }  # fmt: skip
    del questions["sacct"]
    for name, ask in questions.items():
        ask(asking)
        said[name] = printed[-1]
    lines = said["config"].splitlines(keepends=True)
    said["config"] = "".join(line for line in lines if re.match(CONFIG, line))
    # some terminals show the questions too
    lines = said["sacctmgr"].splitlines(keepends=True)
    said["sacctmgr"] = "".join(line for line in lines if "|" in line)
    own = ((str(slurm.folder), "DIR"), (socket.gethostname(), "host"), (os.uname().version, "#1"),
           (os.uname().release, "6.1"))  # fmt: skip
    for old, new in own:
        # a host may be called vm, and vmem is a TRES
        whole = rf"(?<!\w){re.escape(old)}(?!\w)"
        said = {name: re.sub(whole, new, text) for name, text in said.items()}
    return said


if __name__ == "__main__":
    with Cluster() as cluster:
        release = cluster.run(["sinfo", "--version"]).stdout.split()[1]
        path = FOLDER / f"{release}.json"
        answers = record(cluster)
        path.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(path)
