"""Ways to run workflows on a simulated Slurm, over the production code of a commit.

``python -m benchmarks.placement [--scenarios 200] [--seed 7] [--workers 2]``. Makespans
are over those of ``today.csv``: of the code that predicted what Slurm would do (commit 7b443477).
"""

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from .driver import Driver, Outcome, Unplaced
from .production import Production
from .scenarios import make_scenario
from .slurm_simulator import SimulatedSlurm

TODAY = Path(__file__).parent / "today.csv"
DRIVERS: Mapping[str, Callable[[], Driver]] = {
    "production": Production,
    "any free slot": Unplaced,
    "one account": partial(Unplaced, one_account=True),
}


@dataclass(frozen=True)
class Result:
    """What one driver made of one scenario."""

    seed: int
    tags: str
    jobs: int
    outcome: Outcome

    @property
    def makespan_s(self) -> float:
        """Seconds until the last job was known to be done."""
        return self.outcome.makespan_s


def play(driver: Callable[[], Driver], seed: int) -> Result:
    """Return what a driver makes of the scenario of a seed."""
    scenario = make_scenario(seed)
    outcome = driver().play(scenario, SimulatedSlurm(scenario))
    return Result(seed, ";".join(sorted(scenario.tags)), len(scenario.tasks), outcome)


def read_results(path: Path) -> dict[int, Result]:
    """Return the results of a file by seed; none where there is no file."""
    found = {}
    kinds = {one.name: one.type for one in fields(Outcome)}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for row in csv.DictReader(lines):
        values = {name: float(row[name]) if kind is float else int(row[name])
                  for name, kind in kinds.items()}  # fmt: skip
        seed = int(row["seed"])
        found[seed] = Result(seed, row["tags"], int(row["jobs"]), Outcome(**values))  # type: ignore[arg-type]
    return found


def main() -> None:
    """Run all scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.scenarios)
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        today = {seed: one for seed, one in read_results(TODAY).items() if seed in seeds}
        rows = {name: [*pool.map(partial(play, driver), seeds)] for name, driver in DRIVERS.items()}
    print(f"python -m benchmarks.placement --scenarios {options.scenarios} "
          f"--seed {options.seed}, {time.perf_counter() - begin:.0f} s\n")  # fmt: skip
    print(report({"today": [*today.values()], **rows}, today))


def report(rows: Mapping[str, Sequence[Result]], today: Mapping[int, Result]) -> str:
    """Return the table of makespans over today's, by driver and by what is in the scenarios."""
    lines = [
        "| driver | scenarios | n | mean | median | p95 | worst | sooner | not ended "
        "| jobs run twice | jobs lost | questions a minute | submissions a job | moves | lost h |",
        "|---" * 15 + "|",
    ]
    for driver, results in rows.items():
        tags = sorted({tag for one in results for tag in one.tags.split(";")})
        groups = {"all": list(results)}
        if driver != "today":
            groups |= {tag: [one for one in results if tag in one.tags.split(";")] for tag in tags}
        lines += [_line(driver, name, group, today) for name, group in groups.items()]
    return "\n".join(lines)


def _line(driver: str, name: str, results: Sequence[Result], today: Mapping[int, Result]) -> str:
    ended = [one for one in results if one.makespan_s < math.inf]
    base = {seed: one.makespan_s for seed, one in today.items() if one.makespan_s < math.inf}
    ratios = sorted(one.makespan_s / base[one.seed] for one in ended if one.seed in base)
    of = [one.outcome for one in results]
    numbers = "- | - | - | - | -"
    if ratios:
        p95 = ratios[min(len(ratios) - 1, math.ceil(0.95 * len(ratios)) - 1)]
        sooner = 100 * sum(ratio < 0.995 for ratio in ratios) / len(ratios)
        numbers = (f"{statistics.fmean(ratios):.3f} | {statistics.median(ratios):.3f} | {p95:.2f} "
                   f"| {ratios[-1]:.2f} | {sooner:.0f} %")  # fmt: skip
    asked = sum(one.outcome.questions for one in ended)
    minutes = sum(one.makespan_s for one in ended) / 60
    sent = sum(one.submissions for one in of) / max(1, sum(one.jobs for one in results))
    return (
        f"| {driver} | {name} | {len(ratios)} | {numbers} | {len(results) - len(ended)} "
        f"| {sum(one.jobs_run_twice for one in of)} | {sum(one.jobs_lost for one in of)} "
        f"| {asked / minutes if minutes else 0:.1f} | {sent:.2f} | {sum(one.moves for one in of)} "
        f"| {sum(one.lost_s for one in of) / 3600:.1f} |"
    )


if __name__ == "__main__":
    main()
