"""A night on a shared cluster in small: placement at dispatch beside static weighted round robin.

``python -m benchmarks.night [--jobs 60]``, as root, on a private Slurm cluster that it brings up.
Both run the same jobs under the same events (``tests.support.night``), one after the other, about
25 minutes. Static: account and device of every job are dealt out before the run, by the slots of
an idle cluster over the duration on them, and sent to Slurm at once by Snakemake's executor.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.support.cluster_runs import ClusterRun
from tests.support.night import SIZES, SLOTS, Night, StaticRun
from tests.support.slurm_cluster import Cluster

WAYS = {"tilewright": ClusterRun, "static weighted round robin": StaticRun}


def main() -> None:
    """Play both nights and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="a folder for logs and ledger")
    parser.add_argument("--only", choices=[name.split()[0] for name in WAYS], action="append")
    options = parser.parse_args()
    print("| | jobs complete | written twice | makespan | pending on limits | pending at all |")
    print("|---" * 6 + "|", flush=True)
    with Cluster() as slurm, tempfile.TemporaryDirectory() as scratch:
        for name, way in WAYS.items():
            if options.only and name.split()[0] not in options.only:
                continue
            folder = (options.keep or Path(scratch)) / name.split()[0]
            folder.mkdir(parents=True)
            run = way(slurm, folder)
            run.prepare(jobs=options.jobs, slots=SLOTS, **SIZES)
            night = Night(run, options.jobs)
            night.play()
            makespan = f"{night.made_s:.0f} s"
            if night.complete < options.jobs:
                makespan = f"not done after {night.limit_s:.0f} s"
            print(
                f"| {name} | {night.complete} of {options.jobs} | {night.twice} | {makespan} "
                f"| {night.on_limits_s:.0f} job-s | {night.pending_s:.0f} job-s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
