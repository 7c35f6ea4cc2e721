from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.support.tissue_pair import Pair, make_pair
from tilewright.io.results.mosaic import create_mosaic
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.transform import write_transform
from tilewright.io.results.zarr_store import StoreError
from tilewright.kernels.backend import Backend
from tilewright.kernels.register.warp import Transform
from tilewright.stages.register.assemble import assemble
from tilewright.stages.register.resample import resample

OPTIONS: dict[str, Any] = {"chunk_px": 128, "ome_zarr_version": "0.4", "backgrounds": {}}
#: (marker, cycle, channel, in-focus plane, transform).
Plane = tuple[str, int, str, Path, Path | None]


def a_mosaic(path: Path, image: NDArray[Any]) -> Path:
    with create_mosaic(path, (1, *image.shape), image.dtype, 128, (1.5, 0.5, 0.5), "m") as mosaic:
        mosaic.write(0, 0, 0, image)
    return path


def true_transform(pair: Pair) -> Transform:
    """Sample the elastic part of the pair's truth at nodes 24 px apart."""
    nodes = np.stack(
        np.meshgrid(*(np.arange(-24.0, n + 48, 24.0) for n in pair.reference.shape), indexing="ij"),
        -1,
    )
    points = nodes.reshape(-1, 2)
    rest = pair.truth(points) - points @ pair.affine[:, :2].T - pair.affine[:, 2]
    field = rest.T.reshape(2, *nodes.shape[:2]).astype(np.float32)
    return Transform(pair.affine, field, np.full(2, -24.0), 24.0, np.ones(field.shape[1:], "f4"))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair(0, size=(400, 430), moving_size=(420, 390), shift_px=(8.3, -6.6), gain=1.0)


@pytest.fixture(scope="module")
def planes(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> list[Plane]:
    folder = tmp_path_factory.mktemp("edf")
    reference = a_mosaic(folder / "reference.zarr", pair.reference)
    moving = a_mosaic(folder / "moving.zarr", pair.moving)
    write_transform(true_transform(pair), folder / "t.npz", folder / "t.json")
    unregistered = Transform.identity({"registered": False, "reason": "declared"})
    write_transform(unregistered, folder / "u.npz", folder / "u.json")
    return [
        ("CD3", 4, "1", moving, folder / "t.npz"),
        ("DAPI", 2, "0", reference, None),
        ("CD8", 7, "2", moving, folder / "u.npz"),
    ]


def taken(folder: Path, cycle: int) -> tuple[Path, Path]:
    return folder / f"subtraction_cycle{cycle}.npz", folder / f"subtraction_cycle{cycle}.json"


def run(backend: Backend, planes: list[Plane], folder: Path, **options: Any) -> None:
    """Resample cycles of one channel each, and put the image together."""
    cycles = []
    for marker, cycle, channel, plane, transform in planes:
        cycles.append((cycle, folder / f"cycle{cycle}.zarr"))
        resample(
            cycle, [(marker, channel, plane)], transform, planes[1][3], cycles[-1][1],
            taken(folder, cycle), backend=backend, **OPTIONS | options,
        )  # fmt: skip
    paths = folder / "s.ome.tif", folder / "s.ome.zarr", folder / "markers.csv"
    assemble(cycles, *paths, compression="deflate", tile_px=128, workers=2)


def test_channels_lie_on_each_other(
    cpu: Backend, tmp_path: Path, pair: Pair, planes: list[Plane]
) -> None:
    run(cpu, planes, tmp_path)
    image = open_image(tmp_path / "s.ome.zarr")
    pixels = np.asarray(image.levels[0])
    assert pixels.shape == (3, 400, 430)
    assert image.channel_names == ("CD3", "DAPI", "CD8")
    assert image.pixel_um == (0.5, 0.5)
    assert np.array_equal(pixels[1], pair.reference)
    inner = np.s_[60:-60, 60:-80]
    before = np.corrcoef(pixels[2][inner].ravel(), pixels[1][inner].ravel())[0, 1]
    after = np.corrcoef(pixels[0][inner].ravel(), pixels[1][inner].ravel())[0, 1]
    assert after > 0.97
    assert before < 0.5
    # Photon noise of two images, one of them smoothed by the interpolation, and nothing else.
    difference = pixels[0][inner].astype(float) - pixels[1][inner]
    light = np.maximum(pixels[1][inner].astype(float) - 100, 10)
    assert np.median(np.abs(difference) / np.sqrt(4 * light + 100)) < 1.2
    # An unregistered cycle lies where it is, cut and filled to the frame.
    assert np.array_equal(pixels[2][:, :390], pair.moving[:400])
    assert not pixels[2][:, 390:].any()
    # Beyond the moving image there is nothing.
    points = np.mgrid[:400, :430].reshape(2, -1).T.astype(float)
    beyond = (pair.truth(points) > [420, 390]).any(axis=1).reshape(400, 430)
    assert beyond.sum() > 1000
    assert not pixels[0][beyond].any()


def test_tiff_and_markers(cpu: Backend, tmp_path: Path, planes: list[Plane]) -> None:
    run(cpu, planes, tmp_path)
    with tifffile.TiffFile(tmp_path / "s.ome.tif") as tiff:
        assert tiff.series[0].axes == "CYX"
        pixels = tiff.series[0].asarray()
        assert 'Name="CD8"' in (tiff.ome_metadata or "")
    assert np.array_equal(pixels, np.asarray(open_image(tmp_path / "s.ome.zarr").levels[0]))
    assert (tmp_path / "markers.csv").read_text() == (
        "channel_number,cycle_number,marker_name\n1,2,CD3\n2,1,DAPI\n3,3,CD8\n"
    )
    written = {"markers.csv", "s.ome.tif", "s.ome.zarr"}
    for cycle in (2, 4, 7):
        written |= {f"cycle{cycle}.zarr", *(path.name for path in taken(tmp_path, cycle))}
        assert json.loads(taken(tmp_path, cycle)[1].read_text()) == []
    assert {path.name for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_image_shares_the_files_of_its_cycles(
    cpu: Backend,
    tmp_path: Path,
    planes: list[Plane],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(cpu, planes, tmp_path, ome_zarr_version=version, chunk_px=256)
    chunks = [p for p in (tmp_path / "s.ome.zarr").rglob("*") if p.name.isdigit() and p.is_file()]
    assert len(chunks) == 3 * 4
    assert {path.stat().st_nlink for path in chunks} == {2}
    before = np.asarray(open_image(tmp_path / "s.ome.zarr").levels[0])

    link = os.link

    def no_links(source: str, target: str) -> None:
        if Path(source).name.isdigit():
            raise PermissionError(f"no link from {source} to {target}")
        link(source, target)  # of Zarr itself

    monkeypatch.setattr("os.link", no_links)
    run(cpu, planes, tmp_path, ome_zarr_version=version, chunk_px=256)
    assert {path.stat().st_nlink for path in chunks} == {1}
    assert np.array_equal(np.asarray(open_image(tmp_path / "s.ome.zarr").levels[0]), before)


def test_cycles_that_do_not_fit_together_are_named(
    cpu: Backend, tmp_path: Path, planes: list[Plane]
) -> None:
    run(cpu, planes, tmp_path)
    before = (tmp_path / "s.ome.tif").read_bytes()
    other = tmp_path / "cycle9.zarr"
    marker, _, channel, plane, _ = planes[0]
    paths = other, taken(tmp_path, 9)
    resample(9, [(marker, channel, plane)], None, plane, *paths, backend=cpu, **OPTIONS)
    image = tmp_path / "s.ome.tif", tmp_path / "s.ome.zarr", tmp_path / "markers.csv"
    cycles = [(2, tmp_path / "cycle2.zarr"), (9, other)]
    with pytest.raises(StoreError, match=r"cycle9\.zarr is not like .*cycle2\.zarr; make both"):
        assemble(cycles, *image, compression="deflate", tile_px=128, workers=2)
    assert (tmp_path / "s.ome.tif").read_bytes() == before


def test_chunks_and_runs_give_the_same_pixels(
    cpu: Backend, guarded: Backend, tmp_path: Path, planes: list[Plane]
) -> None:
    for name, backend, chunk_px in (("a", cpu, 128), ("b", guarded, 128), ("c", cpu, 80)):
        (tmp_path / name).mkdir()
        run(backend, planes, tmp_path / name, chunk_px=chunk_px)
    tiffs = [(tmp_path / name / "s.ome.tif").read_bytes() for name in "ab"]
    assert tiffs[0] == tiffs[1]
    a, c = (np.asarray(open_image(tmp_path / n / "s.ome.zarr").levels[0]) for n in "ac")
    assert np.array_equal(a, c)


def test_errors_leave_nothing(cpu: Backend, tmp_path: Path, planes: list[Plane]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no")
    with pytest.raises(ValueError, match="is no transform"):
        run(cpu, [(*planes[0][:4], broken), planes[1]], out)
    assert not list(out.iterdir())


@pytest.mark.gpu
def test_gpu_gives_the_same_image(
    cpu: Backend, gpu: Backend, tmp_path: Path, planes: list[Plane]
) -> None:
    for name, backend in (("a", cpu), ("b", gpu)):
        (tmp_path / name).mkdir()
        run(backend, planes, tmp_path / name)
    a, b = (np.asarray(open_image(tmp_path / n / "s.ome.zarr").levels[0]) for n in "ab")
    assert np.abs(a.astype(int) - b.astype(int)).max() <= 1
