"""Device memory that runs out: work goes on in smaller parts with the same pixels, or says why.

Every check runs twice: in a child process on the stand-in for CuPy, whose pool counts and refuses,
and marked ``gpu`` on CuPy itself.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import REPO, STANDIN
from tests.stages.deconvolve import deconvolve_runs
from tests.stages.edf import edf_runs
from tests.stages.stitch import stitch_runs
from tests.support.mosaics import write_mosaic
from tests.support.tissue_pair import make_pair
from tests.support.wavy_stack import wavy
from tilewright.devices.lease_folder import is_fault_of_device
from tilewright.errors import DeviceMemoryError
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import Backend, gpu_backend
from tilewright.kernels.device_memory import OomHint, map_with_oom_split, retry_smaller_on_oom
from tilewright.kernels.register.warp import Transform
from tilewright.stages.edf import stack_survey
from tilewright.stages.register.cycle import register
from tilewright.stages.register.resample import resample_region

MB = 2**20
PART = OomHint("stitch", "a part")
#: Of a deconvolution that is split: what 64 px of halo leave along the seams.
SEAM_TOLERANCE = 5e-4
needs_standin = pytest.mark.skipif(
    str(STANDIN) not in sys.path, reason="its limits suit what the stand-in counts"
)


@contextmanager
def limited(bytes_: float) -> Iterator[Backend]:
    """Give a fresh GPU backend whose pool has a limit and holds nothing."""
    backend = gpu_backend()
    pool = backend.xp.get_default_memory_pool()
    backend.xp.fft.config.get_plan_cache().clear()
    pool.free_all_blocks()
    pool.set_limit(size=int(bytes_))
    try:
        yield backend
    finally:
        pool.set_limit(size=0)


def peak(backend: Backend) -> int:
    assert backend.use.splits == 0
    assert backend.use.peak_b is not None
    return backend.use.peak_b


def test_deconvolution_is_split(
    tmp_path: Path, gpu: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    counts = deconvolve_runs.tissue((4, 400, 400))[1]

    def run(backend: Backend, name: str, tile_px: int = 512) -> Mosaic:
        options = {"tile_px": tile_px, "halo_px": 64, "iterations": 4}
        return deconvolve_runs.run(tmp_path / name, counts, backend, **options)

    with limited(0) as backend:
        whole = run(backend, "whole")
        most = peak(backend)
    caplog.set_level(logging.INFO)
    tiles = [512]
    for share in (0.75, 0.55):
        with limited(share * most) as backend:
            split = run(backend, str(share))
        tiles.append(split.attributes["tile_px"])
        assert tiles[-1] == 512 // 2**backend.use.splits <= tiles[-2]
        assert backend.use.limit_b == int(share * most) >= (backend.use.peak_b or 0) > 0
        error = seam_error(split, whole)
        sys.stdout.write(f"tiles of {tiles[-1]} px: {error:.1e} along the seams\n")
        assert error < SEAM_TOLERANCE
    assert 128 <= tiles[-1] <= 256
    assert f"again with {tiles[-1]} instead of" in caplog.text
    with limited(0) as backend:
        direct = run(backend, "direct", tiles[-1])
    assert np.linalg.norm(direct.read() - split.read()) < 1e-6 * np.linalg.norm(direct.read())
    assert direct.attributes == split.attributes


def seam_error(split: Mosaic, whole: Mosaic) -> float:
    """Return the NRMSE within 8 px of the seams of 256 or 128 px tiles."""
    cuts = np.arange(0, 400, 200 if split.attributes["tile_px"] == 256 else 100)[1:]
    near = np.abs(np.arange(400)[:, None] - cuts).min(axis=1) < 8
    band = near[:, None] | near[None, :]
    light = whole.read()[:, band]
    return float(np.linalg.norm(split.read()[:, band] - light) / np.linalg.norm(light))


def test_the_floor_is_an_error(tmp_path: Path, gpu: Backend) -> None:
    counts = deconvolve_runs.tissue((4, 400, 400))[1]
    with (
        limited(16 * MB) as backend,
        pytest.raises(DeviceMemoryError, match=r"its smallest tile with halo") as caught,
    ):
        deconvolve_runs.run(tmp_path, counts, backend, tile_px=512, halo_px=64)
    error = caught.value
    assert backend.use.splits == 2
    text = str(error)
    assert "16 MB are available to deconvolve, and do not hold its smallest tile" in text
    assert "raise resources.deconvolve.gpu_mem_mb to get a larger GPU" in text
    assert not is_fault_of_device(f"{type(error).__name__}: {error}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr"]


@needs_standin
def test_chunks_are_split(tmp_path: Path, gpu: Backend) -> None:
    """Projection, stitching, resampling: halves of a chunk have the pixels of the whole.

    The survey of planes looks at a part of a chunk, as it does where chunks are large.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_survey, "_SAMPLE_PX", 64)
        for make, share in ((raw, 0.85), (deconvolved, 0.85), (stitched, 0.7), (resampled, 0.7)):
            same_in_parts(make, tmp_path, share)


def same_in_parts(
    make: Callable[[Backend, Path], list[NDArray[Any]]], folder: Path, share: float
) -> None:
    with limited(0) as backend:
        whole = make(backend, folder / "whole")
        most = peak(backend)
    with limited(share * most) as backend:
        parts = make(backend, folder / "parts")
    assert backend.use.splits > 0
    for a, b in zip(whole, parts, strict=True):
        difference = np.abs(a.astype(np.float64) - b)
        assert difference.max() <= (1 if a.dtype == np.uint16 else 1e-3)
        assert (difference > 1e-3).mean() < 0.01


def raw(backend: Backend, folder: Path) -> list[NDArray[Any]]:
    return projected(backend, folder, wavy(2)[0], None)


def deconvolved(backend: Backend, folder: Path) -> list[NDArray[Any]]:
    return projected(backend, folder, edf_runs.light_of(2), edf_runs.DECONVOLVED)


def projected(backend: Backend, folder: Path, stack: Any, attributes: Any) -> list[NDArray[Any]]:
    folder.mkdir(exist_ok=True)
    source = edf_runs.store(folder / "in.zarr", stack, 256, attributes)
    mosaic, heights = edf_runs.run(folder, source, backend=backend)
    told = mosaic.attributes
    numbers = [*told["plane_usage"], told["clipped_low"], told["clipped_high"]]
    return [mosaic.read(), heights, np.array(numbers)]


def stitched(backend: Backend, folder: Path) -> list[NDArray[Any]]:
    mosaic = stitch_runs.run(stitch_runs.make_tiles(), folder, backend=backend, chunk_px=256)
    return [mosaic.read(), np.array([mosaic.attributes[f"clipped_{k}"] for k in ("low", "high")])]


def resampled(backend: Backend, folder: Path) -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 4000, (1, 300, 330)).astype(np.uint16)
    write_mosaic(folder, pixels)
    field = rng.normal(0, 3, (2, 8, 8)).astype(np.float32)
    affine = np.array([[1.0, 0.02, 9.0], [-0.02, 1.0, 30.0]])
    transform = Transform(affine, field, np.zeros(2), 48.0, np.ones((8, 8), np.float32))
    region = slice(20, 400), slice(0, 300)
    image = resample_region(backend, open_mosaic(folder), transform, region)
    backend.use.peak_b = backend.xp.get_default_memory_pool().total_bytes()
    return [image]


def test_what_cannot_be_split_says_so(tmp_path: Path, gpu: Backend) -> None:
    pair = make_pair(0, size=(300, 320))
    options: dict[str, Any] = {"max_shift_px": None, "max_rotation_deg": 3.0}
    options |= {"allow_unregistered": True}
    files = tmp_path / "t.npz", tmp_path / "t.json"
    with limited(MB / 4) as backend, pytest.raises(DeviceMemoryError) as caught:
        register(pair.reference, pair.moving, *files, backend=backend, **options)
    assert "0 MB are available to register" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_threads_take_turns(tmp_path: Path, gpu: Backend) -> None:
    """Each of four parts fits alone: none is halved because of what the others hold."""
    entered = threading.Barrier(4, timeout=300)

    def work(size: int) -> int:
        array = backend.xp.zeros(size * MB, dtype=np.uint8)
        time.sleep(0.01)
        return int(array[-1]) + size

    def one(size: int) -> list[int]:
        entered.wait()
        return [n for _ in range(5) for n in map_with_oom_split(backend, work, size, halves, PART)]

    def halves(size: int) -> list[int]:
        return [size // 2, size - size // 2]

    with limited(10 * MB) as backend:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(one, [6] * 4)) == [[6] * 5] * 4
        assert backend.use.splits == 0
        assert map_with_oom_split(backend, work, 30, halves, PART) == [7, 8, 7, 8]
        assert backend.use.splits == 3
        with pytest.raises(DeviceMemoryError, match="do not hold a part"):
            map_with_oom_split(backend, work, 30, lambda _: [], PART)
        assert retry_smaller_on_oom(backend, work, 30, lambda size: size - 7, PART) == 9


def test_all_memory_is_freed(tmp_path: Path, gpu: Backend) -> None:
    """What allocates beside the pool gets nothing that the pool keeps."""
    held: list[int] = []

    def work(size: int) -> int:
        pool = backend.xp.get_default_memory_pool()
        held.append(pool.total_bytes())
        array = backend.xp.zeros(size * MB, dtype=np.uint8)
        del array
        assert pool.total_bytes() >= held[0] + size * MB
        if size > 1:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
        return size

    with limited(0) as backend:
        assert retry_smaller_on_oom(backend, work, 4, lambda size: size // 2, PART) == 1
    assert held == held[:1] * 3


def test_other_errors_pass(tmp_path: Path, gpu: Backend) -> None:
    def fail(error: Exception) -> None:
        raise error

    with limited(0) as backend:
        for error in (MemoryError("of the host"), RuntimeError("CUFFT_INVALID_SIZE"), OSError()):
            with pytest.raises(type(error)) as caught:
                map_with_oom_split(backend, fail, error, lambda part: [part], PART)
            assert caught.value is error
        assert backend.use.splits == 0
        for sign in ("CUFFT", "CUBLAS_STATUS", "CUSOLVER_STATUS"):
            with pytest.raises(DeviceMemoryError):
                map_with_oom_split(
                    backend, fail, RuntimeError(f"{sign}_ALLOC_FAILED"), lambda _: [], PART
                )


def test_on_the_standin() -> None:
    """The tests of a GPU, in a process that has the stand-in in place of CuPy."""
    path = os.pathsep.join([str(STANDIN), str(REPO), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-m", "gpu", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0"},
        cwd=REPO, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-12000:]
    assert "7 passed" in done.stdout
    assert "skipped" not in done.stdout
