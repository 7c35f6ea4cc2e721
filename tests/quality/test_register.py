"""What is measured of a transform, and what quality says of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.quality.qc_scenes import expose, judged, section, values, verdicts
from tests.support.mosaics import write_mosaic
from tilewright.io.results.registration import write_transform
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.register.warp import Transform
from tilewright.quality.evaluate import QcRecord
from tilewright.stages.register.assessment import assess
from tilewright.stages.register.plane_views import open_views

BLOCK_PX = 96


def in_focus(light: NDArray[np.float64], seed: int = 0) -> NDArray[np.uint16]:
    return expose(light + 5, seed, pedestal=0)


def moved(y: float, x: float) -> NDArray[np.uint16]:
    return in_focus(0.8 * ndimage.shift(section().truth, (y, x), order=3), 1)


def mapped(affine: NDArray[np.float64], field_px: float = 0.0) -> Transform:
    field = np.zeros((2, 14, 14), np.float32)
    field[1] = field_px * np.sin(np.arange(14))
    return Transform(affine, field, np.zeros(2), 48.0, np.ones((14, 14), np.float32))


def shifted(y: float, x: float) -> Transform:
    return mapped(np.array([[1.0, 0, y], [0, 1, x]]))


def turned(degrees: float) -> Transform:
    """Turn about the middle."""
    angle, middle = np.deg2rad(degrees), np.full(2, len(section().truth) / 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return mapped(np.column_stack([turn, middle - turn @ middle]))


def measured(
    moving: NDArray[Any], transform: Transform, reference: NDArray[Any] | None = None
) -> dict[str, Any]:
    first = in_focus(section().truth) if reference is None else reference
    return assess(cpu_backend(), *open_views(first, moving), transform, BLOCK_PX)


def registered(folder: Path, moving: NDArray[Any], quality: dict[str, Any]) -> QcRecord:
    """Judge a registration of the section, which ``moving`` shows, by stored numbers."""
    npz = folder / "cycle1.npz"
    write_transform(Transform.identity(quality), npz, folder / "cycle1.json")
    planes = [("reference", in_focus(section().truth)), ("moving", moving)]
    files = {name: write_mosaic(folder / f"{name}.zarr", plane[None]) for name, plane in planes}
    return judged("register", folder, **files, transform=npz)


@pytest.mark.parametrize(
    ("transform", "error_px"),
    [
        (shifted(0, 0), 0.0),
        (shifted(1.0, 0), 1.0),
        (shifted(0, -1.5), 1.5),
        (turned(0.2), 1.3),
        (mapped(np.eye(2, 3), 2.0), 1.2),
    ],
)
def test_what_a_transform_is_off_is_measured(transform: Transform, error_px: float) -> None:
    found = measured(moved(0, 0), transform)
    assert found["local_error_px"] == pytest.approx(error_px, rel=0.2, abs=0.05)
    assert found["shift_px"] == pytest.approx(transform.rotation_and_shift((636, 636))[1], abs=0.01)
    assert error_px or found["ncc_after"] > 0.9 > 0.5 > found["ncc_chance"]


def test_tissue_that_does_not_match_is_measured_and_named() -> None:
    good, section_px = moved(0, 0), slice(100, 420)
    assert measured(good, shifted(0, 0))["poor_blocks"] == 0
    folded = good.copy()
    folded[section_px, section_px] = good[section_px, section_px][::-1]
    found = measured(folded, shifted(0, 0))
    assert 0.05 < found["poor_blocks"] < 0.3
    places = [p for p in found["places"] if p["metric"] == "poor_blocks"]
    assert all(100 < place["y_px"] < 420 and 100 < place["x_px"] < 420 for place in places)


def test_a_cycle_without_tissue_is_unknown_and_one_not_registered_fails(tmp_path: Path) -> None:
    nothing = np.zeros((400, 400), np.uint16)
    found = measured(nothing, Transform.identity(), nothing)
    quality = registered(tmp_path, nothing, found)
    assert set(values(quality).values()) == {None}
    left = registered(tmp_path, moved(0, 0), {"registered": False})
    assert verdicts(left) == {"unregistered": "fail"}
    assert "NOT registered" in left.items[0].sentence


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found = measured(moved(2, 1), shifted(2, 1))
        registered(tmp_path / name, moved(2, 1), found)
        made.append([(tmp_path / name / f"qc.{kind}").read_bytes() for kind in ("json", "png")])
    assert made[0] == made[1]
