"""What a run says of the cluster at its start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.placement.first_look import first_look
from snakemake_scheduler_plugin_tilewright.slurm.accounts import NO_ACCOUNT
from tests.support.placement_rules import with_use
from tests.support.recorded import cluster_with


def test_accounts_limits_and_what_is_left_out_are_said_in_a_few_lines(tmp_path: Path) -> None:
    survey = cluster_with("", tmp_path)[0].survey
    head, *lines = first_look(survey)
    assert head == "jobs go to 3 accounts of ada; see `tilewright-placement accounts`"
    assert lines[:3] == [
        "  brusko: QOS brusko, 32 CPUs, 250 GB, 1 GPU; 32 CPUs, 250 GB, 1 GPU free now",
        "  clive: QOS clive, 104 CPUs, 812 GB, 3 GPUs; 64 CPUs, 112 GB, 2 GPUs free now",
        "  maigan: QOS maigan, 80 CPUs, 625 GB, 2 GPUs; 80 CPUs, 625 GB, 2 GPUs free now",
    ]
    assert lines[3] == "  left out: clive-b: burst account (its name matches -b$)"
    assert lines[4:] == ["  partitions: GPU jobs to hpg-b200; CPU jobs to hpg-default"]


def test_nothing_is_said_of_gpus_where_no_job_may_use_one(tmp_path: Path) -> None:
    _, *lines = first_look(cluster_with("", tmp_path)[0].survey, {"cpu"})
    assert lines[1] == "  clive: QOS clive, 104 CPUs, 812 GB; 64 CPUs, 112 GB free now"
    assert lines[4:] == ["  partitions: CPU jobs to hpg-default"]


def test_many_accounts_none_and_unknown_use(tmp_path: Path) -> None:
    survey = cluster_with("", tmp_path)[0].survey
    clive = survey.accounts[1]
    unknown = with_use(clive, lambda _: None)
    many = tuple(replace(unknown, name=f"lab{k}") for k in range(40))
    head, *lines = first_look(replace(survey, accounts=many))
    assert head == "jobs go to 40 accounts of ada; see `tilewright-placement accounts`"
    assert lines[3] == "  and lab3, lab4, lab5, lab6 and 33 more"
    assert len(lines) == 6
    assert lines[0].endswith("3 GPUs; what is free now is not known")
    none = first_look(replace(survey, accounts=(NO_ACCOUNT,), left_out=()))
    assert none[0].startswith("this Slurm keeps no accounts")
    assert len(none) == 2
