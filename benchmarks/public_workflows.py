"""Makespans of stand-ins of public workflows: placement beside the plain executor on one account.

``python -m benchmarks.public_workflows [--only rna_seq]``, as root, on a private Slurm cluster that
it brings up. The same jobs run with two accounts that placement may use, and with Snakemake's own
scheduler on the larger of them; both look at their jobs as often.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.cluster_runs import ClusterRun, foreign
from tests.support.slurm_cluster import Cluster

ACCOUNTS = ("clive", "maigan")  # the larger first
#: Workflow to its number of samples.
SAMPLES = {"rna_seq": 8, "dna_seq": 6, "nanopore": 6, "metagenome": 8, "population": 10}


class PlainRun(ClusterRun):
    """All jobs on one account, by Snakemake's scheduler and Slurm executor."""

    def command(self, *args: str) -> list[str]:
        """Return Snakemake's command."""
        return [
            *(sys.executable, "-m", "snakemake", *args, "--configfile", "config.yaml"),
            *("--snakefile", str(self.snakefile), "--executor", "slurm", "--jobs", "1000"),
            *("--retries", "3", "--keep-going", "--latency-wait", "60", "--local-cores", "2"),
            *("--slurm-init-seconds-before-status-checks", "5", "--max-jobs-per-timespan"),
            *("1000/10s", "--slurm-status-command", "squeue", "--default-resources"),
            f"slurm_account={ACCOUNTS[0]}",
            # without it sbatch refuses jobs for GPUs: the default partition has none
            *("--set-resources", "basecall:slurm_partition=hpg-b200"),
        ]


def main() -> None:
    """Run each workflow both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(SAMPLES), action="append")
    parser.add_argument("--seconds", type=int, default=20, help="length of a step")
    options = parser.parse_args()
    print(f"| workflow | jobs | placement | its accounts | plain, {ACCOUNTS[0]} | ratio |")
    print("|---" * 6 + "|", flush=True)
    with Cluster() as slurm, tempfile.TemporaryDirectory() as scratch:
        for name in options.only or SAMPLES:
            took_s, accounts = [], Counter[str]()
            for kind in (ClusterRun, PlainRun):
                folder = Path(scratch, f"{name}-{kind.__name__}")
                folder.mkdir()
                config = {"samples": SAMPLES[name], "seconds": options.seconds}
                run = foreign(slurm, folder, name, {"allowed": list(ACCOUNTS)}, kind, **config)
                took_s.append(run.run(timeout_s=1800))
                if kind is ClusterRun:  # in allowed accounts, and in the ledger
                    accounts = Counter(job.account for job in run.check_placed(set(ACCOUNTS)))
            print(
                f"| {name} | {accounts.total()} | {took_s[0]:.0f} s "
                f"| {', '.join(f'{account} {n}' for account, n in sorted(accounts.items()))} "
                f"| {took_s[1]:.0f} s | {took_s[0] / took_s[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
