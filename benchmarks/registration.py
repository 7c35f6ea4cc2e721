"""Registration of the pair with known deformation, beside peers: error, time, memory.

``python -m benchmarks.registration [--seed 3] [--peer-python PATH]`` makes the pair with
``../shared/tools/pair-truth``, which needs opencv-python-headless: run by the interpreter of
``--peer-python``, in which the peers are looked for as well (opencv, palom).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import cpu_backend
from tilewright.stages.register.cycle import register

TOOL = Path(__file__).resolve().parents[2] / "shared" / "tools" / "pair-truth"
BAR = "bar: 0.12 / 0.30 / 1.00 px in 5 s"
_HEADER = ("method", "TRE median", "p95", "max px", "s")

#: Runs in the peer's interpreter: prints one line of JSON per method.
PEER = r"""
import json, sys, time
import numpy as np
d = np.load(sys.argv[1]); ref, mov = d["ref"], d["mov"]
s = (slice(None, None, 4),) * 2
t = d["tissue"][s]; yy, xx = np.mgrid[: ref.shape[0] : 4, : ref.shape[1] : 4]
q = np.stack([yy[t], xx[t]], 1).astype(float)
p = np.stack([d["my"][s][t], d["mx"][s][t]], 1).astype(float)
inside = (p.min(1) >= 0) & (p.max(1) <= ref.shape[0] - 1); p, q = p[inside], q[inside]
def affine(points, m): return points @ m[:, :2].T + m[:, 2]
def report(name, found, seconds):
    e = np.hypot(*(found - q).T)
    print(json.dumps([name, *np.percentile(e, [50, 95, 100]).tolist(), seconds]), flush=True)
def swap(m): return np.asarray(m, float)[:2][::-1][:, [1, 0, 2]]
def orb():
    import cv2
    cv2.setNumThreads(2); start = time.perf_counter()
    small = [np.clip(i / np.percentile(i[::4, ::4], 99.5) * 255, 0, 255).astype("u1")
             for i in (ref, mov)]
    keys, marks = zip(*(cv2.ORB_create(20000).detectAndCompute(i, None) for i in small))
    found = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(*marks)
    a = np.float32([keys[0][f.queryIdx].pt for f in found])
    b = np.float32([keys[1][f.trainIdx].pt for f in found])
    m, _ = cv2.estimateAffine2D(a, b, method=cv2.RANSAC, ransacReprojThreshold=5)
    report("ORB + RANSAC affine (opencv)", affine(p, swap(m)), time.perf_counter() - start)
    start = time.perf_counter()
    back = cv2.warpAffine(small[1], m, ref.shape[::-1], flags=cv2.WARP_INVERSE_MAP + 1)
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM).calc(small[0], back, None)
    i = np.clip(np.rint(p).astype(int), 0, ref.shape[0] - 1)
    moved = p + flow[i[:, 0], i[:, 1]][:, ::-1]
    report("  + DIS flow (opencv)", affine(moved, swap(m)), time.perf_counter() - start)
def palom():
    import palom
    start = time.perf_counter()
    readers = [palom.align.Aligner(ref, mov, ref_thumbnail=ref[::4, ::4],
               moving_thumbnail=mov[::4, ::4], ref_thumbnail_down_factor=4,
               moving_thumbnail_down_factor=4)]
    a = readers[0]; a.coarse_register_affine(n_keypoints=4000, plot_match_result=False)
    report("palom coarse affine", affine(p, swap(np.linalg.inv(a.affine_matrix))),
           time.perf_counter() - start)
for method in (orb, palom):
    try: method()
    except Exception as error: print(json.dumps([method.__name__, repr(error)[:90]]), flush=True)
"""


def truth(pair: dict[str, NDArray[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return matching positions of reference and moving image on tissue, every 4th pixel."""
    s = (slice(None, None, 4), slice(None, None, 4))
    tissue = pair["tissue"][s]
    size = pair["mov"].shape
    yy, xx = np.mgrid[: size[0] : 4, : size[1] : 4]
    moving = np.stack([yy[tissue], xx[tissue]], 1).astype(np.float64)
    reference = np.stack([pair["my"][s][tissue], pair["mx"][s][tissue]], 1).astype(np.float64)
    inside = (reference.min(axis=1) >= 0) & (reference.max(axis=1) <= min(size) - 1)
    return reference[inside], moving[inside]


def ours(pair: dict[str, NDArray[Any]], folder: Path) -> list[Any]:
    """Return the line of registration, with its quality pass."""
    backend = cpu_backend(2)
    start, cpu_start = time.perf_counter(), time.process_time()
    transform = register(
        pair["ref"],
        pair["mov"],
        folder / "t.npz",
        folder / "t.json",
        backend=backend,
        max_shift_px=None,
        max_rotation_deg=5.0,
        allow_unregistered=False,
    )
    seconds = time.perf_counter() - start
    cpu_s = time.process_time() - cpu_start
    reference, moving = truth(pair)
    error = np.linalg.norm(transform.points(reference) - moving, axis=1)
    return [f"tilewright ({cpu_s:.1f} s of CPU)", *np.percentile(error, [50, 95, 100]), seconds]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--pair", type=Path, help="an .npz made by pair-truth before")
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = options.pair or folder / "pair.npz"
        if options.pair is None:
            if not TOOL.exists():
                print(f"{TOOL} is absent: no pair with known deformation to measure on")
                return
            command = [options.peer_python, str(TOOL), str(path), str(options.seed)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                print("pair-truth failed; give --peer-python of a venv with opencv-python-headless")
                return
        with np.load(path) as data:
            pair = {key: data[key] for key in data.files}
        lines = [ours(pair, folder)]
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        command = [options.peer_python, "-c", PEER, str(path)]
        peers = subprocess.run(command, capture_output=True, text=True, check=False)
        lines += [json.loads(line) for line in peers.stdout.splitlines() if line.startswith("[")]
    print(f"{_HEADER[0]:36s}" + "".join(f"{word:>12s}" for word in _HEADER[1:]))
    for label, *values in lines:
        if isinstance(values[0], str):
            print(f"{label:36s}  {values[0]}")
            continue
        print(f"{label:36s}" + "".join(f"{value:12.3f}" for value in values))
    print(f"{BAR}; peak RSS of tilewright {peak_mb:.0f} MiB, the pair of 162 MiB included")


if __name__ == "__main__":
    main()
