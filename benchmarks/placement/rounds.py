"""CPU time of one round of placement, with 10,000 ready jobs and 60 accounts of four QOS each.

``python -m benchmarks.placement.rounds``: where all places are full and as many jobs pend as may,
as it is most of the time, and where all have room, and as many jobs are sent as one round sends.
"""

import statistics
import time

from snakemake_scheduler_plugin_tilewright.placement.run import MOST_STARTS
from snakemake_scheduler_plugin_tilewright.placement.status import FEW
from tests.support.placement_rules import GPU, Given, account, cluster_of, tasks

REPEATS = 9


def given() -> Given:
    """Return 240 places for CPUs and 240 for GPUs."""
    limit = {"cpu": 104, "gres/gpu": 3, "jobs": 50}
    accounts = [account(f"lab{i}", limit, order=order) for i in range(60) for order in range(4)]
    return Given(cluster_of(accounts), GPU)


def cpu_ms(*, full: bool) -> float:
    """Return the median CPU time of a round, in ms."""
    ready = [task for rule in "abcdefgh" for task in tasks(1250, ("gpu", "cpu"), rule=rule)]
    given().choose(ready)  # a job is counted among those that are alike as it becomes ready
    found = []
    for _ in range(REPEATS):
        one = given()
        one.most = MOST_STARTS
        one.round().place(ready[:1], ())  # what is known of places is kept from round to round
        for place, spot in one.spots.items():
            spot.full = full
            one.spots.add(place, pending=FEW * full)
        begin = time.process_time()
        one.round().place(ready, ())
        found.append((time.process_time() - begin) * 1000)
    return statistics.median(found)


if __name__ == "__main__":
    print(f"all places full: {cpu_ms(full=True):.0f} ms; all free: {cpu_ms(full=False):.0f} ms")
