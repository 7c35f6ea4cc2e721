"""Types of the configuration's values: ranges with units, paths, tokens and names."""

import difflib
import os.path
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

#: Likely wrong units of a number: the factor to the right unit, and the unit.
_SCALES = {
    "µm": ((1e-3, "nm"), (1e3, "mm"), (1e6, "m")),
    "nm": ((1e3, "µm"), (1e-3, "pm"), (1e9, "m")),
}


class Within(NamedTuple):
    """A range of plausible values; its message suggests the unit that an outlier may be in.

    Examples
    --------
    >>> Within(0.01, 20, "µm").message(377.0)
    'it must be between 0.01 and 20 µm; is this 377 nm? then write 0.377'
    >>> Within(200, 2000, "nm").message(0.461)
    'it must be between 200 and 2000 nm; is this 0.461 µm? then write 461'
    >>> Within(0.01, 20, "µm").message(0.3) is None
    True
    """

    low: float
    high: float
    """Least and greatest value."""
    unit: str
    """Of the key: µm or nm."""

    def message(self, value: float) -> str | None:
        """Return the message for an implausible value, None for a plausible one."""
        if self.low <= value <= self.high:
            return None
        text = f"it must be between {self.low:g} and {self.high:g} {self.unit}"
        for factor, unit in _SCALES[self.unit]:
            if self.low <= value * factor <= self.high:
                return f"{text}; is this {value:g} {unit}? then write {value * factor:g}"
        return text

    @property
    def schema(self) -> dict[str, Any]:
        """The range as JSON Schema."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def check(self, value: float) -> float:
        """Return a plausible value, raise ValueError for others."""
        message = self.message(value)
        if message:
            raise ValueError(message)
        return value


#: Pixels of light microscopes in the specimen: 0.03 µm (100 x, small camera) to 13 µm (1 x).
PIXEL_UM = Within(0.01, 20, "µm")
Z_STEP_UM = Within(0.01, 100, "µm")
#: Peaks of dyes from Hoechst (450 nm) to the near infrared.
EMISSION_NM = Within(200, 2000, "nm")


def _literal_path(path: str) -> str:
    """Refuse a path that a shell would expand."""
    if not path.strip() or not path.isprintable():
        raise ValueError("name a file or folder")
    if path.startswith("~") or "$" in path:
        expanded = os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111
        hint = f"write {expanded}" if expanded != path else "write the whole path"
        raise ValueError(f"'~' and '$' are not expanded in a config file; {hint}")
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


def suggestion(name: str, known: Iterable[str], what: str) -> str:
    """Return the most similar name as a question, else all names.

    >>> suggestion("stich", ["stitch", "edf"], "rules"), suggestion("x", ["stitch"], "rules")
    ("did you mean 'stitch'?", 'rules: stitch')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"{what}: {', '.join(names)}"
