"""Quality of stitched images: light, focus and grain; how they were stitched is not known."""

from __future__ import annotations

import numpy as np

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.metrics import empty_fraction
from tilewright.report.judge import Files, Findings
from tilewright.report.quality.places import (
    NO_SIGNAL,
    FocusScan,
    contrast_to_noise,
    scan_focus,
)
from tilewright.report.quality.stitch import draw
from tilewright.report.quality.stitched_view import arrays, look
from tilewright.report.verdict import Item, Subject

__all__ = ["CAPTION", "draw", "findings"]

CAPTION = (
    "Channels of cycle {cycle} as the file holds them, scaled from the 1st to the 99.7th "
    "percentile. Their stitching was not judged."
)


def findings(subject: Subject, files: Files) -> Findings:
    """Judge one channel of a stitched image, stored as a ``plane``."""
    plane = open_mosaic(files["plane"])
    scan = scan_focus(plane)
    told = plane.attributes
    keys = ("unseen_px", "saturation_counts", "saturated_px", "equal_neighbours")
    return Findings(
        _judge(subject, plane, scan),
        {key: told[key] for key in keys},
        (subject.name, plane, scan),
        arrays(look(plane, scan), subject.channel),
    )


def _judge(subject: Subject, plane: Mosaic, scan: FocusScan) -> list[Item]:
    told = plane.attributes
    y, x = scan.blocks[0]
    block = plane.read(0, slice(y, y + scan.side), slice(x, x + scan.side))
    contrast = contrast_to_noise(block)
    empty, focus, nothing = None, None, "nothing stands out from the noise"
    if contrast >= NO_SIGNAL:
        # Where nothing was seen a plane is 0 all over.
        empty, nothing = empty_fraction(scan.small, valid=scan.small > 0), ""
        focus = scan.focus if np.isfinite(scan.focus) else None
    seen_px = float(np.prod(plane.shape)) - told["unseen_px"]
    grain = told["equal_neighbours"]
    return [
        subject.judge("contrast", contrast),
        subject.judge("empty", empty, nothing),
        subject.judge("saturated", told["saturated_px"] / max(seen_px, 1.0)),
        subject.judge("focus", focus, nothing or ("" if focus else "no signal to focus on")),
        subject.judge("equal_neighbours", grain, "" if grain is not None else "too little is seen"),
    ]
