"""The sleeping jobs with an account and a device dealt out before the run, by weight."""

import sys
from collections import defaultdict

gpu_s, cpu_s = map(float, config["seconds"].split(","))
#: Account and device to slots per second, as they stand on an idle cluster.
SPEEDS = {
    (account, device): slots / (gpu_s if device == "gpu" else cpu_s)
    for account, device, slots in config["slots"]
}
PARTITIONS = {"gpu": "hpg-b200", "cpu": "hpg-default"}
PLACES = []
credit = defaultdict(float)
for _ in range(config["jobs"]):
    for place, speed in SPEEDS.items():
        credit[place] += speed
    PLACES.append(max(SPEEDS, key=lambda place: credit[place]))
    credit[PLACES[-1]] -= sum(SPEEDS.values())


def place(wildcards):
    return PLACES[int(wildcards.i)]


def size(wildcards):
    return config[f"{place(wildcards)[1]}_job"]


rule all:
    input:
        expand("out/{i}.txt", i=range(config["jobs"])),


localrules:
    all,


rule work:
    output:
        "out/{i}.txt",
    log:
        "log/work/{i}.log",
    threads: lambda wildcards: size(wildcards)["cpus"]
    resources:
        slurm_account=lambda wildcards: place(wildcards)[0],
        slurm_partition=lambda wildcards: PARTITIONS[place(wildcards)[1]],
        mem_mb=lambda wildcards: size(wildcards)["mem_mb"],
        runtime=5,
        gpu=lambda wildcards: 1 if place(wildcards)[1] == "gpu" else None,
    params:
        job=f"{sys.executable} {workflow.basedir}/job.py",
        device=lambda wildcards: place(wildcards)[1],
        seconds=config["seconds"],
    shell:
        "TILEWRIGHT_DEVICE={params.device} {params.job} {output} {params.seconds} none"
        " {wildcards.i} 2> {log}"
