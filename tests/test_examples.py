"""Examples in docstrings run, and what other packages call of the kernels has one."""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from tests.conftest import REPO
from tilewright.kernels.backend import cpu_backend

ROOTS = (REPO / "src", REPO / "scheduler-plugin/src")
DOCS = [(f"docs.{path.stem}", path) for path in sorted((REPO / "docs").glob("*.py"))]
#: Packages whose functions have examples, if modules of other packages import them.
WITH_EXAMPLES = ("tilewright.kernels",)
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


@pytest.mark.parametrize("package", WITH_EXAMPLES)
def test_public_functions_have_examples(package: str) -> None:
    public = _public_functions(package)
    missing = [
        f"{name}.{node.name}"
        for name, path in _modules()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and (name, node.name) in public
        if ">>> " not in (ast.get_docstring(node) or "")
    ]
    assert public
    assert not missing
