"""The errors of placement; each message names the cause and what to do.

::

    PlacementError             a run cannot be placed, or a job can never run
    ├── SiteError              the site file
    ├── SurveyError            the accounts are not known
    ├── SnakemakeError         Snakemake lacks something that placement needs
    └── DagError               Snakemake cannot say what would run

``snakemake_command.SetUpError`` is Snakemake's own way to print one of them without a traceback.
"""

from __future__ import annotations


class PlacementError(Exception):
    """A run cannot be placed, or a job can never run."""


class SiteError(PlacementError, ValueError):
    """A site file cannot be used; the message names the file, the key and the fix."""


class SurveyError(PlacementError):
    """Nothing is known of the accounts; the message says what did not answer."""


class SnakemakeError(PlacementError):
    """Snakemake lacks something that placement needs; the message names it and the fix."""


class DagError(PlacementError):
    """Snakemake cannot say what would run; the message is its own."""
