"""Examples in docstrings run; public functions of kernels and of reasons have one."""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

import snakemake_scheduler_plugin_tilewright as plugin
from tests.conftest import REPO
from tilewright.kernels.backend import cpu_backend

ROOTS = (REPO / "src", REPO / "scheduler-plugin/src")
DOCS = [(f"docs.{path.stem}", path) for path in sorted((REPO / "docs").glob("*.py"))]
#: Package whose functions have examples, if modules of other packages import them.
KERNELS = "tilewright.kernels"
#: Modules of the plugin of which each public function has one.
PLACEMENT = ("slurm.reasons",)
#: Names that examples use without importing them, as numpydoc does with ``np``.
NAMES = {"np": np, "ndimage": ndimage, "cpu": cpu_backend()}


def _modules() -> Iterator[tuple[str, Path]]:
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def _public_functions(package: str) -> set[tuple[str, str]]:
    """Return (module, name) of what modules outside a package import of its modules."""
    paths = [path for name, path in _modules() if not f"{name}.".startswith(f"{package}.")]
    imports = (
        node
        for path in (*paths, *(REPO / "scripts").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}.")
    )
    return {(str(node.module), alias.name) for node in imports for alias in node.names}


@pytest.mark.parametrize(
    "name", [name for name, path in (*_modules(), *DOCS) if ">>> " in path.read_text("utf-8")]
)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs=NAMES)
    assert result.attempted
    assert not result.failed


def test_public_functions_have_examples() -> None:
    imported = _public_functions(KERNELS)
    placement = [f"{plugin.__name__}.{module}" for module in PLACEMENT]
    public = {
        f"{name}.{node.name}": ast.get_docstring(node) or ""
        for name, path in _modules()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
        if (name in placement and node.name[0] != "_") or (name, node.name) in imported
    }
    assert all(any(name.startswith(module) for name in public) for module in (KERNELS, *placement))
    assert not [name for name, text in public.items() if ">>> " not in text]
