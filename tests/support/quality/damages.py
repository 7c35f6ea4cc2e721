"""Known damages to the files of a small experiment: does quality notice, and say what it is?

``python -m tests.support.quality.damages`` prints what quality says of each; ``make docs`` writes
their names into ``docs/quality-tested.md``.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.quality import faults
from tests.support.quality.workbench import CYCLES, SAMPLE, Bench, make_bench
from tilewright.config.experiment import ConfigError
from tilewright.report.verdict import Item
from tilewright.stages.edf.plane import EdfError
from tilewright.stages.edf.stack_survey import StackError
from tilewright.stages.register.cycle import MismatchError

_RANK = {"pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True)
class Damage:
    """A fault that is put into a copy of the experiment.

    Attributes
    ----------
    name : str
        What is wrong.
    harm : callable
        Puts it in and runs again what depends on it; returns the quality stages to ask, each with
        its cycle and channels.
    named : str
        Regular expression that the item must match: ``cycle C channel N sentence``.
    """

    name: str
    harm: faults.Harm
    named: str


@dataclass(frozen=True)
class Outcome:
    """What quality said of a damage.

    Attributes
    ----------
    damage : Damage
    items : tuple of Item
        All that was asked.
    item : Item or None
        The first that names the damage, else any that is worse than without it.
    noticed, named : bool
        Whether an item is worse than without the damage, and whether such an item names it.
    """

    damage: Damage
    items: tuple[Item, ...]
    item: Item | None
    noticed: bool
    named: bool


def text_of(item: Item) -> str:
    """Return what a reader sees of an item."""
    return f"cycle {item.cycle} channel {item.channel} {item.sentence}"


def key_of(item: Item) -> tuple[str, int, str, str]:
    """Return what makes two items of two runs the same question."""
    return item.stage, item.cycle, item.channel, item.metric


def baseline(bench: Bench) -> dict[tuple[str, int, str, str], Item]:
    """Return all items of the undamaged experiment."""
    items = [
        item
        for cycle in CYCLES
        for stage in ("illumination", "tile_positions", "stitch", "edf", "image")
        for item in bench.quality(stage, cycle)
    ]
    others = [*bench.quality("deconvolve", 1), *bench.quality("register", 2)]
    return {key_of(item): item for item in [*items, *others]}


def judge_damage(
    damage: Damage, bench: Bench, before: dict[tuple[str, int, str, str], Item], folder: Path
) -> Outcome:
    """Damage a copy of the experiment and ask quality."""
    copy = bench.copy(folder)
    try:
        asked = damage.harm(copy)
    except (ConfigError, EdfError, MismatchError, StackError) as refusal:
        items = [_refused(str(refusal))]
    else:
        items = [
            i for stage, cycle, channels in asked for i in copy.quality(stage, cycle, channels)
        ]
    worse = [i for i in items if _RANK[i.verdict] > _rank_before(before, i)]
    worse.sort(key=lambda i: -_RANK[i.verdict])
    naming = [i for i in worse if re.search(damage.named, text_of(i))]
    found = [*naming, *worse]
    return Outcome(damage, tuple(items), found[0] if found else None, bool(worse), bool(naming))


def _rank_before(before: dict[tuple[str, int, str, str], Item], item: Item) -> int:
    known = before.get(key_of(item))
    return _RANK[known.verdict] if known else 0


def _refused(sentence: str) -> Item:
    """Return the item that stands for a run that ended with an error."""
    cycle = re.search(r"[Cc]yc(?:le)?[ _]?(\d)", sentence)
    return Item(
        SAMPLE, int(cycle[1]) if cycle else 0, "", "", "register", "refused", None, None, None,
        "above", "fail", "refused",
        f"The run ends: {re.sub(r'(/[^/ ]+)*/([^/ ]+/[^/ ]+)', chr(92) + '2', sentence)}.",
    )  # fmt: skip


def outcomes(bench: Bench, folder: Path, damages: Iterable[Damage]) -> list[Outcome]:
    """Return what quality says of each damage."""
    before = baseline(bench)
    return [
        judge_damage(damage, bench, before, folder / f"damage{k}")
        for k, damage in enumerate(damages)
    ]


def table(found: Iterable[Outcome]) -> str:
    """Return the table of what quality says."""
    lines = ["| Damage | Noticed by | What quality says |", "|---|---|---|"]
    for outcome in found:
        item = outcome.item
        if item is None or not outcome.named:
            lines.append(f"| {outcome.damage.name} | **not noticed** | |")
            continue
        where = f"cycle {item.cycle}" + (f", channel {item.channel}" if item.channel else "")
        who = "`register` itself" if item.metric == "refused" else f"`{item.metric}` ({item.stage})"
        # Without the limit and what to do, and without the figures of a refusal.
        sentence = re.sub(
            r"(, (above|below) [^:]*: .*)|: correlation of.*? are needed", "", item.sentence
        ).replace("|", "/")
        lines.append(f"| {outcome.damage.name} | {who}, {item.verdict} | {where}: {sentence} |")
    return "\n".join(lines)


DAMAGES = (
    Damage("one tile 3 px off in `positions.csv`", faults.moved_tile, "cycle 1.*row 1 column 1"),
    Damage("two tiles exchanged", faults.swapped_tiles, "cycle 1 channel 1 .*row 1 column [12]"),
    Damage("a tile is a copy of another", faults.copied_tile, "cycle 1 channel 1 .*row 1 column 1"),
    Damage("one tile 30 % dimmer", faults.dim_tile, "cycle 1 channel 1 .*row 1 column 1"),
    Damage("the tiles of a cycle mirrored", faults.mirrored_cycle, "cycle 2"),
    Damage(
        "a plane black",
        faults.plane(lambda s: faults.set(s, 3, np.zeros(s.shape[1:]))),
        "cycle 1 channel 2 .*plane 4",
    ),
    Damage(
        "a plane recorded twice",
        faults.plane(lambda s: faults.set(s, 3, s[2])),
        "cycle 1 channel 2 .*plane [34]",
    ),
    Damage(
        "two planes exchanged",
        faults.plane(lambda s: s[[0, 3, 2, 1, 4]]),
        "cycle 1 channel 2 .*plane [24]",
    ),
    Damage(
        "a plane displaced by 3 px",
        faults.plane(lambda s: faults.set(s, 3, np.roll(s[3], 3, axis=0))),
        "cycle 1 channel 2 .*plane 4",
    ),
    Damage(
        "a plane 30 % dimmer",
        faults.plane(lambda s: faults.set(s, 3, faults.dimmed(s[3], 0.7))),
        "cycle 1 channel 2 .*plane 4",
    ),
    Damage("the flat-field applied twice", faults.flat(lambda flat: flat**2), "cycle 1 channel 2"),
    Damage("the flat-field of another channel", faults.foreign_flat, "cycle 1 channel 2"),
    Damage("the flat-field inverted", faults.flat(lambda flat: 1 / flat), "cycle 1 channel 2"),
    Damage(
        "a dark-field 150 counts too high", faults.flat(lambda flat: flat, 150), "cycle 1 channel 2"
    ),
    Damage(
        "hot pixels left",
        lambda b: faults.stitched(b, 1, "2", repair_pixels=False),
        "cycle 1 channel 2 Defective camera pixels",
    ),
    Damage(
        "a channel saturated",
        faults.raw(1, "2", lambda s: faults.dimmed(s, 40)),
        "cycle 1 channel 2 Pixels at the camera",
    ),
    Damage("a marker blank", faults.raw(1, "2", faults.blank), "cycle 1 channel 2"),
    Damage("a cycle out of focus", faults.raw(2, "1", faults.blurred(5)), "cycle 2 .*focus"),
    Damage(
        "a tile black in the mosaic",
        faults.mosaic(faults.black_tile),
        "cycle 1 channel 1 .*row 1 column 1",
    ),
    Damage(
        "a step of 20 % in the mosaic",
        faults.mosaic(faults.step),
        "cycle 1 channel 1 .*column [12]",
    ),
    Damage(
        "a chunk of the mosaic not written",
        faults.mosaic(faults.zero_chunk),
        "cycle 1 channel 1 .*plane 3 row 1 column 0",
    ),
    Damage("deconvolved with the PSF of another objective", faults.wrong_psf, "cycle 1 channel 1"),
    Damage(
        "an in-focus plane made with the PSF of another objective",
        faults.wrong_optics,
        "cycle 1 channel 1",
    ),
    Damage(
        "2.5 times the light after deconvolution", faults.more_light, "cycle 1 channel 1 .*light"
    ),
    Damage("the in-focus plane made of the wrong plane", faults.wrong_plane, "cycle 1 channel 2"),
    Damage("the in-focus plane of another channel", faults.foreign_plane, "cycle 1 channel 2"),
    Damage("the transform of a cycle 1.5 px off", faults.transform(faults.shifted), "cycle 2"),
    Damage("the transform of a cycle turned by 0.2°", faults.transform(faults.turned), "cycle 2"),
    Damage(
        "the elastic field three times too large",
        faults.transform(lambda t: dataclasses.replace(t, field=3 * t.field)),
        "cycle 2",
    ),
    Damage("two channels of a cycle exchanged", faults.exchanged_in_cycle, "cycle 2"),
    Damage(
        "a marker exchanged between cycles", faults.exchanged_between_cycles, "cycle [12] channel 2"
    ),
    Damage("the stain of a cycle inverted", faults.negative, "negative"),
    Damage(
        "channels of the final image in a wrong order",
        faults.image(faults.wrong_order, tiff=True),
        "cycle 1 channel [12]",
    ),
    Damage(
        "a lower level of the final image of another channel",
        faults.image(faults.wrong_level, tiff=False),
        "cycle 1 channel 1 .*level 1",
    ),
    Damage(
        "a chunk of the final image missing",
        faults.image(faults.lost_chunk, tiff=True),
        "cycle 1 channel 1 .*missing",
    ),
)

#: Not noticed, or not by name: what is known to pass for good.
MISSED = {
    "deconvolved with the PSF of another objective",
}


def main() -> None:
    """Print the table, and how many were noticed and named."""
    with tempfile.TemporaryDirectory() as name:
        found = outcomes(make_bench(Path(name) / "base"), Path(name), DAMAGES)
    print(table(found))
    print(f"\n{sum(o.named for o in found)} of {len(found)} noticed and named", file=sys.stderr)


if __name__ == "__main__":
    main()
