"""Every reason that Slurm has for a job that pends, one by one: what is said and done."""

from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment
from snakemake_scheduler_plugin_tilewright.slurm.jobs import why_pending
from tests.placement.dispatched import CLIVE_GPU, DOWN, FULL, answer, dispatcher, events, pending
from tests.support.placement_rules import GPU

#: By ``job_state_reason_string`` of 22.05.8, 24.11.5 and 26.05.5 and their manual page squeue(1),
#: with what each says of its place. Of 22.05 and 24.11 alone: FrontEndDown; of 22.05 alone:
#: PowerNotAvail and PowerReserved; not of 22.05: the RunMins, MpiPortsBusy, MaxPoweredUpNodes.
REASONS = {
    "limit": """
        AssocGrpBB AssocGrpBBRunMinutes AssocGrpBilling AssocGrpBillingRunMinutes
        AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpEnergy AssocGrpEnergyRunMinutes
        AssocGrpGRES AssocGrpGRESRunMinutes AssocGrpJobsLimit AssocGrpLicense
        AssocGrpLicenseRunMinutes AssocGrpMemLimit AssocGrpMemRunMinutes AssocGrpNodeLimit
        AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit AssocGrpUnknown AssocGrpUnknownRunMinutes
        AssocMaxJobsLimit AssocMaxSubmitJobLimit AssociationJobLimit AssociationResourceLimit
        AssociationTimeLimit MaxBBPerAccount MaxBBRunMinsPerAccount MaxBBRunMinsPerUser
        MaxBillingPerAccount MaxBillingRunMinsPerAccount MaxBillingRunMinsPerUser
        MaxCpuPerAccount MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser MaxEnergyPerAccount
        MaxEnergyRunMinsPerAccount MaxEnergyRunMinsPerUser MaxGRESPerAccount
        MaxGRESRunMinsPerAccount MaxGRESRunMinsPerUser MaxJobsPerAccount MaxLicensePerAccount
        MaxLicenseRunMinsPerAccount MaxLicenseRunMinsPerUser MaxMemoryPerAccount
        MaxMemoryRunMinsPerAccount MaxMemoryRunMinsPerUser MaxNodePerAccount
        MaxNodeRunMinsPerAccount MaxNodeRunMinsPerUser MaxSubmitJobsPerAccount
        MaxUnknownPerAccount MaxUnknownRunMinsPerAccount MaxUnknownRunMinsPerUser QOSGrpBB
        QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingRunMinutes QOSGrpCPURunMinutesLimit
        QOSGrpCpuLimit QOSGrpEnergy QOSGrpEnergyRunMinutes QOSGrpGRES QOSGrpGRESRunMinutes
        QOSGrpJobsLimit QOSGrpLicense QOSGrpLicenseRunMinutes QOSGrpMemLimit
        QOSGrpMemoryRunMinutes QOSGrpNodeLimit QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit
        QOSGrpUnknown QOSGrpUnknownRunMinutes QOSJobLimit QOSMaxBBPerUser QOSMaxBillingPerUser
        QOSMaxCpuPerUserLimit QOSMaxEnergyPerUser QOSMaxGRESPerUser QOSMaxJobsPerUserLimit
        QOSMaxLicensePerUser QOSMaxMemoryPerUser QOSMaxNodePerUserLimit
        QOSMaxSubmitJobPerUserLimit QOSMaxUnknownPerUser QOSResourceLimit QOSTimeLimit
        AccountingPolicy
    """,
    "spent": """
        AssocGrpBBMinutes AssocGrpBillingMinutes AssocGrpCPUMinutesLimit AssocGrpEnergyMinutes
        AssocGrpGRESMinutes AssocGrpLicenseMinutes AssocGrpMemMinutes AssocGrpNodeMinutes
        AssocGrpUnknownMinutes AssocGrpWallLimit QOSGrpBBMinutes QOSGrpBillingMinutes
        QOSGrpCPUMinutesLimit QOSGrpEnergyMinutes QOSGrpGRESMinutes QOSGrpLicenseMinutes
        QOSGrpMemoryMinutes QOSGrpNodeMinutes QOSGrpUnknownMinutes QOSGrpWallLimit
        QOSUsageThreshold
    """,
    "invalid": """
        AssocMaxBBMinutesPerJob AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingMinutesPerJob
        AssocMaxBillingPerJob AssocMaxBillingPerNode AssocMaxCpuMinutesPerJobLimit
        AssocMaxCpuPerJobLimit AssocMaxCpuPerNode AssocMaxEnergyMinutesPerJob
        AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESMinutesPerJob AssocMaxGRESPerJob
        AssocMaxGRESPerNode AssocMaxLicenseMinutesPerJob AssocMaxLicensePerJob
        AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxNodeMinutesPerJob
        AssocMaxNodePerJobLimit AssocMaxUnknownMinutesPerJob AssocMaxUnknownPerJob
        AssocMaxUnknownPerNode AssocMaxWallDurationPerJobLimit QOSMaxBBPerJob QOSMaxBBPerNode
        QOSMaxBillingMinutesPerJob QOSMaxBillingPerJob QOSMaxBillingPerNode
        QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode
        QOSMaxEnergyMinutesPerJob QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxGRESMinutesPerJob
        QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxLicenseMinutesPerJob QOSMaxLicensePerJob
        QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxNodeMinutesPerJob
        QOSMaxNodePerJobLimit QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob
        QOSMaxUnknownPerNode QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling
        QOSMinCpuNotSatisfied QOSMinEnergy QOSMinGRES QOSMinLicense QOSMinMemory QOSMinNode
        QOSMinUnknown QOSNotAllowed AccountNotAllowed InvalidAccount InvalidQOS PartitionConfig
        PartitionNodeLimit PartitionTimeLimit BadConstraints Constraints MaxMemPerLimit
        ReservationDeleted ReservationInvalid
    """,
    "held": """
        JobHeldAdmin JobHeldUser JobHoldMaxRequeue BurstBufferOperation Licenses Dependency
        DependencyNeverSatisfied JobArrayTaskLimit BurstBufferResources BurstBufferStageIn
    """,
    "nodes": """
        ReqNodeNotAvail PartitionDown PartitionInactive Reservation NodeDown FrontEndDown
    """,
    "order": """
        None Priority Resources BeginTime Prolog Cleaning SchedDefer FedJobLock
        WaitingForScheduling PowerNotAvail PowerReserved MaxPoweredUpNodes MpiPortsBusy
        SystemFailure JobLaunchFailure NonZeroExitCode RaisedSignal TimeLimit InactiveLimit
        DeadLine OutOfMemory
    """,
}
#: Sentences of slurmctld, the first with underscores as scontrol prints them.
SENTENCES = {
    "invalid": [
        "Job's_account_not_permitted_to_use_this_partition_(cpu_allows_a_b_not_b)",
        "Job's QOS not permitted to use this partition (cpu denies a including a)",
        "User's group not permitted to use this partition",
    ],
    "held": ["launch_failed_requeued_held", "job requeued in held state"],
    "nodes": [
        "ReqNodeNotAvail,_Reserved_for_maintenance", "ReqNodeNotAvail, UnavailableNodes:c[1-2]",
        "ReqNodeNotAvail, May be reserved for other job", DOWN,
    ],
    "order": ["RaisedSignal:53(Real-time_signal_19)"],
    "unknown": ["AReasonOfTomorrow", ""],
}  # fmt: skip

ALL = {
    name: [*REASONS.get(name, "").split(), *SENTENCES.get(name, [])]
    for name in [*REASONS, "unknown"]
}
#: What says nothing of other places than its own.
ONE_PLACE = ("invalid", "unknown", "nodes", "order")
#: Where a job goes by them that pended on GPUs of clive for 100 s, and for 900 s: GPUs end it in
#: 120 s, CPUs in 600. None of clive's GPUs is free.
GOES = {
    "limit": ("brusko gpu", "brusko gpu"), "spent": ("brusko gpu", "brusko gpu"),
    "invalid": ("brusko gpu", "brusko gpu"), "unknown": ("brusko gpu", "brusko gpu"),
    "held": (None, None), "nodes": ("brusko cpu", "brusko cpu"), "order": (None, "brusko cpu"),
}  # fmt: skip


@pytest.mark.parametrize("waited_s", [100, 900])
@pytest.mark.parametrize("obstacle", ALL)
def test_what_every_reason_of_slurm_does(tmp_path: Path, obstacle: str, waited_s: int) -> None:
    """Also that nothing else is sent to what a limit bounds, and the job not back."""
    run = dispatcher("", tmp_path, 1, 3, FULL)
    (task, *others), ready = run.tasks.values(), list(run.tasks)[1:]
    for reason in ALL[obstacle]:
        run.backoff.clear()
        for one in others:
            one.assignment = None
        task.assignment, task.slurm_job, task.move_reason = Assignment(CLIVE_GPU, GPU), None, ""
        task.sent_s, task.delayed_s, task.last_reason, task.moves = 5000.0 - waited_s, 0, "", 0
        task.excluded_targets = frozenset()
        answer(run, squeue=pending(1, reason))
        assert why_pending(reason.replace(" ", "_")) == why_pending(reason)
        assert why_pending(reason).obstacle == obstacle, reason
        goes = GOES[obstacle][waited_s > 100]
        run.state()
        (said,) = run.explain_pending()
        assert f"pends: {why_pending(reason).words}" in said
        assert said.endswith(f"(Slurm: {reason})")
        limits = obstacle in ("limit", "spent", "invalid", "unknown")
        assert ("no more such jobs go to clive until one starts there" in said) == limits, reason
        assert [task.name] * (goes is not None) == run.move_pending(), reason
        if goes is None:
            assert not run.backoff, reason
            continue
        assert [one["sooner"] for one in events(run, "move")][-1] == goes, reason
        assert (CLIVE_GPU in task.excluded_targets, CLIVE_GPU in run.backoff) == (True, True)
        answer(run, squeue="")
        places = [one.target for one in run.round(ready, []).values()]
        closed = {"gpu", "cpu"} - ({"cpu"} if "GRES" in reason or obstacle in ONE_PLACE else set())
        there = {place.device for place in places if place.account == "clive"}
        assert len(places) == 3 or obstacle in ("nodes", "order"), reason
        assert not there & closed, reason
