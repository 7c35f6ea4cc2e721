"""Rules of a module have another name in the workflow that uses it than in their own Snakefile."""

from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from tests.support.failing_slurm import RULES
from tests.support.recorded import cluster_with
from tests.support.scribe import dispatched, run

MODULE = """
from snakemake_scheduler_plugin_tilewright import detect
from tests.support.failing_slurm import RULES

placement = workflow.placement = detect(workflow, RULES.models)

rule good:
    output: "good/{i}.txt"
    threads: placement.threads("good")
    resources: **placement.resources("good")
    shell: "true"
rule either:
    output: "either/{i}.txt"
    resources:
        **placement.either("either", gpu={"cpus": 3, "mem_mb": 700, "runtime": 9},
                           cpu={"cpus": 5, "mem_mb": 800, "runtime": 99}),
    shell: "true"
"""
SNAKEFILE = """
from tests.support.failing_slurm import recorded_cluster
from snakemake_scheduler_plugin_tilewright.cluster import cluster
cluster.of_command = lambda *asked: recorded_cluster()

module images:
    snakefile: "images.smk"

use rule * from images as images_*
use rule good from images as images_own with:
    output: "own/{i}.txt"

rule plain:
    output: "plain/{i}.txt"
    resources: mem_mb=500, runtime=5
    shell: "true"

rule all:
    default_target: True
    input: expand("{rule}/{i}.txt", rule=["good", "either", "own", "plain"], i=range(4))
localrules: all
"""
SIZES = {
    "images_good": {"gpu": (8, 5000), "cpu": (6, 3000)},
    "images_own": {"gpu": (8, 5000), "cpu": (6, 3000)},
    "images_either": {"gpu": (3, 700), "cpu": (5, 800)},
    "plain": {"cpu": (1, 500)},
}


@pytest.mark.parametrize("scheduler", ["tilewright", "greedy"])
def test_jobs_of_a_module_get_the_size_and_the_place_that_placement_chose(
    scheduler: str, tmp_path: Path
) -> None:
    (tmp_path / "images.smk").write_text(MODULE)
    done = run(tmp_path, SNAKEFILE, scheduler, executor="slurm")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "placement failed" not in said
    ledger = next(tmp_path.rglob("ledger.jsonl"), None)
    placed = {e["job"]: e for e in read_ledger(ledger) if e["event"] == "place"} if ledger else {}
    for rule, sizes in SIZES.items():
        jobs = dispatched(tmp_path, rule)
        assert len(jobs) == 4
        for wildcards, given in jobs:
            kind = "gpu" if given.get("gpu") else "cpu"
            cpus = given["cpus_per_task" if "either" in rule else "threads"]
            assert (cpus, given["mem_mb"]) == sizes[kind]
            if scheduler == "tilewright":
                assert given["slurm_partition"] == {"gpu": "hpg-b200", "cpu": "hpg-default"}[kind]
                place = placed[f"rule_{rule}_wildcards_{wildcards['i']}"]
                assert (place["account"], place["kind"]) == (given["slurm_account"], kind)
                assert place["account"] == given["qos"]
                assert (place["cpus"], place["runtime_min"]) == (cpus, given["runtime"])
    if scheduler == "tilewright":
        assert len(placed) == 16
        static = Placement(RULES.models, cluster=cluster_with("", tmp_path / "cache2")[0])
        good = dispatched(tmp_path, "images_good") + dispatched(tmp_path, "images_own")
        planned = [static.static("good", wildcards).target.account for wildcards, _ in good]
        assert planned != [given["slurm_account"] for _, given in good]  # or it shows nothing
