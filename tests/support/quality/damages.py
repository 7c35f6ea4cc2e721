"""Known damages to the files of a small experiment: does quality notice, and say what it is?

``make docs`` writes their names into ``docs/quality.md``.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.support.quality import faults as f
from tests.support.quality.workbench import CYCLES, SAMPLE, Bench
from tilewright.errors import ConfigError, MismatchError, ProcessingError
from tilewright.quality.results import QcResult

STAGES_OF_CYCLE = ("illumination", "tile_positions", "stitch", "edf")
_RANK = {"pass": 0, "warn": 1, "fail": 2}
Baseline = dict[tuple[str, int, str, str], QcResult]


class Damage(NamedTuple):
    """A fault that is put into a copy of the experiment.

    Attributes
    ----------
    harm : callable
        Puts it in and runs again what depends on it; returns the quality stages to ask, each with
        its cycle and channels.
    warns : str
        Judged numbers that must warn, each in one damage.
    named : str
        Regular expression that an item which is worse than without the damage must match:
        ``cycle/channel sentence``.
    """

    harm: f.Harm
    warns: str = ""
    named: str = ""


def text_of(item: QcResult) -> str:
    """Return what a reader sees of an item."""
    return f"{item.cycle}/{item.channel} {item.sentence}"


def key_of(item: QcResult) -> tuple[str, int, str, str]:
    """Return what makes two items of two runs the same question."""
    return item.stage, item.cycle, item.channel, item.metric


def baseline(bench: Bench) -> Baseline:
    """Return all items of the undamaged experiment."""
    items = [
        item
        for cycle in CYCLES
        for stage in STAGES_OF_CYCLE
        for item in bench.quality(stage, cycle, drawn=False)
    ]
    others = bench.quality("deconvolve", 1, ["1"], drawn=False)
    others += bench.quality("register", 2, drawn=False)
    return {key_of(item): item for item in [*items, *others]}


def judge_damage(
    damage: Damage, bench: Bench, folder: Path, *, drawn: bool = False
) -> list[QcResult]:
    """Damage a copy of the experiment and ask quality."""
    copy = bench.copy(folder)
    try:
        asked = damage.harm(copy)
    except (ConfigError, ProcessingError, MismatchError) as refusal:
        return [_refused(str(refusal))]
    return [item for each in asked for item in copy.quality(*each, drawn=drawn)]


def worse(items: list[QcResult], before: Baseline) -> list[QcResult]:
    """Return the items that are worse than without the damage."""
    good = {key: _RANK[item.verdict] for key, item in before.items()}
    return [item for item in items if _RANK[item.verdict] > good.get(key_of(item), 0)]


def _refused(sentence: str) -> QcResult:
    """Return the item that stands for a run that ended with an error."""
    cycle = re.search(r"[Cc]yc(?:le)?[ _]?(\d)", sentence)
    return QcResult(
        SAMPLE, int(cycle[1]) if cycle else 0, "", "", "register", "refused", None, None, None,
        "above", "fail", "refused", sentence,
    )  # fmt: skip


DAMAGES = {
    "a channel with tissue in two of nine tiles": Damage(
        f.tissue_in_two_tiles, "flat_error", "1/2 "
    ),
    "a flat-field file of another lens": Damage(
        f.by_file_of_another_lens, "heldout_difference", "1/2 "
    ),
    "a camera offset told 150 counts too high": Damage(f.offset_too_high, "offset_excess", "1/2 "),
    "a channel stored in 8 bits, black cut off": Damage(
        f.estimated(lambda stack: np.round(stack / 500) * 500), "equal_neighbours", "1/2 "
    ),
    "a tile that lacks a plane left out": Damage(
        f.incomplete_tile, "tiles_left_out", r"1/.*tile 5\b"
    ),
    "two rows of tiles out of focus": Damage(f.blurred_tiles, "doubtful_tiles", r"1/.*tile"),
    "two tiles exchanged": Damage(
        f.exchanged_tiles(4, 5, both=True), "unlike_overlaps", r"1/1 .*tile [45]\b"
    ),
    "a tile is a copy of another": Damage(
        f.exchanged_tiles(4, 0, both=False), "unlike_overlaps", r"1/1 .*tile 5\b"
    ),
    "the tiles of a cycle mirrored": Damage(f.mirrored_cycle, "", "2/"),
    "one tile 30 % dimmer": Damage(
        f.raw(1, "1", f.dimmed(0.7), [4]), "tile_brightness", r"1/1 .*tile 5\b"
    ),
    "a tile black, the shutter closed": Damage(
        f.raw(1, "1", f.blank, [4]), "tile_brightness", r"1/1 .*no light in tile 5\b"
    ),
    "hot pixels left": Damage(
        lambda b: f.stitched(b, 1, "2", repair_pixels=False),
        "hot_pixels",
        "1/2 Defective camera pixels",
    ),
    "a channel saturated": Damage(
        f.raw(1, "2", f.dimmed(40)), "saturated", "1/2 Bright pixels at the camera"
    ),
    "a channel magnified by 1 %": Damage(
        f.raw(1, "2", f.magnified(1.01)), "channel_shift_px", "1/2 Displacement of the channel"
    ),
    "a marker blank": Damage(f.raw(1, "2", f.blank), "contrast", "1/2 "),
    "a cycle out of focus": Damage(f.raw(2, "1", f.blurred(5)), "focus", "2/.*focus"),
    "a plane black": Damage(f.fourth_plane(lambda s: 0), "damaged_planes", "1/2 .*plane 4"),
    "a plane 30 % dimmer": Damage(
        f.fourth_plane(lambda s: f.dimmed(0.7)(s[3])), "", "1/2 .*plane 4"
    ),
    "a stack without its first two planes": Damage(
        f.started_too_deep, "focus_edge", "1/2 .*plane 1"
    ),
    "a channel of a few photons": Damage(f.few_photons, "image_detail", "1/2 "),
    "deconvolved with the PSF of another objective": Damage(
        f.optics("deconvolve", 0.25), "", "1/1 "
    ),
    "an in-focus plane made with the PSF of another objective": Damage(
        f.optics("edf", 0.25), "image_detail", "1/1 "
    ),
    "a plane made with the PSF of a larger aperture": Damage(
        f.optics("edf", 0.95), "undershoot", "1/1 "
    ),
    "a background that is a stain": Damage(f.stained_background, "oversubtracted", "1/2 "),
    "two channels of a cycle exchanged": Damage(f.exchanged_in_cycle, "", "2/"),
    "the stain of a cycle inverted": Damage(f.nuclei(f.negative), "", ".*negative"),
    "an inverted stain that `allow_unregistered` lets through": Damage(
        f.let_through, "unregistered", "2/"
    ),
    "a quarter of the tissue lost": Damage(
        f.nuclei(f.cut_off(3 / 4, f.dim_noise)), "lost_tissue", "2/.*% lost"
    ),
    "a cycle whose tiles end at four fifths of the reference": Damage(
        f.nuclei(f.cut_off(4 / 5)), "lost_tissue", "2/.*% not imaged; most near"
    ),
    "a fifth of the section folded over": Damage(f.nuclei(f.folded), "poor_blocks", "2/"),
    "a section that bends by 6 px within 90 px": Damage(f.nuclei(f.wavy), "local_error_px", "2/"),
}
#: Not noticed: what is known to pass for good.
MISSED = {"deconvolved with the PSF of another objective"}

#: What is put into the tables and pixels that a stage wrote, where no small damage of raw data
#: brings it about.
STAND_INS = {
    "sure matches that were given up for others": Damage(f.edges(f.given_up), "doubtful_tiles"),
}
EVERY = {**DAMAGES, **STAND_INS}
#: The first damage on which each number must warn.
WARNS = {
    metric: name for name, damage in reversed(EVERY.items()) for metric in damage.warns.split()
}
