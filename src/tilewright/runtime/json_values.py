"""What values of JSON must be that a damage may have changed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

ValueCheck = Callable[[Any], bool]


def object_reader(
    checks: Mapping[str, ValueCheck], needed: Iterable[str]
) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns an object with these keys, of which each value passes.

    It raises ValueError for any other value of JSON.
    """

    def read(entry: Any) -> dict[str, Any]:
        if not isinstance(entry, dict) or not entry.keys() >= set(needed):
            raise ValueError(f"it has no {', '.join(needed)}")
        for key in checks.keys() & entry.keys():
            if not checks[key](entry[key]):
                raise ValueError(f"its {key} is {entry[key]!r}")
        return entry

    return read


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return whether a value is a number of a size that something has."""
    return isinstance(value, int | float) and type(value) is not bool and abs(value) <= 1e18
