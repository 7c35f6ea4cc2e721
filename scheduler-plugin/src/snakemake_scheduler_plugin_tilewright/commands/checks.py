"""One line of what doctor finds."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from rich.text import Text

from ..runtime.words import count as count
from ..runtime.words import printable


@dataclass(frozen=True)
class Check:
    """What was looked at and how it is.

    Attributes
    ----------
    state : {"ok", "warning", "problem"}
        A problem makes a run fail.
    fix : str
        What to do about it; empty where it is well.
    """

    about: str
    state: Literal["ok", "warning", "problem"]
    text: str
    fix: str = ""


def plain(words: object, style: str = "") -> Text:
    """Return words of others as a line for the terminal, in which nothing is markup."""
    return Text(printable(words), style)


def ok(about: str, text: str) -> Check:
    """Return a line about what is well."""
    return Check(about, "ok", text)


def warning(about: str, text: str, fix: str) -> Check:
    """Return a line about what may go wrong."""
    return Check(about, "warning", text, fix)


def problem_from(about: str, error: Exception | str, fix: str) -> Check:
    """Return a problem in an error's words, which end with the fix after the last semicolon.

    Parameters
    ----------
    fix : str
        What to do where the error does not say it.
    """
    text, found, own = str(error).rpartition("; ")
    return problem(about, text if found else own, own if found else fix)


def problem(about: str, text: str, fix: str) -> Check:
    """Return a line about what makes a run fail."""
    return Check(about, "problem", text, fix)


def version_of(*packages: str) -> str:
    """Return the version of the first package that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "(version not known)"
