"""Configurations of small experiments, right but for what a test changes."""

from __future__ import annotations

from typing import Any


def set_key(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *sections, last = key.split(".")
    place = config
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return config
