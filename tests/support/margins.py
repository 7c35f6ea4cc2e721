"""List the assertions that nearly fail.

``pytest -p tests.support.margins --margins FILE tests/...``

Every comparison of floating-point numbers in an ``assert``, and with ``pytest.approx``, is
recorded with the test's name. FILE gets a line for each with a margin below 20 %, the smallest
first: margin, place, both sides. Each pytest process appends its own lines. The margin is the
distance to the limit as a share of the limit; of ``1 - limit`` for values that approach 1, such
as correlations; and of half the range between two limits. Whole numbers, exact equality and
limits of 0 have none, nor has a line with the
comment ``# no margin``: a bound that mathematics or the order of events sets.
"""

from __future__ import annotations

import ast
import itertools
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.assertion import rewrite

LEAST = 0.2
_NAME = "@margins"
_OPERATORS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
              ast.GtE: operator.ge, ast.Eq: operator.eq}  # fmt: skip
_worst: dict[tuple[str, str], tuple[float, str]] = {}
_running = ""


def margin(value: float, limit: float) -> float:
    """Return the distance of a value from its limit as a share of what the limit leaves."""
    if 0.5 <= limit < value <= 1:
        value, limit = 1 - value, 1 - limit
    return abs(value - limit) / abs(limit) if limit else np.inf


def _within(value: Any, expected: Any) -> Iterator[float]:
    """Yield the margins of a comparison with ``pytest.approx``."""
    if hasattr(expected, "tolerance"):
        room = expected.tolerance
        yield 1 - abs(value - expected.expected) / room if room else np.inf
    elif isinstance(expected.expected, dict):
        for key, inner in expected.expected.items():
            yield from _within(value[key], expected._approx_scalar(inner))
    else:
        for a, b in zip(np.ravel(value), np.ravel(expected.expected), strict=True):
            yield from _within(a, expected._approx_scalar(b))


def _is_approx(value: Any) -> bool:
    return type(value).__name__.startswith("Approx")


def _margins(values: tuple[Any, ...], kinds: tuple[Any, ...]) -> Iterator[float]:
    if operator.eq in kinds:
        if len(values) == 2 and any(map(_is_approx, values)):
            yield from _within(*sorted(values, key=_is_approx))
        return
    arrays = [np.asarray(value) for value in values]
    if not all(array.dtype.kind in "iuf" for array in arrays):
        return
    measured = arrays[1] if len(arrays) == 3 else arrays[0]
    if measured.dtype.kind != "f" or np.array_equal(measured, np.rint(measured)):
        return
    if len(arrays) == 3:
        low, value, high = (array.astype(float) for array in arrays)
        yield float(np.min(np.minimum(abs(value - low), abs(high - value)) / abs(high - low)) * 2)
        return
    for sides in itertools.pairwise(arrays):
        a, b = np.broadcast_arrays(*sides)
        yield from map(margin, a.ravel().astype(float), b.ravel().astype(float))


def compare(place: str, kinds: tuple[Any, ...], *values: Any) -> Any:
    """Return what the comparison returns, and keep its margin if it is this test's smallest."""
    parts = [kind(a, b) for kind, a, b in zip(kinds, values, values[1:], strict=False)]
    result = parts[0] if len(parts) == 1 else all(parts)
    if np.all(np.asarray(result, object)):
        smallest = min(_margins(values, kinds), default=np.inf)
        text = " | ".join(str(value).replace("\n", " ")[:60] for value in values)
        key = (_running, place)
        _worst[key] = min(_worst.get(key, (np.inf, "")), (float(smallest), text))
    return result


class _Comparisons(ast.NodeTransformer):
    """Replace comparisons inside of assertions by calls."""

    def __init__(self, path: Path) -> None:
        self.path, self.inside = path, False
        self.lines = path.read_text().splitlines()

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.inside = True
        node.test = self.visit(node.test)
        self.inside = False
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        bound = "# no margin" in self.lines[node.lineno - 1]
        if bound or not self.inside or not all(type(op) in _OPERATORS for op in node.ops):
            return node
        kinds: list[ast.expr] = [ast.Constant(_OPERATORS[type(op)].__name__) for op in node.ops]
        place = ast.Constant(f"{self.path.name}:{node.lineno}")
        call = ast.Call(ast.Name(_NAME, ast.Load()),
                        [place, ast.Tuple(kinds, ast.Load()), node.left, *node.comparators],
                        [])  # fmt: skip
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _by_name(place: str, names: tuple[str, ...], *values: Any) -> Any:
    return compare(place, tuple(getattr(operator, name) for name in names), *values)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", type=Path, required=True, help="file to append to")


def pytest_configure() -> None:
    """Transform test modules before pytest rewrites them; rewritten ones on disk do not count."""
    import builtins

    setattr(builtins, _NAME, _by_name)
    sys.dont_write_bytecode = True
    inner = rewrite.rewrite_asserts

    def outer(tree: ast.Module, source: bytes, path: str | None = None, config: Any = None) -> None:
        if Path(path or "").is_relative_to(Path(__file__).parents[1]):
            _Comparisons(Path(path or "")).visit(tree)
        inner(tree, source, path, config)

    for name, function in (("rewrite_asserts", outer), ("_read_pyc", lambda *args: None)):
        setattr(rewrite, name, function)


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _running
    _running = item.nodeid


def pytest_sessionfinish(session: pytest.Session) -> None:
    near = sorted((found, key) for key, found in _worst.items() if found[0] < LEAST)
    with session.config.getoption("--margins").open("a") as stream:
        for (share, text), (test, place) in near:
            stream.write(f"{share:7.2%}  {place}  {test}\n         {text}\n")
