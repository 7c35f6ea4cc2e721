"""Each way to break an image leads to the verdict that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tests.report.quality.qc_scenes import GAIN, PEDESTAL, Scene, expose, make_scene, write_mosaic
from tilewright.io.results.illumination import Illumination, write_illumination
from tilewright.io.results.transform import write_transform
from tilewright.kernels.register.warp import Transform
from tilewright.report.judge import Quality, judge_stage, read_quality
from tilewright.report.quality.registered_blocks import block_shift

PLANE: dict[str, Any] = {
    "sample": "s",
    "cycle": 2,
    "channels": [("1", "DAPI")],
}
CYCLE: dict[str, Any] = {"sample": "s", "cycle": 2}


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene()


def outputs(folder: Path) -> tuple[Path, Path]:
    return folder / "qc.json", folder / "qc.png"


def verdicts(quality: Quality) -> dict[str, str]:
    return {item.metric: item.verdict for item in quality.items}


def checked(folder: Path) -> Quality:
    """Read a quality file, having checked its picture."""
    picture = read_png(folder / "qc.png")
    assert picture.ndim == 3
    assert picture.std() > 5
    quality = read_quality(folder / "qc.json")
    assert quality.caption
    return quality


def read_png(path: Path) -> NDArray[Any]:
    code = path.read_bytes()
    # A date or the software's version in the file would make every run another.
    assert b"Software" not in code
    assert b"tIME" not in code
    return np.asarray(imagecodecs.png_decode(code))


def illuminate(folder: Path, flat: NDArray[Any], **numbers: Any) -> Quality:
    field = Illumination.from_fields(flat, 100.0)
    flat_path, _, json_path = write_illumination(folder / "flat", field, numbers)
    files = {"flat": [flat_path], "numbers": [json_path]}
    judge_stage("illumination", files, *outputs(folder), **PLANE)
    return checked(folder)


def vignette(depth: float) -> NDArray[np.float64]:
    y, x = np.meshgrid(*[np.linspace(-1, 1, 96)] * 2, indexing="ij")
    return np.asarray(1 - depth * (x**2 + y**2) / 2)


def test_a_good_flat_field_passes(tmp_path: Path) -> None:
    quality = illuminate(
        tmp_path, vignette(0.35), heldout_log_ratio=0.01, flat_error=0.01, equal_neighbours=0.01
    )
    assert set(verdicts(quality).values()) == {"pass"}


def test_mismatch_vignetting_and_an_unknown_ratio_are_told(tmp_path: Path) -> None:
    deep = illuminate(
        tmp_path, vignette(0.96), heldout_log_ratio=0.4, flat_error=0.05, equal_neighbours=0.6
    )
    assert verdicts(deep) == {
        "heldout_log_ratio": "fail",
        "flat_error": "warn",
        "equal_neighbours": "warn",
        "flat_minimum": "warn",
    }
    none = illuminate(tmp_path, vignette(0.2), heldout_log_ratio=None, method="tiles")
    assert verdicts(none)["heldout_log_ratio"] == "warn"
    assert none.items[0].reason == "unknown"


def deconvolved(
    folder: Path, scene: Scene, after: NDArray[np.float32]
) -> dict[str, tuple[str, float | None]]:
    before = write_mosaic(folder / "a.zarr", expose(scene.nuclei), pedestal_counts=PEDESTAL)
    done = write_mosaic(folder / "b.zarr", after.astype(np.float32), pedestal_counts=0)
    files = {"mosaic": [before], "deconvolved": [done]}
    judge_stage("deconvolve", files, *outputs(folder), **PLANE)
    return {i.metric: (i.verdict, i.value) for i in checked(folder).items}


def ideal(scene: Scene) -> NDArray[np.float32]:
    """All light of the stack in its middle planes, as sharp as the specimen."""
    total = scene.nuclei.sum() * GAIN
    shares = np.array([0.04, 0.22, 0.48, 0.22, 0.04])
    image = scene.truth / scene.truth.sum() * total
    return np.asarray(shares[:, None, None] * image, np.float32)


def test_deconvolution_that_keeps_light_and_draws_no_rings_passes(
    tmp_path: Path, scene: Scene
) -> None:
    found = deconvolved(tmp_path, scene, ideal(scene))
    assert {v for v, _ in found.values()} == {"pass"}


@pytest.mark.parametrize(("depth", "verdict"), [(0, "pass"), (200, "warn"), (300, "fail")])
def test_rings_are_told(tmp_path: Path, depth: int, verdict: str) -> None:
    """Cells of 800 electrons over 400 of haze, which leaves room for moats of 4 px."""
    y, x = np.indices((320, 320))
    lone = np.zeros((320, 320))
    for cy, cx in np.ndindex(5, 5):
        radius = np.hypot(y - 32 - 64 * cy, x - 32 - 64 * cx)
        lone += 800 / (1 + np.exp((radius - 9) * 1.5))
    light = np.broadcast_to(lone + 400, (5, 320, 320))
    reach = ndimage.distance_transform_edt(lone <= 400)
    moat = depth * ((reach > 0) & (reach <= 4))
    after = np.asarray((light - moat) * GAIN, np.float32)
    found = deconvolved(tmp_path, Scene(light, light, lone), after)["ringing"]
    assert found[0] == verdict


def test_light_made_or_lost_is_told(tmp_path: Path, scene: Scene) -> None:
    for factor, want in ((1.5, "pass"), (2.5, "warn"), (0.2, "fail")):
        image = np.float32(factor) * ideal(scene)
        verdict, value = deconvolved(tmp_path, scene, image)["flux_factor"]
        assert verdict == want
        assert value == pytest.approx(max(factor, 1 / factor), rel=0.05)


def test_light_piled_up_at_the_ends_is_told(tmp_path: Path, scene: Scene) -> None:
    sharp = ideal(scene)
    assert deconvolved(tmp_path, scene, sharp[[2, 0, 0, 1, 1]])["end_plane_excess"][0] == "warn"
    assert deconvolved(tmp_path, scene, sharp[[2, 0, 0, 0, 0]])["end_plane_excess"][0] == "warn"


def projected(
    folder: Path, scene: Scene, plane: NDArray[Any], **attributes: Any
) -> dict[str, tuple[str, str]]:
    usage = {"plane_usage": [0.05, 0.2, 0.5, 0.2, 0.05], "excluded_planes": []}
    path = write_mosaic(folder / "edf.zarr", plane[None], **{**usage, **attributes})
    height = folder / "height.tif"
    tifffile.imwrite(height, np.linspace(0, 6, 40 * 40, dtype=np.float32).reshape(40, 40))
    stack = write_mosaic(folder / "a.zarr", expose(scene.nuclei), pedestal_counts=PEDESTAL)
    files = {"plane": [path], "height": [height], "mosaic": [stack]}
    judge_stage("edf", files, *outputs(folder), **PLANE)
    return {i.metric: (i.verdict, i.sentence) for i in checked(folder).items}


def in_focus(scene: Scene, seed: int = 0) -> NDArray[np.uint16]:
    counts = expose(scene.truth + 5, seed).astype(np.float64) - PEDESTAL
    return np.clip(counts, 0, 65535).astype(np.uint16)


def test_a_sharp_projection_passes(tmp_path: Path, scene: Scene) -> None:
    found = projected(tmp_path, scene, in_focus(scene), focus_ends=[0.0, 0.01])
    assert "tissue_beyond" in found
    assert {verdict for verdict, _ in found.values()} == {"pass"}


def test_light_resolution_and_dark_rings_of_a_projection_are_told(
    tmp_path: Path, scene: Scene
) -> None:
    plane = in_focus(scene)
    told = {"resolution_px": 7.0, "below_noise": 0.1 * plane.size}
    found = projected(tmp_path, scene, np.minimum(plane * 2.6, 65535).astype(np.uint16), **told)
    assert found["flux_factor"][0] != "pass"
    assert found["resolution_px"][0] == "warn"
    assert found["undershoot"][0] == "warn"
    few = projected(tmp_path, scene, plane, resolution_px=None, below_noise=0)
    assert "resolution_px" not in few


def test_a_blurred_projection_is_told(tmp_path: Path, scene: Scene) -> None:
    blurred = ndimage.gaussian_filter(in_focus(scene).astype(float), 6).astype(np.uint16)
    noise = np.random.default_rng(0).poisson(30, blurred.shape)
    found = projected(tmp_path, scene, (blurred + noise).astype(np.uint16))
    assert found["focus"][0] == "fail"
    assert found["image_detail"][0] == "fail"


def test_an_empty_projection_has_no_focus_to_judge(tmp_path: Path, scene: Scene) -> None:
    rng = np.random.default_rng(0)
    empty = rng.poisson(50, in_focus(scene).shape).astype(np.uint16)
    verdict, sentence = projected(tmp_path, scene, empty)["focus"]
    assert verdict == "warn"
    assert "no signal" in sentence


def test_focus_beyond_the_stack_and_damaged_planes_are_told(tmp_path: Path, scene: Scene) -> None:
    found = projected(
        tmp_path,
        scene,
        in_focus(scene),
        plane_usage=[0.8, 0.1, 0.05, 0.0, 0.05],
        excluded_planes=[{"z": 3, "reason": "blank"}],
        focus_ends=[0.2, 0.0],
    )
    assert found["tissue_beyond"][0] == "warn"
    assert "plane 1: 20%" in found["tissue_beyond"][1]
    assert found["focus_edge"][0] == "fail"
    assert found["damaged_planes"][0] == "warn"
    assert "plane 4: blank" in found["damaged_planes"][1]


def registered(
    folder: Path,
    reference: NDArray[Any],
    moving: NDArray[Any],
    transform: Transform,
    seed: int = 0,
) -> Quality:
    a = write_mosaic(folder / "ref.zarr", reference[None])
    b = write_mosaic(folder / "mov.zarr", moving[None])
    npz = folder / "cycle2.npz"
    write_transform(transform, npz, folder / "cycle2.json")
    files = {"reference": a, "moving": b, "transform": npz}
    judge_stage("register", files, *outputs(folder), **CYCLE)
    return checked(folder)


def shifted(y: float, x: float, **quality: Any) -> Transform:
    affine = np.array([[1.0, 0, y], [0, 1, x]])
    field = np.zeros((2, 4, 4), np.float32)
    return Transform(affine, field, np.zeros(2), 128.0, np.ones((4, 4), np.float32), quality)


def moved(scene: Scene, y: float, x: float, seed: int = 1) -> NDArray[np.uint16]:
    light = ndimage.shift(scene.truth, (y, x), order=3)
    counts = expose(0.8 * light + 5, seed).astype(np.float64) - PEDESTAL
    return np.clip(counts, 0, 65535).astype(np.uint16)


def test_the_right_transform_passes_and_brings_agreement(tmp_path: Path, scene: Scene) -> None:
    quality = registered(tmp_path, in_focus(scene), moved(scene, 6.3, -4.6), shifted(6.3, -4.6))
    assert set(verdicts(quality).values()) == {"pass"}
    values = {item.metric: item.value for item in quality.items}
    assert values["ncc"] is not None
    assert values["ncc"] > 0.9 > 0.5 > quality.numbers["ncc_before"]
    assert values["residual_px"] == pytest.approx(0, abs=0.05)


def test_a_transform_a_little_off_is_told_by_how_much(tmp_path: Path, scene: Scene) -> None:
    quality = registered(tmp_path, in_focus(scene), moved(scene, 6.3, -4.6), shifted(7.3, -4.6))
    values = {item.metric: item.value for item in quality.items}
    assert values["residual_px"] == pytest.approx(1.0, abs=0.1)
    assert verdicts(quality)["residual_px"] == "warn"


def test_another_tissue_fails(tmp_path: Path, scene: Scene) -> None:
    other = make_scene(6)
    quality = registered(tmp_path, in_focus(scene), in_focus(other), shifted(0, 0))
    assert verdicts(quality)["ncc"] == "fail"
    assert verdicts(quality)["poor_blocks"] == "fail"


def test_an_unregistered_cycle_fails_whatever_its_numbers(tmp_path: Path, scene: Scene) -> None:
    transform = Transform.identity({"registered": False})
    quality = registered(tmp_path, in_focus(scene), in_focus(scene, 1), transform)
    assert verdicts(quality)["unregistered"] == "fail"
    assert "NOT registered" in quality.items[0].sentence


def test_a_torn_field_and_lost_tissue_are_told(tmp_path: Path, scene: Scene) -> None:
    lost = moved(scene, 0, 0)
    lost[:, : lost.shape[1] * 6 // 10] = 3
    torn = shifted(0, 0)
    torn.field[1, 2, 3] = 70
    quality = registered(tmp_path, in_focus(scene), lost, torn)
    assert verdicts(quality)["elastic_px"] == "fail"
    assert verdicts(quality)["poor_blocks"] in ("warn", "fail")
    # The block around the torn node, at (256, 384), is where it is seen.
    (place,) = (p for p in quality.numbers["places"] if p["metric"] == "poor_blocks")
    assert max(abs(place["y_px"] - 256), abs(place["x_px"] - 384)) < 130


@pytest.mark.parametrize(("share", "verdict"), [(0.008, "pass"), (0.05, "warn"), (0.4, "fail")])
def test_the_share_of_lost_tissue_is_told(
    tmp_path: Path, scene: Scene, share: float, verdict: str
) -> None:
    gone = moved(scene, 0, 0)
    side = round(np.sqrt(share * gone.size))
    hole = (slice(60, 60 + side), slice(90, 90 + side))
    gone[hole] = np.clip(expose(np.full((side, side), 15.0)) - PEDESTAL, 0, 65535)
    transform = Transform.identity({"registered": True})
    quality = registered(tmp_path, in_focus(scene), gone, transform)
    assert verdicts(quality)["lost_tissue"] == verdict
    (item,) = (i for i in quality.items if i.metric == "lost_tissue")
    assert item.value == pytest.approx(share, rel=0.25)
    (place,) = (p for p in quality.numbers["places"] if p["metric"] == "lost_tissue")
    assert 60 < place["y_px"] < 60 + side
    assert 90 < place["x_px"] < 90 + side


def test_a_cycle_without_tissue_is_unknown_never_good(tmp_path: Path) -> None:
    nothing = np.zeros((400, 400), np.uint16)
    quality = registered(tmp_path, nothing, nothing, shifted(0, 0))
    found = verdicts(quality)
    assert found["ncc"] == found["residual_px"] == found["poor_blocks"] == "warn"


@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.4, -0.7), (2.5, 1.5), (-3.5, 2.0)])
def test_block_shift_measures_what_is_left(scene: Scene, shift: tuple[float, float]) -> None:
    first = scene.truth[100:356, 100:356].astype(np.float32)
    second = ndimage.shift(scene.truth, shift, order=3)[100:356, 100:356].astype(np.float32)
    assert block_shift(first, second) == pytest.approx(shift, abs=0.06)


def test_same_inputs_same_bytes(tmp_path: Path, scene: Scene) -> None:
    files = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        registered(folder, in_focus(scene), moved(scene, 2, 1), shifted(2, 1))
        files.append([p.read_bytes() for p in outputs(folder)])
    assert files[0] == files[1]
