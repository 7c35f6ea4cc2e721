"""Numbers in words."""

from __future__ import annotations


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    >>> count(1, "job"), count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"
