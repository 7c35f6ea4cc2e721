"""What kernels ask of a device is in the table, and CuPy takes every kind of it.

The second needs no GPU, and CuPy in a folder of its own: these tests' environment does without.
"""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO, STANDIN
from tests.support.device_calls import TABLE, table

#: Where `make test` puts CuPy's wheel.
FOLDER = Path(sys.prefix) / "cupy"
#: SciPy's alone: the backend asks for it on a CPU.
ON_A_CPU = {"fft.set_workers"}


def bound(path: Path) -> dict[str, Any]:
    """Return what binding a table to CuPy gives."""
    if find_spec("cupy") is None and not (FOLDER / "cupy").is_dir():
        pytest.skip(f"CuPy is not installed, nor in {FOLDER}: make test puts it there")
    places = [str(FOLDER), str(REPO), *(p for p in sys.path if p != str(STANDIN))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bind_calls", str(path)], check=False, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_cupy_takes_every_kind_of_call() -> None:
    found = bound(TABLE)
    assert found["wrong"] == [], f"CuPy {found['cupy']}"
    assert found["bound"] == sum(map(len, table().values()))


#: Kinds that CuPy does not take, or answers in another type, and what is said of each.
WRONG = {
    "xp.no_such_name": ([{}, "None"], "no such name"),
    "fft.rfft2": (["float32[2]", {"workers": "int"}, "complex64[2]"], "workers"),
    "xp.median": (["float32[2]", "int", "None", "bool", "bool", "int", {}, "None"], "too many"),
    "xp.pad": (["float32[2]", "int", {"mode": "'antireflect'"}, "float32[2]"], "'antireflect'"),
    "ndimage.sobel": (["float32[2]", {"mode": "'periodic'"}, "float32[2]"], "'periodic'"),
    "xp.percentile": (["float32[1]", "int", {"method": "'weibull'"}, "float32[0]"], "'weibull'"),
    "xp.sqrt": (["float32[1]", {"where": "bool[1]"}, "float32[1]"], "takes 1 arguments"),
    "xp.maximum": (["float32[1]", "float32[1]", {}, "float64[1]"], "float32 on the GPU"),
    "xp.invert": (["float32[1]", {}, "float32[1]"], "no loop"),
    "xp.add": (["[float32[1]]", "int", {}, "float32[1]"], "neither an array"),
    "array.__mul__": (["uint16[1]", "float", {}, "float32[1]"], "float64 on the GPU"),
    "array.__index__": (["int64[0]", {}, "int"], "no such operator"),
    "array.max": (["float32[1]", {"initial": "int"}, "float32[0]"], "initial"),
    "array.partition": ([{}, "None"], "missing"),
    "array.__getitem__": (["bool[2]", "(bool[1], bool[1])", {}, "bool[1]"], "more than one mask"),
    "array.__setitem__": (["float32[1]", "slice", "[float]", {}, "None"], "neither array"),
}


def test_what_cupy_does_not_take_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({name: [kind] for name, (kind, _) in WRONG.items()}))
    found = bound(path)
    said = {name: why for name, _, why in found["wrong"]}
    assert said.keys() == WRONG.keys()
    for name, (_, why) in WRONG.items():
        assert why in said[name], name


def names_used(path: Path) -> set[str]:
    """Return the names of a backend's modules that a module of Python uses."""
    tree = ast.walk(ast.parse(path.read_text("utf-8")))
    texts = [ast.unparse(node) for node in tree if isinstance(node, ast.Attribute)]
    of_backend = r"(?!(?:np|scipy|ndimage)\.)(?:.*?\.)?((?:xp|fft|ndimage)\.[\w.]+)"
    return {found[1] for text in texts if (found := re.fullmatch(of_backend, text, re.DOTALL))}


def test_every_name_that_kernels_use_was_tried() -> None:
    folders = [REPO / "src/tilewright" / name for name in ("kernels", "stages")]
    used = set().union(*(names_used(path) for f in folders for path in f.rglob("*.py")))
    assert {"xp.sqrt", "fft.rfft2", "ndimage.gaussian_filter"} <= used
    tried = {*table(), *ON_A_CPU}
    assert not {n for n in used if not any(n == t or t.startswith(f"{n}.") for t in tried)}
