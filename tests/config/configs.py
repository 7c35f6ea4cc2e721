"""Configurations of small experiments, right but for what a test changes."""

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.config.load import load_experiment
from tilewright.errors import ConfigError


def set_key(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *sections, last = key.split(".")
    place = config
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return config


def refused(
    config: dict[str, Any], read: Callable[[dict[str, Any]], object] = load_experiment
) -> ConfigError:
    """Return the error that reading ends in, a sentence of its arguments for each problem."""
    with pytest.raises(ConfigError) as caught:
        read(config)
    return caught.value
