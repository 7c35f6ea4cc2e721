"""Quality of stitched images: light, focus and grain; how they were stitched is not known."""

from dataclasses import asdict

from tilewright.io.results.mosaic import open_mosaic
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.results import QcContext
from tilewright.quality.sampling import evaluate_focus, scan_contrast, scan_focus
from tilewright.quality.stages.stitch import draw

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
    attributes = plane.attributes
    grain = attributes["equal_neighbours"]
    items = [
        context.evaluate("contrast", scan_contrast(plane, scan)),
        context.evaluate("saturated", attributes["saturated_share"]),
        context.evaluate(
            "equal_neighbours", grain, "" if grain is not None else "too few pixels with light"
        ),
        focus,
    ]
    keys = ("unseen_px", "saturation_counts", "saturated_px", "equal_neighbours")
    numbers = {key: attributes[key] for key in keys} | {"places": [asdict(p) for p in blurred]}
    return StageQc(items, numbers, (context.name, plane, scan))
