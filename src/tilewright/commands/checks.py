"""One line of ``tilewright doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """What was looked at and how it is.

    Attributes
    ----------
    about : str
        One or two words.
    state : {"ok", "warning", "problem"}
        A problem makes a run fail.
    text : str
        What was found.
    mend : str
        What to do about it; empty where it is well.
    """

    about: str
    state: Literal["ok", "warning", "problem"]
    text: str
    mend: str = ""


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "job"), count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def ok(about: str, text: str) -> Check:
    """Return a line about what is well."""
    return Check(about, "ok", text)


def warning(about: str, text: str, mend: str) -> Check:
    """Return a line about what may go wrong."""
    return Check(about, "warning", text, mend)


def said_by(about: str, error: Exception, mend: str, mark: str = "; ") -> Check:
    """Return a problem in an error's words, which end with the mend after the last ``mark``.

    Parameters
    ----------
    about : str
    error : Exception
    mend : str
        What to do where the error does not say it.
    mark : str
        What stands between cause and mend.
    """
    text, found, own = str(error).rpartition(mark)
    return problem(about, text if found else own, own if found else mend)


def problem(about: str, text: str, mend: str) -> Check:
    """Return a line about what makes a run fail."""
    return Check(about, "problem", text, mend)
