import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.support.mosaics import write_mosaic
from tests.support.tissue_pair import Pair, make_pair
from tilewright.errors import ResultFileError
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.registration import write_transform
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.register.warp import Transform
from tilewright.stages.register.assemble import assemble
from tilewright.stages.register.resample import resample

CPU = cpu_backend(workers=2)
OPTIONS: dict[str, Any] = {"chunk_px": 128, "ome_zarr_version": "0.4", "backgrounds": {}}
#: (marker, cycle, channel, in-focus plane, transform).
Plane = tuple[str, int, str, Path, Path | None]


def true_transform(pair: Pair) -> Transform:
    """Sample the elastic part of the pair's truth at nodes 24 px apart."""
    spans = (np.arange(-24.0, n + 48, 24.0) for n in pair.reference.shape)
    nodes = np.stack(np.meshgrid(*spans, indexing="ij"), -1)
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
    reference, moving = (
        write_mosaic(folder / f"{name}.zarr", image[None], voxel_um=(1.5, 0.5, 0.5))
        for name, image in (("reference", pair.reference), ("moving", pair.moving))
    )
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


def run(
    folder: Path, planes: list[Plane], backend: Backend = CPU, **options: Any
) -> NDArray[np.uint16]:
    """Resample cycles of one channel each, and put the image together."""
    cycles = []
    for marker, cycle, channel, plane, transform in planes:
        cycles.append((cycle, folder / f"cycle{cycle}.zarr"))
        resample(
            cycle, [(marker, channel, plane)], transform, planes[1][3], cycles[-1][1],
            taken(folder, cycle), backend=backend, **OPTIONS | options,
        )  # fmt: skip
    paths = folder / "s.ome.tif", folder / "s.ome.zarr", folder / "markers.csv"
    assemble(cycles, *paths, workers=2)
    return np.asarray(open_image(paths[1]).levels[0])


@pytest.fixture(scope="module")
def made(planes: list[Plane], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    run(folder, planes)
    return folder


def test_channels_lie_on_each_other(made: Path, pair: Pair) -> None:
    image = open_image(made / "s.ome.zarr")
    pixels = np.asarray(image.levels[0])
    assert pixels.shape == (3, 400, 430)
    assert (image.channel_names, image.pixel_um) == (("CD3", "DAPI", "CD8"), (0.5, 0.5))
    assert np.array_equal(pixels[1], pair.reference)
    inner = np.s_[60:-60, 60:-80]
    after, _, before = (np.corrcoef(k[inner].ravel(), pixels[1][inner].ravel()) for k in pixels)
    assert after[0, 1] > 0.97
    assert before[0, 1] < 0.5
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
    with tifffile.TiffFile(made / "s.ome.tif") as tiff:
        assert tiff.series[0].axes == "CYX"
        assert np.array_equal(tiff.series[0].asarray(), pixels)
        assert 'Name="CD8"' in (tiff.ome_metadata or "")
    assert (made / "markers.csv").read_text() == (
        "channel_number,cycle_number,marker_name\n1,2,CD3\n2,1,DAPI\n3,3,CD8\n"
    )
    written = {"markers.csv", "s.ome.tif", "s.ome.zarr"}
    for cycle in (2, 4, 7):
        written |= {f"cycle{cycle}.zarr", *(path.name for path in taken(made, cycle))}
        assert json.loads(taken(made, cycle)[1].read_text()) == []
    assert {path.name for path in made.glob("[!.]*")} == written


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_image_shares_the_files_of_its_cycles(
    tmp_path: Path, planes: list[Plane], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(tmp_path, planes, ome_zarr_version=version, chunk_px=256)
    chunks = [p for p in (tmp_path / "s.ome.zarr").rglob("*") if p.name.isdigit() and p.is_file()]
    assert len(chunks) == 3 * 4
    assert {path.stat().st_nlink for path in chunks} == {2}

    link = os.link

    def no_links(source: str, target: str) -> None:
        if Path(source).name.isdigit():
            raise PermissionError(f"no link from {source} to {target}")
        link(source, target)  # of Zarr itself

    monkeypatch.setattr("os.link", no_links)
    after = run(tmp_path, planes, ome_zarr_version=version, chunk_px=256)
    assert {path.stat().st_nlink for path in chunks} == {1}
    assert np.array_equal(after, before)


def test_cycles_that_do_not_fit_together_are_named(
    made: Path, tmp_path: Path, planes: list[Plane]
) -> None:
    before = (made / "s.ome.tif").read_bytes()
    marker, _, channel, plane, _ = planes[0]
    paths = tmp_path / "cycle9.zarr", taken(tmp_path, 9)
    resample(9, [(marker, channel, plane)], None, plane, *paths, backend=CPU, **OPTIONS)
    image = made / "s.ome.tif", made / "s.ome.zarr", made / "markers.csv"
    cycles = [(2, made / "cycle2.zarr"), (9, paths[0])]
    with pytest.raises(ResultFileError, match=r"cycle9\.zarr differs from .*cycle2\.zarr in size"):
        assemble(cycles, *image, workers=2)
    assert image[0].read_bytes() == before


def test_errors_leave_nothing(tmp_path: Path, planes: list[Plane]) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match="is no transform"):
        run(out, [(*planes[0][:4], tmp_path / "broken.npz"), planes[1]])
    assert not list(out.iterdir())
