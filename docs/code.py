"""Tables of the code itself: folders, benchmarks, tests on Slurm, and the files of a run."""

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from docs.markdown import table
from snakemake_scheduler_plugin_tilewright.slurm.reasons import NOT_STARTED, Obstacle, why_pending
from tilewright.config.layout import Layout
from tilewright.io.results.positions import Edges, Positions

REPOSITORY = Path(__file__).parent.parent
_PACKAGES = (
    "src/tilewright",
    "scheduler-plugin/src/snakemake_scheduler_plugin_tilewright",
)


def _first_line(path: Path) -> str:
    """Return the first line of the docstring of a module."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("``", "`")


def folders() -> str:
    """Return the table of the folders of both packages, and what lives there."""
    found = [p for top in _PACKAGES for p in sorted((REPOSITORY / top).rglob("__init__.py"))]
    rows = [
        (f"`{path.parent.relative_to(REPOSITORY)}/`", _first_line(path))
        for path in found
        if _first_line(path)
    ]
    return table(("Folder", "Holds"), *rows)


def benchmarks() -> str:
    """Return the table of the commands that measure."""
    rows = []
    folder = REPOSITORY / "benchmarks"
    for path in [*folder.glob("*.py"), *folder.glob("*/__main__.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.parent.name if path.stem == "__main__" else path.stem
        if any(isinstance(n, ast.FunctionDef) and n.name == "main" for n in tree.body):
            rows.append((f"`python -m benchmarks.{name}`", _first_line(path)))
    return table(("Command", "Measures"), *sorted(rows))


def on_slurm() -> str:
    """Return the table of the tests on a private Slurm."""
    paths = sorted((REPOSITORY / "tests/on_slurm").glob("test_*.py"))
    rows = [(f"`{path.relative_to(REPOSITORY)}`", _first_line(path)) for path in paths]
    return table(("Tests", "What is tried"), *rows)


#: Reasons of squeue, as an example of each meaning.
_REASONS = (
    "None", "Priority", "Resources", "BeginTime", "Prolog", "NonZeroExitCode",
    "QOSGrpCpuLimit", "AssocGrpCPUMinutesLimit",
    "ReqNodeNotAvail", "PartitionDown",
    "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig", "PartitionTimeLimit",
    "QOSMaxCpuPerJobLimit", "ReservationDeleted",
    "JobHeldUser", "JobHeldAdmin", "Dependency", "Licenses", "JobArrayTaskLimit",
    "launch_failed_requeued_held", "any other",
)  # fmt: skip
#: What placement does about a pending job, by what keeps it from starting.
_OBSTACLES: Mapping[Obstacle, str] = {
    "order": "it waits; after 60 s it may go elsewhere",
    "limit": "the place is full; after 5 s it may go to another one",
    "nodes": "the place is closed for a while; it may go to another one at once",
    "invalid": "it is cancelled and goes elsewhere, never back",
    "held": "it waits, and the terminal says why",
    "unknown": "the place is full; after 5 s it may go to another one",
}


def reasons_of_slurm() -> str:
    """Return the table of Slurm's reasons: what they mean, and what placement does."""
    found: dict[tuple[str, str], list[str]] = {}
    for reason in _REASONS:
        waiting = why_pending(reason)
        then = _OBSTACLES[waiting.obstacle]
        if waiting.words == NOT_STARTED:
            then = _OBSTACLES["invalid"]
        found.setdefault((waiting.words, then), []).append(f"`{reason}`")
    rows = [
        (", ".join(names).replace("`any other`", "any other"), words, then)
        for (words, then), names in found.items()
    ]
    return table(("Reason", "What it means", "What placement does"), *rows)


def files() -> str:
    """Return the table of the files of a run, from the comments of the layout."""
    layout = Layout("results")
    comments = re.findall(r"#: (.+)\n\s+self\.(\w+) = ", inspect.getsource(Layout))
    rows = [
        (f"`{getattr(layout, name)}`".replace("results/", "", 1), text) for text, name in comments
    ]
    return table(("Below the results folder", "What it is"), *rows)


_ATTRIBUTE = re.compile(r"^(\w[\w, ]*) : .*\n((?:    .*\n?)*)", re.MULTILINE)


def columns(*kinds: type) -> list[tuple[str, str]]:
    """Return the fields of dataclasses and what they are, by their docstrings."""
    return [
        (", ".join(f"`{name}`" for name in names.split(", ")), " ".join(text.split()))
        for kind in kinds
        for names, text in _ATTRIBUTE.findall(inspect.getdoc(kind) or "")
    ]


def tables_of_positions() -> str:
    """Return the columns of the tables of tile positions."""
    files = {"positions.csv": Positions, "edges.csv": Edges}
    rows = [(f"`{file}`", *row) for file, kind in files.items() for row in columns(kind)]
    return table(("File", "Columns", "What they are"), *rows)
