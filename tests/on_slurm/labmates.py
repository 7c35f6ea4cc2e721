"""What other people do on the private cluster."""

from tests.support.slurm_cluster import Cluster, wait_for


def running(slurm: Cluster, *jobs: int) -> None:
    """Wait until these jobs run."""
    wait_for(lambda: all("RUNNING" in slurm.show_job(job) for job in jobs), 30)


def hold_gpus(slurm: Cluster, seconds: int, **gpus: int) -> list[int]:
    """Have a labmate hold so many GPUs of the node on each account."""
    slurm.set_qos("brusko", "GrpTRES=cpu=999,mem=9000G,gres/gpu=8")
    held = [
        slurm.sbatch("labmate", "-A", account, "-p", "hpg-b200", f"--gres=gpu:{count}", "-c", "8",
                     "--mem=9G", command=f"sleep {seconds}")
        for account, count in gpus.items()
    ]  # fmt: skip
    running(slurm, *held)
    return held


def hold_all_gpus(slurm: Cluster, seconds: int) -> int:
    """Have a labmate hold all GPUs of the node."""
    return hold_gpus(slurm, seconds, brusko=8)[0]


def fill(slurm: Cluster) -> list[int]:
    """Have a labmate hold all GPUs and all CPUs of the default partition."""
    held = hold_gpus(slurm, 600, brusko=8)
    cpus = [
        slurm.sbatch("labmate", "-A", "brusko", "-p", "hpg-default", "-c", "128", "--mem=100G",
                     command="sleep 600")
        for _ in range(2)
    ]  # fmt: skip
    running(slurm, *cpus)
    return [*held, *cpus]
