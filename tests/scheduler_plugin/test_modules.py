"""Rules of a module have another name in the workflow that uses it than in their own Snakefile."""

from pathlib import Path

from tests.support.scribe import events
from tests.support.small_slurm import options, run, sent

MODULE = """
from snakemake_scheduler_plugin_tilewright import ResourceModel, ResourceRequest, detect

SIZES = {"gpu": ResourceRequest(8, 5000, 1, 60), "cpu": ResourceRequest(6, 3000, 0, 90)}
good = ResourceModel(("gpu", "cpu"), lambda wildcards, kind: SIZES[kind], lambda wildcards: 60.0)
placement = workflow.placement = detect(workflow, {"good": good})

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
#: CPUs, memory and minutes on each kind.
SIZES = {
    "images_good": {"gpu": (8, 5000, 60), "cpu": (6, 3000, 90)},
    "images_own": {"gpu": (8, 5000, 60), "cpu": (6, 3000, 90)},
    "images_either": {"gpu": (3, 700, 9), "cpu": (5, 800, 99)},
    "plain": {"cpu": (1, 500, 5)},
}


def test_jobs_of_a_module_get_the_size_and_the_place_that_placement_chose(tmp_path: Path) -> None:
    (tmp_path / "images.smk").write_text(MODULE)
    done = run(tmp_path, SNAKEFILE, "--set-resources", "images_own:mem_mb=4321")
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    places = {event["slurm_id"]: event for event in events(tmp_path, "place")}
    assert len(places) == 16
    assert len({event["kind"] for event in places.values()}) == 2
    for rule, sizes in SIZES.items():
        jobs = sent(tmp_path, f"rule_{rule}_")
        assert len(jobs) == 4
        for job in jobs:
            place, call = places[job["id"]], options(job)
            cpus, mem_mb, minutes = sizes[place["kind"]]
            mem_mb = 4321 if rule == "images_own" else mem_mb
            assert (place["cpus"], place["mem_mb"], place["runtime_min"]) == (cpus, mem_mb, minutes)
            for option in (f"--cpus-per-task={cpus}", f"--mem {mem_mb} ", f"-t {minutes} "):
                assert option in call
            on_gpu = place["kind"] == "gpu"
            assert ("gpu" in call.replace("hpg", "")) == on_gpu, call
            assert job["partition"] == ("hpg-b200" if on_gpu else "hpg-default")
            assert (job["account"], job["qos"]) == (place["account"], place["qos"])
