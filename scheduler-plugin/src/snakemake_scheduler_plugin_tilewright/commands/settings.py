"""The settings of a profile, for commands that look at a cluster without a run."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from snakemake_interface_common.exceptions import WorkflowError

from ..errors import PlacementError
from ..executor import ExecutorSettings

_PREFIX = "tilewright-"


def settings_of(profile: Path | None) -> ExecutorSettings:
    """Return the settings of a profile, a folder or its file; the defaults without one.

    Raises
    ------
    PlacementError
        It cannot be read, or has a key that is none.
    """
    if profile is None:
        return ExecutorSettings()
    names = ("config.yaml", "profile.yaml")
    files = [profile / name for name in names] if profile.is_dir() else [profile]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        raise PlacementError(f"there is no profile {profile}; name its folder")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise PlacementError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    known = {one.name.replace("_", "-"): one for one in fields(ExecutorSettings)}
    values: dict[str, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        name = str(key).removeprefix(_PREFIX).replace("_", "-")
        if not str(key).startswith(_PREFIX):
            continue
        if name not in known:
            there = ", ".join(_PREFIX + one for one in known)
            raise PlacementError(f"{file}: '{key}' is no setting; there are {there}")
        try:
            values[known[name].name] = _TYPES[type(known[name].default)](value)
        except (TypeError, ValueError):
            raise PlacementError(f"{file}: '{key}' is {value!r}; give {known[name].type}") from None
    try:
        return ExecutorSettings(**values)
    except WorkflowError as error:
        raise PlacementError(f"{file}: {error}") from None


def _text(value: object) -> str:
    if not isinstance(value, str | int):
        raise TypeError
    return str(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


#: By the type of a setting, what reads its value.
_TYPES: dict[type, Callable[[Any], Any]] = {str: _text, float: float, bool: _flag}
