"""Every reason that Slurm has for a job that pends, one by one: what it says of its place."""

import pytest

from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.placement.request import Place
from snakemake_scheduler_plugin_tilewright.placement.status import Places
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.reasons import (
    NOT_STARTED,
    may_have_taken,
    may_pass,
    refusal_words,
    why_pending,
)
from tests.support.placement_rules import CPU

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
HERE, THERE = (Place(name, name, ("cpu",), "cpu") for name in ("here", "there"))
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
EACH = [(name, reason) for name, reasons in ALL.items() for reason in reasons]


def pends(reason: str, since_s: float = 900.0, state: str = "PENDING") -> Task:
    """Return a job that pends at a place for a reason, by the queue of 1000 s."""
    task = Task(object(), "work", "work", {"cpu": CPU}, place=HERE, slurm_id=7)
    task.sent_s = task.waits_since_s = since_s
    task.slurm_job = SlurmJob(7, state, reason=reason)
    return task


@pytest.mark.parametrize(("obstacle", "reason"), EACH, ids=[reason for _, reason in EACH])
def test_what_every_reason_of_slurm_means(obstacle: str, reason: str) -> None:
    found = why_pending(reason)
    assert found == why_pending(reason.replace(" ", "_")) == why_pending(reason.upper())
    assert (found.obstacle, bool(found.words)) == (obstacle, True)
    places = Places()
    places.note([pends(reason)], 1000.0)
    here, there = places.spot(HERE, 1000.0), places.spot(THERE, 1000.0)
    assert here.full == (obstacle in ("limit", "unknown", "order"))
    assert bool(here.closed) == (obstacle == "nodes")
    assert not places.wrong_s  # nothing was known as it was sent
    # full nodes are full for all accounts
    assert (there.full, there.closed) == (obstacle == "order", "")


def test_a_place_is_full_as_long_as_slurm_says_so_and_a_minute_more() -> None:
    places = Places()
    places.note([pends("Priority", since_s=950.0)], 1000.0)  # Slurm schedules twice a minute
    assert not places.spot(HERE, 1000.0).full
    places.note([pends("QOSGrpCpuLimit")], 1000.0)
    assert [places.spot(HERE, at_s).full for at_s in (1000.0, 1059.0, 1061.0)] == [
        True, True, False,
    ]  # fmt: skip


def test_what_was_known_of_a_place_is_not_trusted_after_a_job_pends_against_it() -> None:
    places, task = Places(), pends("QOSGrpCpuLimit")
    task.had_room = True
    places.note([task], 1000.0)
    assert [places.wrong(at_s) for at_s in (1000.0, 1299.0, 1301.0)] == [{HERE}, {HERE}, set()]


def test_a_place_is_closed_for_2_4_8_minutes_and_open_when_a_job_starts_there() -> None:
    places, now_s, spans = Places(), 1000.0, []
    for _ in range(8):
        places.close(HERE, "down", now_s)
        places.close(HERE, "down", now_s + 1)  # the same try
        spans.append((places.closed[HERE].until_s - now_s) / 60)
        now_s = places.closed[HERE].until_s
        assert places.spot(HERE, now_s - 1).closed == "down"
        assert places.spot(HERE, now_s).closed == ""
    assert spans == [2, 4, 8, 16, 32, 64, 64, 64]
    places.note([pends("None", since_s=now_s - 1, state="RUNNING")], now_s + 10)
    assert HERE in places.closed  # it was sent before
    places.note([pends("None", since_s=now_s + 1, state="RUNNING")], now_s + 10)
    assert not places.closed


@pytest.mark.parametrize(
    ("words", "later", "perhaps"),
    [
        ("QOSMaxSubmitJobPerUserLimit", True, False),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         True, False),
        ("Unable to contact slurm controller (connect failure)", True, False),
        ("Requested partition configuration not available now", False, False),
        ("Required partition not available (inactive or drain)", True, False),
        ("Invalid qos specification", False, False),
        ("Requested node configuration is not available", False, False),
        ("invalid partition specified: nope", False, False),
        ("Socket timed out on send/recv operation", True, True),
        ("no answer within 120 s: timed out", True, True),
        ("Zero Bytes were transmitted or received", True, True),
    ],
)  # fmt: skip
def test_what_sbatch_says(words: str, *, later: bool, perhaps: bool) -> None:
    assert (may_pass(words), may_have_taken(words)) == (later, perhaps)
    said = f"sbatch: error: Batch job submission failed: {words}\n"
    assert refusal_words(said) == words


def test_words_of_refusals_in_several_lines_and_none() -> None:
    said = "sbatch: error: cpu: no such account\n\nsbatch: error: ask the staff\n"
    assert refusal_words(said) == "cpu: no such account; ask the staff"
    assert refusal_words(" \n") == "sbatch refused it without a word"
    assert why_pending("launch failed requeued held").words == NOT_STARTED


@pytest.mark.parametrize(
    ("reason", "full"),
    [
        ("QOSMaxCpuPerUserLimit", {"a day", "b day"}),
        ("QOSGrpCpuLimit", {"a day", "b day"}),
        ("AssocGrpCpuLimit", {"a day", "a night"}),
        ("QOSMaxCpuPerAccount", {"a day"}),
        ("no such reason", {"a day"}),
    ],
)
def test_a_limit_of_a_qos_fills_it_for_all_accounts_and_one_of_an_account_all_its_qos(
    reason: str, full: set[str]
) -> None:
    places = Places()
    all_of = {f"{a} {q}": Place(a, q, ("cpu",), "cpu") for a in "ab" for q in ("day", "night")}
    places.fill(all_of["a day"], 1000.0, reason)
    assert {name for name, place in all_of.items() if places.spot(place, 1001.0).full} == full
    gpu = Place("a", "day", ("gpu",), "gpu")
    assert not places.spot(gpu, 1001.0).full
