"""The errors of placement; each message names the cause and what to do.

``snakemake_adapter.SetUpError`` is Snakemake's own way to print one of them without a traceback.
"""

from .words import printable_lines


class PlacementError(Exception):
    """A run cannot be placed, or a job can never run; or Snakemake lacks what placement needs."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class SlurmQueryError(PlacementError):
    """Slurm did not answer a question, or with an error."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(command, reason)
        self.command, self.reason = command, reason

    def __str__(self) -> str:
        return printable_lines(f"{self.command} did not answer: {' '.join(self.reason.split())}")


class UnreadableError(PlacementError, ValueError):
    """An answer of Slurm has a line that is no record, or none: as good as no answer."""

    def __init__(self, line: str, *lacks: str) -> None:
        start, no = line.strip()[:80], f" without {', '.join(lacks)}" if lacks else ""
        super().__init__(
            f"its answer holds no record in {start!r}{no}" if start else "its answer is empty"
        )
