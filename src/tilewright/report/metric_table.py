"""Every quality number that is judged: its name, its meaning when bad, its default limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["pass", "warn", "fail"]
Direction = Literal["above", "below"]


@dataclass(frozen=True)
class Threshold:
    """Where a number turns to ``warn`` and to ``fail``; ``None`` never does.

    ``direction`` says on which side of the limit the number is bad.
    """

    warn: float | None
    fail: float | None
    direction: Direction

    def judge(self, value: float) -> Verdict:
        """Return the verdict of a finite number; the limit itself is still good.

        >>> Threshold(1.0, 2.0, "above").judge(1.0), Threshold(1.0, 2.0, "above").judge(2.5)
        ('pass', 'fail')
        """
        sign = 1 if self.direction == "above" else -1
        if self.fail is not None and sign * value > sign * self.fail:
            return "fail"
        return "warn" if self.warn is not None and sign * value > sign * self.warn else "pass"


@dataclass(frozen=True)
class Metric:
    """A quality number: what it is called, and what it means when it is bad.

    Attributes
    ----------
    title : str
        Name in tables.
    reason : str
        Code written beside a verdict that is not ``pass``.
    bad : str
        What a bad value means and what to do; ends the sentence.
    threshold : Threshold
        Default limits.
    unit : str
        ``%`` prints a share as percent.
    what : str
        What the number is, in Markdown: ``docs/quality.md`` is written from it.
    stages : tuple[str, ...]
        The stages that judge it.
    """

    title: str
    reason: str
    bad: str
    threshold: Threshold
    unit: str = ""
    what: str = field(kw_only=True)
    stages: tuple[str, ...] = field(kw_only=True)

    def format(self, value: float) -> str:
        """Return a value with its unit, three significant digits."""
        if self.unit == "%":
            return f"{100 * value:.3g} %"
        return f"{value:.3g} {self.unit}".rstrip()


def _above(warn: float | None, fail: float | None) -> Threshold:
    return Threshold(warn, fail, "above")


def _below(warn: float | None, fail: float | None) -> Threshold:
    return Threshold(warn, fail, "below")


#: Every number that is judged, by name. The defaults of ``qc.thresholds``.
METRICS: dict[str, Metric] = {
    "heldout_log_ratio": Metric(
        "Brightness mismatch in held-out overlaps",
        "uneven_illumination",
        "the flat-field leaves tiles of different brightness side by side",
        _above(0.03, 0.1),
        what=(
            "weighted rms relative difference of the same places in two tiles, held out of the fit"
        ),
        stages=("illumination",),
    ),
    "flat_error": Metric(
        "Expected error of the flat-field",
        "uncertain_flat",
        "tiles and overlaps do not say what the middle of the flat-field looks like; measure "
        "more tiles or a wider overlap, or give a flat_file",
        # What cannot be known is no fault yet: of 131 channels of nine tiles, all within 1.5 %, 61
        # exceeded 0.03, 13 exceeded 0.08 and none 0.2.
        _above(0.03, 0.25),
        "%",
        what="expected relative rms error of the flat-field, over the whole tile",
        stages=("illumination",),
    ),
    "equal_neighbours": Metric(
        "Neighbouring raw pixels of exactly the same counts",
        "no_grain",
        "the camera's noise is gone, so weak signal and the flat-field are not known: the files "
        "were stored in 8 bits, compressed with loss, denoised or cut off at black; use those "
        "that the microscope wrote",
        _above(0.5, 0.9),
        "%",
        what=(
            "share of neighbouring raw pixels of exactly the same counts, median of "
            "tiles; noise makes them differ"
        ),
        stages=("illumination", "stitched"),
    ),
    "flat_minimum": Metric(
        "Darkest place of the flat-field",
        "strong_vignetting",
        "the corners hold little light, so noise is amplified there",
        _below(0.3, 0.1),
        what="1st percentile of the flat-field (mean 1)",
        stages=("illumination",),
    ),
    "accepted_edges": Metric(
        "Overlaps that could be matched",
        "few_matches",
        "many tiles stand where the stage says, not where the images agree",
        _below(0.5, 0.2),
        "%",
        what="share of overlaps that could be matched",
        stages=("tile_positions",),
    ),
    "edge_residual_px": Metric(
        "Disagreement of overlaps (95th percentile)",
        "edge_residual",
        "neighbouring tiles contradict each other, so cells may be doubled",
        _above(1.0, 3.0),
        "px",
        what="disagreement of accepted overlaps, 95th percentile",
        stages=("tile_positions",),
    ),
    "untied_tiles": Metric(
        "Tiles without a link to the main island",
        "islands",
        "these tiles stand at the stage's position",
        _above(0.25, 0.6),
        "%",
        what="share of tiles outside the largest island",
        stages=("tile_positions",),
    ),
    "position_sigma_px": Metric(
        "Uncertainty of tile positions (95th percentile)",
        "uncertain_positions",
        "positions in the main island are only weakly tied down",
        _above(0.7, 2.5),
        "px",
        what="standard error of positions in the largest island, 95th percentile",
        stages=("tile_positions",),
    ),
    "doubtful_tiles": Metric(
        "Tiles of doubtful position",
        "doubtful_tiles",
        "cells at their borders may be doubled or cut; look at them before use",
        _above(0.0, 0.3),
        "%",
        what=(
            "share of tiles of the largest island with a standard error above 1 px, or "
            "whose overlaps disagree by 1.5 px; all are named"
        ),
        stages=("tile_positions",),
    ),
    "contradicting_overlaps": Metric(
        "Sure matches that contradict the others",
        "contradicting_overlaps",
        "a tile moved during the cycle, or tiles are in the wrong order",
        _above(0.0, 0.3),
        "%",
        what="share of sure matches (chance below 10⁻⁷) that contradict the others",
        stages=("tile_positions",),
    ),
    "tiles_left_out": Metric(
        "Tiles left out because planes are missing",
        "missing_planes",
        "this cycle was not seen there, and its markers are unknown there",
        _above(0.0, 0.3),
        "%",
        what=(
            "share of tiles that lack planes in this cycle and were left out "
            "(`acquisition.missing: fill`)"
        ),
        stages=("tile_positions",),
    ),
    "saturated": Metric(
        "Pixels at the camera's maximum",
        "saturated",
        "bright structures are cut off; expose shorter",
        _above(1e-3, 1e-2),
        "%",
        what="share of raw pixels at the camera's maximum, worst plane",
        stages=("stitch", "stitched"),
    ),
    "clipped": Metric(
        "Pixels clipped to the range of the file",
        "clipped",
        "what was brighter or darker is lost",
        _above(1e-3, 1e-2),
        "%",
        what="share of pixels clipped to the file's range (E: at the upper end only)",
        stages=("stitch", "edf"),
    ),
    "contrast": Metric(
        "Brightest structures over the noise",
        "no_signal",
        "nothing stands out from the background: the stain failed, or the channel is empty",
        _below(6.0, 3.0),
        what="99.9th percentile less median over the noise, in the most textured block",
        stages=("stitch", "stitched"),
    ),
    "empty": Metric(
        "Area without tissue",
        "empty",
        "hardly anything but glass is in view",
        _above(0.9, 0.98),
        "%",
        what="share of the imaged area without tissue",
        stages=("stitch", "stitched"),
    ),
    "focus": Metric(
        "Fine detail in the sharpest plane",
        "out_of_focus",
        "no plane is in focus",
        _below(1.5e-3, 3e-4),
        what="fine detail over tissue shapes, noise taken off, median of blocks",
        stages=("stitch", "edf", "stitched"),
    ),
    "resolution_px": Metric(
        "Finest detail that the in-focus plane holds",
        "little_detail",
        "finer structure is noise: expose longer, or measure whole cells only",
        # 2.0 to 4.2 px on made sets of 80 photons and more, 5.4 to 5.9 with 25.
        _above(6.0, 12.0),
        "px",
        what=(
            "period of the finest detail on which the planes made of odd and of even raw "
            "planes agree (Fourier ring correlation, 1/7), `direct` only"
        ),
        stages=("edf",),
    ),
    "undershoot": Metric(
        "Area far darker than no light before the clip",
        "overcorrected",
        "the optics told are sharper than the microscope's, or the camera offset is too high: "
        "dark rings are no structure",
        # Up to 2.6 % on made sets; 10 to 27 % with an aperture 30 % too large.
        _above(0.05, 0.25),
        "%",
        what=(
            "share of the plane more than three standard deviations of its noise below "
            "zero, before it is clipped, `direct` only"
        ),
        stages=("edf",),
    ),
    "focus_edge": Metric(
        "Tissue whose sharpest plane is the first or last",
        "focus_outside_stack",
        "the focus lies outside the stack; move or widen it",
        _above(0.35, 0.7),
        "%",
        what="share of tissue that is sharpest in the first or last plane",
        stages=("stitch", "edf"),
    ),
    "tissue_beyond": Metric(
        "Blocks that are sharpest in one end plane",
        "tissue_beyond_stack",
        "tissue leaves the stack there and is out of focus; image more planes at that end",
        # Up to 0.07 on 13 good sets; 0.2 where 40 % of a sheet lie outside.
        _above(0.1, 0.6),
        "%",
        what=(
            "share of blocks that are sharpest in the first, or in the last, raw plane; the larger"
        ),
        stages=("edf",),
    ),
    "seam": Metric(
        "Step at tile borders over chance (median)",
        "seam",
        "tile borders are visible",
        _above(3.0, 6.0),
        what="step at tile borders over chance, median of borders",
        stages=("stitch",),
    ),
    "tile_change": Metric(
        "Largest change of brightness from a tile to the mosaic",
        "mosaic_differs",
        "the mosaic does not show what the flat-fielded tile shows there; stitch it again",
        _above(0.1, 0.5),
        "%",
        what=(
            "largest share by which a part of a tile is brighter or dimmer in the mosaic "
            "than in the flat-fielded tile"
        ),
        stages=("stitch",),
    ),
    "blank_area": Metric(
        "Blocks inside tiles that hold a single value",
        "blank_area",
        "the mosaic was not written there; make it again, or look at the raw files named",
        _above(0.0, 0.01),
        "%",
        what=("share of blocks of 32 px inside tiles, of all planes, that hold a single value"),
        stages=("stitch",),
    ),
    "below_zero": Metric(
        "Area darker than no light",
        "below_zero",
        "the camera offset or the dark-field is too high; intensities are too low",
        _above(0.001, 0.1),
        "%",
        what="share of blocks whose mean lies below zero light, 6 standard errors and more",
        stages=("stitch",),
    ),
    "overlap_shift_px": Metric(
        "Largest displacement of two tiles in their overlap",
        "tiles_displaced",
        "structures in this overlap are doubled; look at the positions of these tiles",
        _above(1.5, 5.0),
        "px",
        what=(
            "shift that would bring two raw tiles to agree in their overlap, where it is "
            "clearly better than none: the largest"
        ),
        stages=("stitch",),
    ),
    "unlike_overlaps": Metric(
        "Overlaps in which both tiles show different tissue",
        "wrong_neighbours",
        "a tile is in a wrong place, mirrored, or a copy of another",
        _above(0.0, 0.1),
        "%",
        what=(
            "share of overlaps with texture in which the tiles correlate with less than "
            "0.4 of what noise allows"
        ),
        stages=("stitch",),
    ),
    "tile_brightness": Metric(
        "Tile that differs most in brightness from its neighbours",
        "uneven_tiles",
        "lamp or exposure changed there; intensities of this tile do not compare",
        _above(0.15, 0.5),
        "%",
        what=("brightness of a tile over its neighbours in their overlaps: the largest difference"),
        stages=("stitch",),
    ),
    "overlap_mismatch": Metric(
        "Brightness mismatch where tiles overlap",
        "uneven_illumination",
        "the flat-field does not fit these tiles",
        _above(0.05, 0.15),
        "%",
        what=(
            "robust spread of the log-ratio of the same cells of 16 px in two flat- fielded tiles"
        ),
        stages=("stitch",),
    ),
    "hot_pixels": Metric(
        "Defective camera pixels that the mosaic still shows",
        "hot_pixels",
        "each draws a spot at the same place of every tile; set stitch.repair_pixels",
        _above(0.25, 0.9),
        "%",
        what="share of the camera's defects that stand out in the mosaic",
        stages=("stitch",),
    ),
    "image_agreement": Metric(
        "Agreement of the final image with the stitched mosaic (NCC)",
        "wrong_content",
        "this channel of the final image shows something else than was stitched",
        _below(0.8, 0.5),
        what=("correlation of the final channel with its stitched mosaic, in overviews of 512 px"),
        stages=("image",),
    ),
    "missing_area": Metric(
        "Tissue of the stitched mosaic that is missing in the final image",
        "missing_area",
        "the final image is dark there; make the stages in between again",
        _above(0.002, 0.1),
        "%",
        what="share of the mosaic's brighter tissue that is dark in the final image",
        stages=("image",),
    ),
    "image_detail": Metric(
        "Fine detail over that of the sharpest raw plane",
        "detail_lost",
        "the image is blurred although the stack is not; check optics or PSF",
        _below(0.7, 0.35),
        what=(
            "`focus` of the in-focus plane, or of the final image, over that of the "
            "stack's sharpest plane, median of blocks; 1.4 to 3.8 is usual, since no "
            "single plane is sharp everywhere"
        ),
        stages=("edf", "image"),
    ),
    "oversubtracted": Metric(
        "Subtracted background that the channel did not hold",
        "oversubtracted",
        "exposure times are wrong, or the background channel shows a stain or another lamp: "
        "signal may be lost",
        # Up to 0.04 on made sets; 0.14 to 0.34 with a factor half as large again.
        _above(0.08, 0.25),
        "%",
        what=(
            "share of the subtracted background that the channel did not hold, by means "
            "of cells; written where a background was subtracted"
        ),
        stages=("image",),
    ),
    "background_left": Metric(
        "Background that its own in-focus plane lost as haze",
        "background_left",
        "that much of it stays in this channel; take edf.method: soft_focus, or more planes",
        _above(0.05, 0.3),
        "%",
        what=(
            "share of the background that its own in-focus plane lost as haze and the "
            "channel's did not; likewise"
        ),
        stages=("image",),
    ),
    "file_difference": Metric(
        "Sampled places where files or levels of the final image differ",
        "inconsistent_files",
        "what is seen depends on the zoom and the reader; make the final image again",
        _above(0.0, 0.0),
        "%",
        what=(
            "share of sampled places where levels of the OME-Zarr and the OME-TIFF "
            "differ, or names are wrong"
        ),
        stages=("image",),
    ),
    "ringing": Metric(
        "Dark moats drawn around bright objects",
        "ringing",
        "they are no structure; check optics or PSF, or use fewer iterations",
        _above(0.12, 0.3),
        "%",
        what=(
            "dark moats of up to 6 px drawn around bright objects that the sharpest raw "
            "plane has not, share of the objects' contrast, median of blocks"
        ),
        stages=("deconvolve", "edf"),
    ),
    "dark_rings": Metric(
        "Background that a ring around a bright object lacks",
        "ringing",
        "the ring is no structure, and cells in it are too dim; leave its surroundings out",
        _above(0.4, 0.8),
        "%",
        what=(
            "share of its background that the darkest ring, up to 64 px wide and all "
            "around a bright object (saturated or not), lacks although no raw plane is "
            "darker there; the worst of the twelve brightest objects, in the in-focus "
            "plane and in the final image (there not where a background was subtracted)"
        ),
        stages=("edf", "image"),
    ),
    "flux_factor": Metric(
        "Factor by which the total light changed",
        "flux",
        "intensities are not comparable with the raw image",
        # Light of a thin section that spreads over 2n - 1 planes is gathered from n: up to 2.
        _above(2.0, 3.0),
        "fold",
        what=(
            "factor by which the total light changed, either way; of the in-focus plane "
            "over the mean raw plane, haze that was taken out counted in"
        ),
        stages=("deconvolve", "edf"),
    ),
    "end_plane_excess": Metric(
        "Light piled up in the end planes",
        "end_planes",
        "out-of-focus light from beyond the stack sits in its first or last plane",
        _above(1.0, 3.0),
        "%",
        what="light of the brighter end plane over the mean plane, less 1",
        stages=("deconvolve",),
    ),
    "damaged_planes": Metric(
        "Damaged planes left out",
        "damaged_planes",
        "planes were gated out of the projection; look at the raw tiles",
        _above(0.0, 0.34),
        "%",
        what="share of planes left out of the projection",
        stages=("edf",),
    ),
    "ncc": Metric(
        "Agreement with the reference cycle (NCC)",
        "poor_overlap",
        "nuclei of this cycle do not lie on those of the reference",
        _below(0.7, 0.4),
        what="correlation of nuclear texture with the reference, median of blocks",
        stages=("register",),
    ),
    "residual_px": Metric(
        "Residual of the registration (median)",
        "registration_residual",
        "cells are displaced between cycles",
        _above(0.6, 2.0),
        "px",
        what="shift left in blocks that match, median",
        stages=("register",),
    ),
    "local_error_px": Metric(
        "Local error of the registration (90th percentile)",
        "local_error",
        "the tissue bends more sharply than the field can follow, or the cycle is too dim to say",
        _above(0.3, 2.0),
        "px",
        what="mean residual of 3 by 3 neighbouring blocks, 90th percentile over the tissue",
        stages=("register",),
    ),
    "elastic_px": Metric(
        "Largest elastic displacement",
        "large_deformation",
        "the tissue is torn or folded, or blocks were mismatched",
        _above(20.0, 60.0),
        "px",
        what="largest elastic displacement",
        stages=("register",),
    ),
    "poor_blocks": Metric(
        "Tissue blocks that do not match the reference",
        "local_mismatch",
        "tissue was lost or folded in these places",
        _above(0.15, 0.4),
        "%",
        what="share of tissue blocks with NCC below 0.5",
        stages=("register",),
    ),
    "lost_tissue": Metric(
        "Tissue of the reference that this cycle has lost",
        "lost_tissue",
        "cells there have no signal in this cycle; mask them in analysis",
        _above(0.02, 0.3),
        "%",
        what="share of the reference's tissue without texture in this cycle",
        stages=("register",),
    ),
    "unregistered": Metric(
        "Cycle taken over without registration",
        "unregistered",
        "this cycle is NOT registered; its markers must not be combined with other cycles",
        _above(None, 0.0),
        what="written for a cycle that was let through",
        stages=("register",),
    ),
}
