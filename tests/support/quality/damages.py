"""Known damages to the files of a small experiment: does quality notice, and say what it is?

``make docs`` writes their names into ``docs/quality.md``.
"""

import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.support.quality import faults as f
from tests.support.quality.workbench import CYCLES, SAMPLE, Bench
from tilewright.errors import ConfigError, MismatchError, ProcessingError
from tilewright.quality.results import QcResult

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
        for stage in ("illumination", "tile_positions", "stitch", "edf", "image")
        for item in bench.quality(stage, cycle)
    ]
    others = [*bench.quality("deconvolve", 1), *bench.quality("register", 2)]
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
    "one tile 3 px off in `positions.csv`": Damage(
        f.positions("y_px", [4], 3.0), "edge_residual_px overlap_shift_px", r"1/.*tile 5\b"
    ),
    "two tiles exchanged": Damage(f.exchanged_tiles(4, 5, both=True), "", r"1/1 .*tile [45]\b"),
    "a tile is a copy of another": Damage(
        f.exchanged_tiles(4, 0, both=False), "unlike_overlaps", r"1/1 .*tile 5\b"
    ),
    "one tile 30 % dimmer": Damage(
        f.raw(1, "1", f.dimmed(0.7), [4]), "tile_brightness", r"1/1 .*tile 5\b"
    ),
    "the tiles of a cycle mirrored": Damage(f.mirrored_cycle, "", "2/"),
    "a plane black": Damage(f.fourth_plane(lambda s: 0), "damaged_planes", "1/2 .*plane 4"),
    "a plane recorded twice": Damage(f.fourth_plane(lambda s: s[2]), "", "1/2 .*plane [34]"),
    "two planes exchanged": Damage(f.plane(lambda s: s[[0, 3, 2, 1, 4]]), "", "1/2 .*plane [24]"),
    "a plane displaced by 3 px": Damage(
        f.fourth_plane(lambda s: np.roll(s[3], 3, axis=0)), "", "1/2 .*plane 4"
    ),
    "a plane 30 % dimmer": Damage(
        f.fourth_plane(lambda s: f.dimmed(0.7)(s[3])), "", "1/2 .*plane 4"
    ),
    "the flat-field applied twice": Damage(
        f.flat(lambda flat: flat**2), "overlap_mismatch", "1/2 "
    ),
    "the flat-field of another channel": Damage(f.foreign_flat, "", "1/2 "),
    "the flat-field inverted": Damage(f.flat(lambda flat: 1 / flat), "", "1/2 "),
    "a dark-field 150 counts too high": Damage(f.flat(dark=150), "below_zero", "1/2 "),
    "hot pixels left": Damage(
        lambda b: f.stitched(b, 1, "2", repair_pixels=False),
        "hot_pixels",
        "1/2 Defective camera pixels",
    ),
    "a channel saturated": Damage(
        f.raw(1, "2", f.dimmed(40)), "saturated clipped", "1/2 Bright pixels at the camera"
    ),
    "a channel magnified by 1 %": Damage(
        f.raw(1, "2", f.magnified(1.01)), "channel_shift_px", "1/2 Displacement of the channel"
    ),
    "a marker blank": Damage(f.raw(1, "2", f.blank), "contrast", "1/2 "),
    "a cycle out of focus": Damage(f.raw(2, "1", f.blurred(5)), "focus", "2/.*focus"),
    "a tile black in the mosaic": Damage(f.mosaic("stitch", f.black_tile), "", r"1/1 .*tile 5\b"),
    "a step of 20 % in the mosaic": Damage(
        f.mosaic("stitch", f.step), "tile_change", r"1/1 .*tile [234589]\b"
    ),
    "a chunk of the mosaic not written": Damage(
        f.mosaic("stitch", f.zero_chunk), "blank_area", r"1/1 .*plane 3 tile 6\b"
    ),
    "deconvolved with the PSF of another objective": Damage(
        f.optics("deconvolve", 0.25), "", "1/1 "
    ),
    "an in-focus plane made with the PSF of another objective": Damage(
        f.optics("edf", 0.25), "", "1/1 "
    ),
    "2.5 times the light after deconvolution": Damage(
        f.mosaic("deconvolve", lambda s: s * np.float32(2.5)), "flux_factor", "1/1 .*light"
    ),
    "the in-focus plane made of the wrong plane": Damage(
        f.in_focus(f.wrong_plane), "image_detail", "1/2 "
    ),
    "the in-focus plane of another channel": Damage(f.foreign_plane, "image_agreement", "1/2 "),
    "the transform of a cycle 1.5 px off": Damage(f.shifted(1.5, 0), "residual_px", "2/"),
    "the transform of a cycle turned by 0.2°": Damage(f.transform(f.turned), "", "2/"),
    "the elastic field three times too large": Damage(
        f.transform(lambda t: dataclasses.replace(t, field=3 * t.field)), "local_error_px", "2/"
    ),
    "two channels of a cycle exchanged": Damage(f.exchanged_in_cycle, "", "2/"),
    "a marker exchanged between cycles": Damage(f.exchanged_between_cycles, "", "[12]/2 "),
    "the stain of a cycle inverted": Damage(f.nuclei(f.negative), "", ".*negative"),
    "channels of the final image in a wrong order": Damage(
        f.image(f.wrong_order, tiff=True), "", "1/[12] "
    ),
    "a lower level of the final image of another channel": Damage(
        f.image(f.wrong_level, tiff=False), "file_difference", "1/1 .*level 1"
    ),
    "a chunk of the final image missing": Damage(
        f.image(f.lost_chunk, tiff=True), "missing_area", "1/1 .*missing"
    ),
}
#: Not noticed, or not by name: what is known to pass for good.
MISSED = {"deconvolved with the PSF of another objective"}

#: What the numbers that no damage is for must warn on.
SCENES = {
    "a flat-field whose held-out overlaps differ by 10 %": Damage(
        f.flat(heldout_log_ratio=0.08), "heldout_log_ratio"
    ),
    "a channel with tissue in two of nine tiles": Damage(f.tissue_in_two_tiles, "flat_error"),
    "a channel stored in 8 bits, black cut off": Damage(
        f.estimated(lambda stack: np.round(stack / 500) * 500), "equal_neighbours"
    ),
    "a flat-field with 6 % of the light in its corners": Damage(f.flat(f.vignette), "flat_minimum"),
    "8 of 12 overlaps without a match": Damage(
        f.edges(lambda e: np.put(e.accepted, range(4, 12), False)), "accepted_edges"
    ),
    "sure matches that were given up for others": Damage(
        f.edges(f.given_up), "contradicting_overlaps"
    ),
    "a row of tiles known to 2 px": Damage(
        f.positions("sigma_px", [6, 7, 8], 2.0), "doubtful_tiles position_sigma_px"
    ),
    "a row of tiles that nothing ties to the others": Damage(
        f.positions("island", [6, 7, 8], 1), "untied_tiles"
    ),
    "a tile that lacks a plane left out": Damage(f.incomplete_tile, "tiles_left_out"),
    "a section that covers 5 % of the mosaic": Damage(f.mosaic("stitch", f.glass), "empty"),
    "a stack whose sharpest plane is the first": Damage(
        f.mosaic("stitch", lambda stack: stack[[2, 1, 0, 0, 0]]), "focus_edge"
    ),
    "each row and column of tiles four times as bright as the last": Damage(
        f.mosaic("stitch", f.bright_rows, feather_px=4), "seam"
    ),
    "a plane made with the PSF of a larger aperture": Damage(f.optics("edf", 0.95), "undershoot"),
    "a background that lost half of its light as haze": Damage(
        f.hazy_background, "background_left oversubtracted"
    ),
    "dark halos of half a cell's haze around lone cells": Damage(f.dark_halos, "ringing"),
    "black rings and halos around the brightest objects": Damage(
        f.in_focus(f.ringed), "dark_rings"
    ),
    "four times the light of the best plane in the first": Damage(
        f.mosaic("deconvolve", lambda s: np.concatenate([4 * s[2:3], s[1:]])), "end_plane_excess"
    ),
    "a stack without its first two planes": Damage(f.started_too_deep, "tissue_beyond"),
    "a transform that is 70 px off": Damage(f.shifted(60, 40), "ncc poor_blocks"),
    "one node of the field 40 px off": Damage(f.transform(f.torn), "elastic_px"),
    "a quarter of the tissue lost": Damage(f.nuclei(f.cut_off(3 / 4, f.dim_noise)), "lost_tissue"),
    "a cycle whose tiles end at four fifths of the reference": Damage(
        f.nuclei(f.cut_off(4 / 5)), "not_imaged"
    ),
    "an inverted stain that `allow_unregistered` lets through": Damage(
        f.let_through, "unregistered"
    ),
}
EVERY = {**DAMAGES, **SCENES}
#: The damage on which each number must warn.
WARNS = {metric: name for name, damage in EVERY.items() for metric in damage.warns.split()}
