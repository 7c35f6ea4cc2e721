"""Quality of stitched images: light, focus and grain; how they were stitched is not known."""

from dataclasses import asdict

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.metrics import empty_fraction
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import (
    NO_SIGNAL,
    NO_SIGNAL_DETAIL,
    FocusScan,
    evaluate_focus,
    scan_contrast,
    scan_focus,
)
from tilewright.quality.stages.stitch import draw
from tilewright.quality.stitched_view import arrays, view_of

__all__ = ["CAPTION", "draw", "evaluate"]

CAPTION = (
    "Channels of cycle {cycle} as the file holds them, scaled from the 1st to the 99.7th "
    "percentile. Their stitching was not judged."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate one channel of a stitched image, stored as a ``plane``."""
    plane = open_mosaic(files["plane"])
    scan = scan_focus(plane)
    focus, blurred = evaluate_focus(context, plane, scan)
    keys = ("unseen_px", "saturation_counts", "saturated_px", "equal_neighbours")
    return StageQc(
        [*_evaluate(context, plane, scan), focus],
        {key: plane.attributes[key] for key in keys} | {"places": [asdict(p) for p in blurred]},
        (context.name, plane, scan),
        arrays(view_of(plane, scan), context.channel),
    )


def _evaluate(context: QcContext, plane: Mosaic, scan: FocusScan) -> list[QcResult]:
    attributes = plane.attributes
    contrast = scan_contrast(plane, scan)
    empty, nothing = None, NO_SIGNAL_DETAIL
    if contrast >= NO_SIGNAL:
        # A plane is 0 where nothing was imaged.
        empty, nothing = empty_fraction(scan.small, valid=scan.small > 0), ""
    grain = attributes["equal_neighbours"]
    return [
        context.evaluate("contrast", contrast),
        context.evaluate("empty", empty, nothing),
        context.evaluate("saturated", attributes["saturated_share"]),
        context.evaluate(
            "equal_neighbours", grain, "" if grain is not None else "too little is seen"
        ),
    ]
