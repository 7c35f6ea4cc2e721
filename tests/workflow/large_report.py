"""A report of several samples and cycles of four channels, made of one small run's results."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from tilewright.config.rules import STAGES
from tilewright.io.results.ome_zarr import create_image, open_image
from tilewright.report.page.html import ReportInputs, write_report

CHANNELS = 4
NAMES = (
    "CD3 PanCK CD45RO CD20 FoxP3 CD8a CD31 CD68 CD163 Ki67 CD4 HLA-DR PD-1 PD-L1 "
    "GranzymeB CD11c CD56 Vimentin aSMA CollagenIV E-cadherin CD44 CD38 CD138 BCL2 "
    "pSTAT3 Podoplanin "
)
MARKERS = NAMES.split()
#: Sample, stage, cycle, channel and metric of what is bad, and the number.
BAD: dict[tuple[str, str, int, str, str], float | None] = {
    ("tonsil_B", "register", 3, "", "ncc"): 0.3,
    ("tonsil_B", "edf", 2, "3", "ringing"): 0.2,
    ("tonsil_B", "edf", 2, "4", "ringing"): 0.4,
    ("tonsil_A", "stitch", 3, "2", "saturated"): 0.004,
    ("tonsil_A", "illumination", 2, "4", "flat_error"): 0.08,
    ("tonsil_A", "tile_positions", 3, "", "doubtful_tiles"): 0.08,
    ("tonsil_B", "stitch", 2, "3", "seam"): None,
}


def write_large_report(results: Path, folder: Path, samples: tuple[str, ...], cycles: int) -> Path:
    """Write the report of copies of the one sample that ``results`` hold."""
    sample = next(path.parent for path in results.glob("*/qc"))
    table = [
        {
            "cycle": cycle,
            "channel": str(channel),
            "marker": f"DAPI_{cycle}" if channel == 1 else MARKERS[3 * (cycle - 1) + channel - 2],
        }
        for cycle in range(1, cycles + 1)
        for channel in range(1, CHANNELS + 1)
    ]
    image = _image(sample, folder / "large.ome.zarr", [str(entry["marker"]) for entry in table])
    jsons, pngs = [], []
    for name, cycle, stage in product(samples, range(1, cycles + 1), STAGES):
        of = 2 if stage == "register" else 1 + cycle % 2
        source = sample / "qc" / f"{stage}_cycle{of}.json"
        if source.exists() and (stage != "register" or cycle > 1):
            jsons.append(folder / f"{name}_{stage}_{cycle}.json")
            pngs.append(jsons[-1].with_suffix(".png"))
            _copy(source, jsons[-1], name, cycle)
    planes = sorted((sample / "edf").glob("*.zarr"))
    inputs = ReportInputs(
        quality_paths=jsons,
        picture_paths=pngs,
        images=dict.fromkeys(samples, image),
        channels=table,
        reference_cycle=1,
        reference_channel="1",
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
    """Copy a quality file and its picture, with as many channels, and good but for ``BAD``."""
    content: dict[str, Any] = json.loads(source.read_text())
    items, numbers, stage = content["items"], content["numbers"], content["stage"]
    own = sorted({item["channel"] for item in items if item["channel"]})
    picture = np.asarray(imagecodecs.png_decode(source.with_suffix(".png").read_bytes()))
    if own:
        pairs = [(str(k), own[(k - 1) % len(own)]) for k in range(1, CHANNELS + 1)]
        content["numbers"] = {new: numbers[old] for new, old in pairs}
        items = [
            {**item, "channel": new}
            for new, old in pairs
            for item in items
            if item["channel"] == old
        ]
        if stage != "illumination":  # whose fields stand side by side
            rows = -(-CHANNELS // len(own))
            height = picture.shape[0] * CHANNELS // len(own)
            picture = np.concatenate([picture] * rows)[:height]
    for item in items:
        key = (sample, stage, cycle, item["channel"], item["metric"])
        if key in BAD:
            item["value"] = BAD[key]
        elif item["verdict"] != "pass":
            item["value"] = item["warn"] if item["warn"] is not None else item["fail"]
        item |= {"sample": sample, "cycle": cycle}
    content |= {"sample": sample, "cycle": cycle, "items": items}
    content["caption"] = content["caption"].replace("ycle 1", f"ycle {cycle}")
    target.write_text(json.dumps(content))
    target.with_suffix(".png").write_bytes(imagecodecs.png_encode(picture, level=1))


def _image(sample: Path, target: Path, names: list[str]) -> Path:
    """Write a final image of all channels, at least 1600 px wide: as large as pages show."""
    found = open_image(next((sample / "registration").glob("*.ome.zarr")))
    light: NDArray[Any] = np.asarray(found.levels[0][:])
    repeat = -(-1600 // light.shape[2])
    shape = (light.shape[1] * repeat, light.shape[2] * repeat)
    with create_image(target, shape, light.dtype, 512, found.pixel_um, names, name="s") as writer:
        for k in range(len(names)):
            plane = np.tile(light[k % len(light)], (repeat, repeat))
            for y in range(0, shape[0], 512):
                for x in range(0, shape[1], 512):
                    writer.write(k, y, x, plane[y : y + 512, x : x + 512])
    return target
