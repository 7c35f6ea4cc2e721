"""What to look at and to try, by the reason that a verdict gives."""

from __future__ import annotations

import re

#: Reasons, and what to do, in Markdown; ``make docs`` writes docs/warnings.md from it.
REMEDIES = {
    "`uneven_illumination`": (
        "the flat-fields in the report: another `illumination.method` or `order`, the right "
        "`camera.offset_counts`"
    ),
    "`uncertain_flat`": (
        "the flat-field in the report: rings, stripes or spots in its middle are known only "
        "from the tiles' mean; more tiles, a wider overlap, `camera.offset_counts`, or a "
        "`flat_file`"
    ),
    "`no_grain`": (
        "the files as the microscope wrote them, not an export in 8 bits, JPEG, or denoised"
    ),
    "`strong_vignetting`": (
        "the light path; more overlap, so that corners matter less; a wrong offset also makes "
        "corners too dark"
    ),
    "`few_matches`, `islands`": (
        "the picture: unmatched overlaps on glass are harmless; elsewhere check `layout`, "
        "`overlap` and the reference channel, raise `tile_positions.max_shift_px`"
    ),
    "`edge_residual`": (
        "the pair of tiles that the sentence names: tissue that moved, lost focus, a wrong match"
    ),
    "`doubtful_tiles`, `contradicting_overlaps`": (
        "the tiles named: cells at their borders may be doubled; a tile that moved, or a "
        "wrong order of tiles"
    ),
    "`missing_planes`": (
        "the microscope's log; copy what is missing, else leave the tiles named out of what "
        "needs this cycle"
    ),
    "`uncertain_positions`": (
        "overlaps too narrow or too empty; place tiles on a channel with more structure"
    ),
    "`no_signal`, `empty`": (
        "staining, exposure, and whether the markers table names the right channel; leave the "
        "channel out of analysis"
    ),
    "`saturated`, `clipped`": (
        "expose shorter; intensities of the brightest cells are lower bounds"
    ),
    "`out_of_focus`, `focus_outside_stack`, `tissue_beyond_stack`": (
        "move or widen the z-stack at the microscope"
    ),
    "`seam`": ("illumination first, then positions; `worst_seams` in the JSON names the borders"),
    "`mosaic_differs`, `blank_area`": (
        "run again with `-R stitch`; if it stays, look at the disk and at the raw files named"
    ),
    "`below_zero`": ("a lower `camera.offset_counts`, or another dark-field"),
    "`tiles_displaced`, `wrong_neighbours`": (
        "the tiles that the sentence names: positions, `layout`, mirrored or doubled raw files"
    ),
    "`uneven_tiles`": ("lamp or exposure of the tile that the sentence names"),
    "`hot_pixels`": ("`stitch.repair_pixels: true`"),
    "`ringing`, `overcorrected`": (
        "aperture, wavelength, pixel size and z-step; fewer `deconvolve.iterations`; a measured PSF"
    ),
    "`little_detail`": ("longer exposure; measure whole cells, not what is inside them"),
    "`flux`, `end_planes`": ("a stack that is thinner than the tissue; a wrong camera offset"),
    "`damaged_planes`": ("the planes named in the sentence: copy the raw files again"),
    "`poor_overlap`, `registration_residual`": (
        "whether the reference channel shows the same structures in both cycles; a larger "
        "`registration.block_px` where nuclei are dim, a smaller one where tissue bends sharply"
    ),
    "`local_error`": (
        "a smaller `registration.block_px` where tissue bends sharply; a brighter reference "
        "channel where the cycle is dim"
    ),
    "`detail_lost` of the in-focus plane": (
        "aperture, wavelength, pixel size and z-step: with optics worse than the microscope's "
        "the plane is blurred"
    ),
    "`wrong_content`, `missing_area`, `detail_lost` of the final image, `inconsistent_files`": (
        "open the named channel of the final image beside its mosaic (`output.keep: stacks`); "
        "run again with `-R edf_plane assemble`"
    ),
    "`oversubtracted`": (
        "`exposure_ms` of marker and background; the picture: does the background channel "
        "show a stain? `subtract.method: regression` ([background](background.md))"
    ),
    "`background_left`": ("`edf.method: soft_focus`; more planes"),
    "`large_deformation`, `local_mismatch`, `lost_tissue`": (
        "the worst places in the picture: lost or folded tissue; mask them in analysis"
    ),
    "`unregistered`": ("do not combine this cycle with others"),
    "`unknown`": ("the sentence says why there is no number"),
}
#: How the table names a stage where a reason has a remedy of its own in each.
_STAGES = {"edf": "of the in-focus plane", "image": "of the final image"}
_BY_REASON = {
    (reason, where.strip()): text
    for reasons, text in REMEDIES.items()
    for reason, where in re.findall(r"`(\w+)`([^,`]*)", reasons)
}


def remedy(reason: str, stage: str) -> str:
    """Return what to do about a reason that a stage gave, empty where nothing is known.

    >>> remedy("hot_pixels", "stitch")
    '`stitch.repair_pixels: true`'
    """
    return _BY_REASON.get((reason, ""), _BY_REASON.get((reason, _STAGES.get(stage, "")), ""))
