"""Where the workflow of this installation lies, and the files that ``tilewright init`` copies."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
_IN_WHEEL = _PACKAGE / "workflow"


def snakefile() -> Path:
    """Return the workflow's Snakefile: inside the installed package, or the checkout's."""
    inside = _IN_WHEEL / "Snakefile"
    return inside if inside.is_file() else _PACKAGE.parents[1] / "workflow" / "Snakefile"


def shipped(name: str) -> Path:
    """Return what comes with the workflow: the folder ``profiles`` or ``config``."""
    return (_IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parents[1]) / name
