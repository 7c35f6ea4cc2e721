"""Numbers in texts that microscopes and spreadsheets write."""

import re
from collections.abc import Iterable

#: No microscope's number is larger, and none that is no 0 is smaller than one of so many.
LARGEST = 1e15


def finite(text: str | None, unit: str = "") -> float | None:
    """Return the number that a text is, with or without its unit; None where it is no number.

    >>> finite("-2.5E-07"), finite("461 nm", "nm"), finite("5 mm"), finite("NaN"), finite("1e300")
    (-2.5e-07, 461.0, None, None, None)
    """
    try:
        value = float((text or "").strip().removesuffix(unit))
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None


def positive(text: str | None, unit: str = "", *, scale: float = 1.0) -> float | None:
    """Return ``scale`` times a number above 0; None for others, which mean "not known".

    >>> positive("0.05", scale=1e3), positive("461 nm", "nm"), positive("0"), positive("-1")
    (50.0, 461.0, None, None)
    """
    value = finite(text, unit)
    return round(value * scale, 9) if value is not None and value > 1 / LARGEST else None


def only(values: Iterable[float | None]) -> float | None:
    """Return the one number that all known ones are; None where they differ or none is known.

    >>> only([None, 0.75, 0.75]), only([0.75, 1.4]), only([None])
    (0.75, None, None)
    """
    known = set(values) - {None}
    return known.pop() if len(known) == 1 else None


def whole(text: object, most: int, least: int = 0) -> int:
    """Return the whole number that a text is; ValueError where it is none of that range.

    >>> whole("007", 10), whole(3, 10)
    (7, 3)
    """
    number = int(str(text)) if re.fullmatch("[0-9]{1,18}", str(text)) else -1
    if not least <= number <= most:
        raise ValueError(f"{str(text)[:40]!r} is no whole number from {least} to {most}")
    return number
