"""Types of the configuration's values, and names like an unknown one."""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field


def _literal_path(path: str) -> str:
    """Refuse a path that a shell would expand."""
    if not path.strip() or not path.isprintable():
        raise ValueError("name a file or folder")
    if path.startswith("~") or "$" in path:
        raise ValueError("'~' and '$' are not expanded in a config file; write the whole path")
    return path


def _only_fields(path: str) -> str:
    if set(re.sub(r"\{(sample|cycle|channel)\}", "", path)) & set("{}"):
        raise ValueError("fields are {sample}, {cycle} and {channel}; write no other braces")
    return path


def _no_braces(path: str) -> str:
    if set(path) & set("{}"):
        raise ValueError("a folder of results cannot have braces in its name; rename it")
    return path


Auto = Literal["auto"]
PathText = Annotated[str, AfterValidator(_literal_path)]
FieldsPath = Annotated[PathText, AfterValidator(_only_fields)]
ResultsPath = Annotated[PathText, AfterValidator(_no_braces)]
Positive = Annotated[float, Field(gt=0)]


def suggestion(name: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return the most similar name as a question, else all names, or those to be ``listed``.

    >>> suggestion("stich", ["stitch", "edf"]), suggestion("x", ["stitch", "edf"])
    ("did you mean 'stitch'?", 'known are stitch, edf')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    shown = names if listed is None else listed
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(shown)}"
