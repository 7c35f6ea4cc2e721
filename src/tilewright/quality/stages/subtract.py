"""Quality of background subtraction, by what was measured while it was subtracted."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.io.results.registration import Subtraction, read_subtraction
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import display_range, new_figure, save_png, show
from tilewright.quality.results import QcContext

CAPTION = (
    "Channels of cycle {cycle} whose background was subtracted: the registered channel before, "
    "what was taken, and what is left, in one grey scale."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate one channel whose background was subtracted: ``subtraction`` of its cycle."""
    done = read_subtraction(Path(files["subtraction"]), context.cycle, context.channel)
    if done is None:
        raise ValueError(f"nothing was subtracted from {context.name}; make the image again")
    what = f"{done.factor:.3g} times the background, by {done.method}"
    numbers = {
        "background": done.background,
        "background_method": done.method,
        "background_factor": done.factor,
    }
    item = context.evaluate("oversubtracted", done.oversubtracted, what)
    return StageQc([item], numbers, (context.name, done))


def draw(views: Sequence[tuple[str, Subtraction]], path: Path) -> None:
    """Draw each channel before, what was taken, and after."""
    aspect = views[0][1].before.shape[0] / views[0][1].before.shape[1]
    figure = new_figure(10, len(views) * float(np.clip(3.2 * aspect + 0.5, 1.8, 6)))
    grid = figure.subplots(len(views), 3, squeeze=False)
    for row, (marker, done) in zip(grid, views, strict=True):
        limits = display_range(done.before)
        show(row[0], done.before, f"{marker}: before", limits)
        show(row[1], done.factor * done.light, f"{done.factor:.3g} times its background", limits)
        show(row[2], done.expected, "after", limits)
    save_png(figure, path)
