"""A small results folder as a run leaves it: image, tables, quality, transform."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.config.layout import Layout
from tilewright.io.results.ome_zarr import create_image
from tilewright.io.results.transform import write_transform
from tilewright.io.results.zarr_store import OmeZarrVersion
from tilewright.kernels.register.warp import Transform
from tilewright.report.judge import Quality, write_quality
from tilewright.report.page.summary import write_summary, write_trusted_markers
from tilewright.report.quality.places import Place
from tilewright.report.verdict import Subject, resolve_thresholds
from tilewright.viewer.server import ViewerServer

SHAPE = (700, 900)
CHANNELS = [
    {"cycle": 1, "channel": "1", "marker": "DAPI_1"},
    {"cycle": 1, "channel": "2", "marker": "CD3"},
    {"cycle": 2, "channel": "1", "marker": "DAPI_2"},
    {"cycle": 2, "channel": "2", "marker": "Pan CK/8"},
]
#: Pixels by which cycle 2 is displaced, y and x.
SHIFT = (5.0, -8.0)


@functools.cache
def discs(seed: int) -> NDArray[np.uint16]:
    """Bright round cells on a dim ground."""
    rng = np.random.default_rng(seed)
    dots = np.zeros(SHAPE, np.float32)
    dots[rng.integers(0, SHAPE[0], 200), rng.integers(0, SHAPE[1], 200)] = 1
    cells = ndimage.gaussian_filter(dots, 5) * 250000
    return (np.minimum(cells, 4000) + 100).astype(np.uint16)


def make_image(folder: Path, sample: str, version: OmeZarrVersion = "0.4") -> Path:
    """Write the registered image and its table, and nothing else; return the OME-Zarr."""
    layout = Layout(str(folder))
    path = Path(layout.image_zarr.format(sample=sample))
    path.parent.mkdir(parents=True)
    names = [str(channel["marker"]) for channel in CHANNELS]
    with create_image(
        path, SHAPE, np.uint16, 256, (0.4, 0.5), names, name=sample, ome_zarr_version=version
    ) as writer:
        for k in range(len(names)):
            writer.write(k, 0, 0, discs(k))
    rows = [f"{k},{c['cycle']},{c['marker']}" for k, c in enumerate(CHANNELS, 1)]
    table = Path(layout.image_markers.format(sample=sample))
    table.write_text("\n".join(["channel_number,cycle_number,marker_name", *rows]) + "\n")
    return path


def add_quality(folder: Path, sample: str, *, seam: float = 1.0, ncc: float = 0.95) -> None:
    """Write what the quality rules and ``summary`` leave, and the transform of cycle 2."""
    layout = Layout(str(folder))
    limits = resolve_thresholds({})
    shift = Transform.identity()
    moved = Transform(
        np.column_stack([np.eye(2), SHIFT]), shift.field, shift.origin_px, 1.0, shift.confidence
    )
    stem = Path(layout.transform.format(sample=sample, cycle=2))
    stem.parent.mkdir(parents=True)
    write_transform(moved, stem, stem.with_suffix(".json"))
    stitched = Subject(sample, 2, "stitch", limits, "2", "Pan CK/8").judge("seam", seam)
    registered = Subject(sample, 2, "register", limits).judge("ncc", ncc)
    seams = [Place("seam", 200.0, 300.0 + k, seam + 2 - k) for k in range(3)]
    matches = {"places": [asdict(Place("ncc", 350, 450, ncc))]}
    found = [
        Quality(sample, 2, "stitch", (stitched,), {"2": {"places": [*map(asdict, seams)]}}, ""),
        Quality(sample, 2, "register", (registered,), matches, ""),
    ]
    paths = [folder / sample / "qc" / f"{quality.stage}_cycle2.json" for quality in found]
    paths[0].parent.mkdir()
    for path, quality in zip(paths, found, strict=True):
        write_quality(path, quality)
    qc_json = Path(layout.qc_json)
    write_summary(paths, qc_json, Path(layout.qc_csv), channels=CHANNELS)
    write_trusted_markers(qc_json, CHANNELS, Path(layout.trusted_markers))
    Path(layout.report).write_text("<!doctype html><title>report</title>")


@contextmanager
def served(folder: Path, samples: list[str]) -> Iterator[ViewerServer]:
    with ViewerServer(folder, samples) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
