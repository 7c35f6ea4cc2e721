"""Checks of values read from JSON files that may be damaged, and of a ledger's lines."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

ValueCheck = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any, most: float = 1e18) -> bool:
    """Return whether a value is a number of a size that something has."""
    return isinstance(value, int | float) and type(value) is not bool and -most <= value <= most


def is_time(value: Any) -> bool:
    """Return whether a value is a number of seconds, such as a clock of this age shows."""
    return is_number(value, 1e10)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0 on."""
    return is_number(value, 1e9) and isinstance(value, int) and value >= 0


def is_moment(value: Any) -> bool:
    """Return whether a value is a time as ISO 8601 writes it."""
    try:
        return is_time(datetime.fromisoformat(value).timestamp())
    except (TypeError, ValueError, OverflowError, OSError):
        return False


def by_name(check: ValueCheck) -> ValueCheck:
    """Return the check of an object's values."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def fits(entry: Any, checks: Mapping[str, ValueCheck], needed: Iterable[str] = ()) -> bool:
    """Return whether an entry is an object that has what is needed, and values that are such."""
    return (
        isinstance(entry, dict)
        and entry.keys() >= set(needed)
        and all(check(entry[key]) for key, check in checks.items() if key in entry)
    )


def _pool(value: Any) -> bool:
    one = isinstance(value, list) and len(value) == 3
    return one and is_text(value[0]) and is_text(value[1]) and is_count(value[2])


#: The values of a ledger's events that are read again.
EVENT: dict[str, ValueCheck] = {
    **dict.fromkeys(("time_s", "start_s", "end_s", "sent_s"), is_time),
    **dict.fromkeys(("event", "job", "rule", "pool", "account", "kind", "node", "cause"), is_text),
    **dict.fromkeys(("words", "reason", "next", "log", "sooner"), is_text),
    **dict.fromkeys(("ready", "members"), is_count),
    "kinds": lambda value: isinstance(value, list),
    "why": by_name(is_count),
    "pools": by_name(_pool),
}
