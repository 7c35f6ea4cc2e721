"""Numbers in words."""

from __future__ import annotations


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    >>> count(1, "job"), count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def count_jobs(number: int, members: int) -> str:
    """Return a number of jobs as they are sent: a group of Snakemake is one.

    Parameters
    ----------
    number : int
    members : int
        How many jobs of Snakemake they are.

    Examples
    --------
    >>> count_jobs(3, 3), count_jobs(2, 5)
    ('3 jobs', "2 jobs (5 of Snakemake's, some in groups)")
    """
    grouped = f" ({members} of Snakemake's, some in groups)" if members != number else ""
    return f"{count(number, 'job')}{grouped}"
