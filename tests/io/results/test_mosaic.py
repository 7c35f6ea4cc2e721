import errno
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaozarrs
from zarr.storage import _local as local_store

from tests.support.runs import digests
from tilewright.errors import ResultFileError
from tilewright.io.results.mosaic import create_mosaic, open_mosaic
from tilewright.io.results.zarr_store import OmeZarrVersion

VERSIONS: list[OmeZarrVersion] = ["0.4", "0.5"]
MODELS: dict[str, Any] = {"0.4": yaozarrs.v04.Image, "0.5": yaozarrs.v05.OMEZarrGroupJSON}
VOXEL_UM = (1.5, 0.377, 0.377)


def stack(seed: int = 0, shape: tuple[int, int, int] = (2, 150, 190)) -> Any:
    return np.random.default_rng(seed).integers(0, 65536, shape).astype(np.uint16)


def save(path: Path, image: Any, version: OmeZarrVersion = "0.4") -> None:
    what = (image.shape, image.dtype, 64, VOXEL_UM)
    with create_mosaic(path, *what, ome_zarr_version=version) as mosaic:
        mosaic.attributes["pedestal_counts"] = np.int64(100)
        mosaic.attributes["ratio"] = np.float32(0.5)
        mosaic.write(0, 0, 0, image)


@pytest.mark.parametrize("version", VERSIONS)
def test_round_trip_is_valid_ome_zarr(tmp_path: Path, version: OmeZarrVersion) -> None:
    image = stack()
    save(tmp_path / "m.zarr", image, version)
    mosaic = open_mosaic(tmp_path / "m.zarr")
    assert (mosaic.shape, mosaic.dtype, mosaic.chunk_px) == (image.shape, image.dtype, 64)
    assert mosaic.voxel_um == VOXEL_UM
    assert mosaic.attributes == {"pedestal_counts": 100, "ratio": 0.5}
    np.testing.assert_array_equal(mosaic.read(), image)
    np.testing.assert_array_equal(mosaic.read(1, slice(3, 70), slice(5)), image[1, 3:70, :5])
    document = tmp_path / "m.zarr" / (".zattrs" if version == "0.4" else "zarr.json")
    assert isinstance(yaozarrs.validate_ome_json(document.read_text()), MODELS[version])
    content = json.loads(document.read_text())
    stored = (content if version == "0.4" else content["attributes"])["tilewright"]
    assert type(stored["pedestal_counts"]) is int
    assert ("0/1/2/2" if version == "0.4" else "0/c/1/2/2") in digests(tmp_path / "m.zarr")
    save(tmp_path / "again" / "m.zarr", image, version)
    assert digests(tmp_path / "again" / "m.zarr") == digests(tmp_path / "m.zarr")
    with pytest.raises(ResultFileError, match="no Zarr group is there"):
        open_mosaic(tmp_path / "none.zarr")


def test_blocks_sharing_a_chunk_lose_nothing(tmp_path: Path) -> None:
    image = stack(2, (1, 64, 64))
    together = threading.Barrier(8)

    def write(row: int) -> None:
        together.wait()
        mosaic.write(0, row * 8, 0, image[0, row * 8 : row * 8 + 8])

    with (
        create_mosaic(tmp_path / "m.zarr", image.shape, "uint16", 64, VOXEL_UM) as mosaic,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(write, range(8)))
    np.testing.assert_array_equal(open_mosaic(tmp_path / "m.zarr").read(), image)


def test_unwritten_pixels_hold_the_fill(tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    with create_mosaic(path, (1, 100, 100), "uint16", 64, VOXEL_UM, fill=103) as mosaic:
        mosaic.write(0, 70, 70, np.zeros((10, 10), np.uint16))
    read = open_mosaic(path).read(0)
    assert read.sum() == 103 * (100 * 100 - 100)


def test_writes_that_outlast_an_error_leave_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full, begun, ended = local_store._put, threading.Event(), [], []

    def put(path: Path, *args: Any, **kwargs: Any) -> int:
        if "/c/" in str(path) or path.name[:1].isdigit():
            if not full.is_set():
                full.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            begun.append(path)
            time.sleep(0.2)
            ended.append(path)
        return write(path, *args, **kwargs)

    monkeypatch.setattr(local_store, "_put", put)
    with (
        pytest.raises(OSError, match="No space"),
        create_mosaic(tmp_path / "m.zarr", (1, 192, 192), "uint16", 64, VOXEL_UM) as mosaic,
    ):
        mosaic.write(0, 0, 0, np.ones((192, 192), np.uint16))
    assert 0 < len(begun) == len(ended)
    assert list(tmp_path.iterdir()) == []
