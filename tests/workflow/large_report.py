"""A report of several samples and cycles, made of one small run's results."""

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np

from tilewright.config.rules import STAGES
from tilewright.io.results.ome_zarr import create_image, open_image
from tilewright.report.page.html import ReportInputs, write_report

CHANNELS = 2
#: Sample, stage, cycle, channel and metric of what is bad, and the number.
BAD: dict[tuple[str, str, int, str, str], float | None] = {
    ("tonsil_B", "register", 3, "", "poor_blocks"): 0.5,
    ("tonsil_B", "edf", 2, "1", "undershoot"): 0.1,
    ("tonsil_B", "edf", 2, "2", "undershoot"): 0.4,
    ("tonsil_A", "stitch", 3, "2", "saturated"): 0.04,
    ("tonsil_A", "illumination", 2, "2", "flat_error"): 0.08,
    ("tonsil_A", "tile_positions", 3, "", "doubtful_tiles"): 0.08,
    ("tonsil_B", "stitch", 2, "2", "unlike_overlaps"): None,
}


def write_large_report(results: Path, folder: Path, samples: tuple[str, ...], cycles: int) -> Path:
    """Write the report of copies of the one sample that ``results`` hold."""
    sample = next(path.parent for path in results.glob("*/qc"))
    table = [
        {
            "cycle": cycle,
            "channel": str(channel),
            "marker": f"{'DAPI' if channel == 1 else 'CD'}_{cycle}",
        }
        for cycle in range(1, cycles + 1)
        for channel in range(1, CHANNELS + 1)
    ]
    jsons = []
    for name, cycle, stage in product(samples, range(1, cycles + 1), STAGES):
        of = 2 if stage == "register" else 1 + cycle % 2
        source = sample / "qc" / f"{stage}_cycle{of}.json"
        if source.exists() and (stage != "register" or cycle > 1):
            jsons.append(folder / f"{name}_{stage}_{cycle}.json")
            _copy(source, jsons[-1], name, cycle)
    planes = sorted((sample / "edf").glob("*.zarr"))
    inputs = ReportInputs(
        quality_paths=jsons,
        picture_paths=[path.with_suffix(".png") for path in jsons],
        images=dict.fromkeys(samples, _image(sample, folder / "large.ome.zarr", table)),
        channels=table,
        reference_cycle=1,
        reference_channels=dict.fromkeys(range(1, 100), "1"),
        software={"tilewright": "0", "numpy": np.__version__},
        config_text="key: value\n" * 120,
        planes={
            (name, int(str(entry["cycle"])), str(entry["channel"])): planes[k % len(planes)]
            for name in samples
            for k, entry in enumerate(table)
        },
    )
    write_report(inputs, folder / "large.html")
    return folder / "large.html"


def _copy(source: Path, target: Path, sample: str, cycle: int) -> None:
    """Copy a quality file and its picture, good but for ``BAD``."""
    content = json.loads(source.read_text())
    for item in content["items"]:
        key = (sample, content["stage"], cycle, item["channel"], item["metric"])
        if key in BAD:
            item["value"] = BAD[key]
        elif item["verdict"] != "pass":
            item["value"] = item["warn"] if item["warn"] is not None else item["fail"]
        item |= {"sample": sample, "cycle": cycle}
    content |= {"sample": sample, "cycle": cycle}
    content["caption"] = content["caption"].replace("ycle 1", f"ycle {cycle}")
    target.write_text(json.dumps(content))
    shutil.copy(source.with_suffix(".png"), target.with_suffix(".png"))


def _image(sample: Path, target: Path, table: list[dict[str, object]]) -> Path:
    """Write a final image of all channels, at least 1600 px wide: as large as pages show."""
    found = open_image(next((sample / "registration").glob("*.ome.zarr")))
    light = np.asarray(found.levels[0][:])
    repeat = -(-1600 // light.shape[2])
    light = np.tile(light, (len(table), repeat, repeat))[: len(table)]
    names = [str(entry["marker"]) for entry in table]
    size = light.shape[1:]
    with create_image(target, size, light.dtype, 512, found.pixel_um, names, name="s") as writer:
        writer.write(0, 0, 0, light)
    return target
