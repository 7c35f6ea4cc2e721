"""What half and twice of each tuned constant cost, on made scenes with truth.

``python -m benchmarks.constants KIND [--only NAME …] [--scenes S …] [--peer-python PATH]
[--work FOLDER]`` prints rows of CSV: the scores as they are, then for each constant of
``CONSTANTS`` of the kind's module those at half and at twice its value, as in
``docs/constants-KIND-scores.csv``. PATH is the interpreter that makes scenes where that needs other
packages, FOLDER keeps what is made once. Each row is of a process of its own: there the constant is
multiplied right behind its definition, before any other module imports it, so that all that is
derived from it follows. A value that the code refuses leaves the kind of error in its row.

The module of a kind has ``CONSTANTS``, a list of (module, name), and ``evaluate()``, which returns
numbers by name. It finds the options in the environment: ``SCENES``, ``PEER_PYTHON``, ``WORK``.
"""

import argparse
import ast
import csv
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Modules with the constants and the scores of a kind; imported when asked for.
KINDS = {"edf": "benchmarks.constants_edf", "positions": "benchmarks.constants_positions"}


def main() -> None:
    """Print the rows, or in a process of its own one evaluation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--only", nargs="*", default=[], help="constants or modules")
    parser.add_argument("--scenes", nargs="*", default=[])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--work", help="folder that keeps scenes")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        module, name, factor = options.one
        scale(module, name, float(factor))
        print(json.dumps(importlib.import_module(KINDS[options.kind]).evaluate()))
        return
    constants = importlib.import_module(KINDS[options.kind]).CONSTANTS
    wanted = {*options.only}
    chosen = [c for c in constants if not wanted or wanted & {c[1], c[0].rpartition(".")[2]}]
    with tempfile.TemporaryDirectory() as temporary:
        environment = os.environ | {
            "SCENES": " ".join(options.scenes),
            "PEER_PYTHON": options.peer_python,
            "WORK": options.work or temporary,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        module, name = chosen[0]
        as_is = _scores(options.kind, module, name, 1.0, environment)
        rows = csv.DictWriter(sys.stdout, ["constant", "times", *as_is, "error"])
        rows.writeheader()
        rows.writerow({"constant": "", "times": 1} | as_is)
        for module, name in chosen:
            constant = f"{module.rpartition('.')[2]}.{name}"
            for factor in (0.5, 2.0):
                scores = _scores(options.kind, module, name, factor, environment)
                rows.writerow({"constant": constant, "times": factor} | scores)
                sys.stdout.flush()


def _scores(
    kind: str, module: str, name: str, factor: float, environment: dict[str, str]
) -> dict[str, str]:
    """Return the scores of one evaluation, or its error."""
    command = [sys.executable, "-m", "benchmarks.constants", kind, "--one", module, name]
    answer = subprocess.run(
        [*command, str(factor)], capture_output=True, text=True, check=False, env=environment
    )
    if answer.returncode:
        # its kind alone: the message may name a temporary folder
        kinds = re.findall(r"^([\w.]+Error)\b", answer.stderr, re.M)
        return {"error": kinds[-1] if kinds else "killed"}
    scores = json.loads(answer.stdout.splitlines()[-1])
    return {name: f"{value:.5g}" for name, value in scores.items()}


def scale(module: str, name: str, factor: float) -> None:
    """Import a module with one of its constants multiplied; integers stay integers."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"there is no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    at = next(i for i, node in enumerate(tree.body) if name in _targets(node))
    change = f"from benchmarks.constants import times as _times; {name} = _times({name}, {factor})"
    tree.body[at + 1 : at + 1] = ast.parse(change).body
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    exec(compile(tree, spec.origin, "exec"), vars(loaded))
    parent, _, leaf = module.rpartition(".")
    setattr(sys.modules[parent], leaf, loaded)


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that an assignment binds."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = [part for target in targets if target is not None for part in ast.walk(target)]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def times(value: Any, factor: float) -> Any:
    """Return a number, array or tuple of numbers times a factor.

    >>> times((1, 0.5), 2.0), times(3, 0.5), times(5, 2.0)
    ((2, 1.0), 2, 10)
    """
    if isinstance(value, tuple):
        return type(value)(times(part, factor) for part in value)
    if isinstance(value, int):
        return type(value)(max(round(value * factor), 1))
    return value * factor


if __name__ == "__main__":
    main()
