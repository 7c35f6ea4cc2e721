from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from tests.stages.deconvolve.deconvolve_runs import CPU, PEDESTAL, camera, run, seen, tissue
from tests.support.mosaics import OPTICS, VOXEL_UM
from tests.support.wavy_stack import psnr
from tilewright.io.inputs.psf_file import read_psf
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.stages.edf import Method
from tilewright.stages.edf.plane import edf_plane


def test_output_is_light_on_a_zero_pedestal(tmp_path: Path) -> None:
    light, counts = tissue((7, 90, 110))
    out = run(tmp_path, counts)
    image = out.read()
    assert (out.shape, out.voxel_um) == (counts.shape, VOXEL_UM)
    assert out.dtype == np.float32
    after, before = (np.corrcoef(light.ravel(), k.ravel())[0, 1] for k in (image, counts))
    assert after > before + 0.1
    told = out.attributes
    assert (told["pedestal_counts"], told["iterations"]) == (0, 8)
    assert (told["clipped_low"], told["clipped_high"]) == (3, 7)
    assert told["gain_counts_per_photon"] == pytest.approx(1, rel=0.2)


def test_tiles_leave_no_seams(tmp_path: Path) -> None:
    _, counts = tissue((5, 200, 180))
    whole = run(tmp_path / "whole", counts).read()
    errors = []
    for halo in (4, 32):
        tiled = run(tmp_path / f"{halo}", counts, tile_px=100, halo_px=halo).read()
        errors.append(np.linalg.norm(tiled - whole) / np.linalg.norm(whole))
    assert errors[1] < 1e-4
    assert errors[0] > 1e-3


def test_same_bytes_twice_whatever_the_threads(tmp_path: Path) -> None:
    _, counts = tissue((4, 120, 120))
    options = {"tile_px": 64, "halo_px": 8}
    one, three = (run(tmp_path / str(n), counts, cpu_backend(n), **options).read() for n in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_one_plane_and_saturation_are_survived(tmp_path: Path) -> None:
    _, counts = tissue((1, 80, 70))
    out = run(tmp_path, counts)
    assert out.shape == (1, 80, 70)
    assert np.isfinite(out.read()).all()
    assert out.read().std() > counts.std()
    _, counts = tissue((3, 64, 64))
    counts[:, 20:30, 20:30] = 65535
    assert np.isfinite(run(tmp_path / "saturated", counts, iterations=30).read()).all()


@pytest.mark.parametrize("pedestal", [0.0, PEDESTAL])
def test_empty_mosaic_is_zero(tmp_path: Path, pedestal: float) -> None:
    counts = np.full((3, 60, 60), pedestal, np.uint16)
    out = run(tmp_path, counts, pedestal=pedestal)
    assert not out.read().any()


def test_places_without_a_tile_stay_zero_and_do_not_dim_their_neighbours(tmp_path: Path) -> None:
    _, counts = tissue((5, 96, 96))
    hidden = counts.copy()
    hidden[:, :, :40] = int(PEDESTAL)
    whole = run(tmp_path / "whole", counts).read()
    part = run(tmp_path / "part", hidden).read()
    assert not part[:, :, :40].any()
    assert part[:, :, 40:46].sum() == pytest.approx(whole[:, :, 40:46].sum(), rel=0.2)


def both(folder: Path, counts: NDArray[Any], iterations: int = 25) -> tuple[Mosaic, Mosaic]:
    """Return the projections after deconvolution and of the raw stack."""
    run(folder, counts, iterations=iterations)
    planes = []
    methods: tuple[tuple[str, Method], ...] = (("out", "sum_projection"), ("in", "focus_weighted"))
    for name, method in methods:
        stack, path, heights = (folder / f"{name}{end}" for end in (".zarr", "_edf.zarr", ".tif"))
        edf_plane(stack, path, heights, backend=CPU, method=method, optics=OPTICS)
        planes.append(open_mosaic(path))
    return planes[0], planes[1]


def near(plane: Mosaic, truth: NDArray[Any]) -> float:
    return psnr(plane.read(0).astype(np.float32), truth)


def sheet(seed: int, photons: float = 600) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (in-focus plane, counts) of a thin wavy sheet around the middle one of nine planes.

    The scene is wider than the view and has eight planes more at each end.
    """
    rng = np.random.default_rng(seed)
    size, planes, beyond, edge = 96, 9, 8, 24
    shape = (planes + 2 * beyond, size + 2 * edge, size + 2 * edge)
    flat = gaussian_filter((rng.random(shape[1:]) < 0.02) * rng.random(shape[1:]), 1.5)
    height = beyond + 4 + 2 * np.sin(2 * np.pi * np.arange(shape[1]) / 130 + seed)
    z = np.arange(shape[0])[:, None, None]
    light = flat * np.exp(-0.5 * ((z - height[:, None]) / 0.7) ** 2)
    view = (..., slice(edge, -edge), slice(edge, -edge))
    blurred = seen(light, 65)[beyond:-beyond][view]
    focus = np.zeros_like(light)
    focus[shape[0] // 2] = light.sum(axis=0)
    truth = seen(focus, 65)[shape[0] // 2][view]
    scale = photons / blurred.max()
    return truth * scale, camera(rng, blurred * scale)


@pytest.mark.parametrize(("photons", "iterations", "gain_db"), [(600, 25, 0.0), (40, 16, 2.0)])
def test_the_projection_is_above_that_of_the_raw_stack(
    tmp_path: Path, photons: float, iterations: int, gain_db: float
) -> None:
    """Where tissue lies within the stack, also a dim one."""
    truth, counts = sheet(3, photons)
    plane, raw = both(tmp_path, counts, iterations)
    assert near(plane, truth) > near(raw, truth) + gain_db
    assert plane.attributes["method"] == "sum_projection"
    assert sum(plane.attributes["focus_ends"]) <= 0.06


def test_a_damaged_plane_has_no_part_in_the_deconvolution(tmp_path: Path) -> None:
    truth, counts = sheet(4)
    whole, _ = both(tmp_path / "whole", counts)
    black, blob = counts.copy(), counts.copy()
    black[6] = int(PEDESTAL)
    blob[6, 20:60, 20:60] = 65535
    for name, broken in (("black", black), ("blob", blob)):
        plane, _ = both(tmp_path / name, broken)
        assert [entry["z"] for entry in plane.attributes["excluded_planes"]] == [6]
        assert near(plane, truth) > near(whole, truth) - 1.5


def test_measured_psf_file_gives_what_the_optics_give(tmp_path: Path) -> None:
    _, counts = tissue((4, 80, 80))
    bead = gibson_lanni(Optics(**OPTICS), VOXEL_UM, 9, max_lateral_px=65)
    file = tmp_path / "bead.ome.tif"
    metadata: dict[str, Any] = {"axes": "ZYX", "PhysicalSizeZ": VOXEL_UM[0]}
    metadata |= {"PhysicalSizeY": VOXEL_UM[1], "PhysicalSizeX": VOXEL_UM[2]}
    tifffile.imwrite(file, np.rint(bead / bead.max() * 60000).astype(np.uint16), metadata=metadata)
    image, voxel_um = read_psf(file)
    assert voxel_um == pytest.approx(VOXEL_UM)
    assert image.shape == bead.shape
    measured = run(tmp_path / "a", counts, psf_file=file, optics={}).read()
    computed = run(tmp_path / "b", counts).read()
    assert np.corrcoef(measured.ravel(), computed.ravel())[0, 1] > 0.98
