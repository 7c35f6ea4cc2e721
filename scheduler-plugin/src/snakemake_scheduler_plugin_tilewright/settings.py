"""The settings of a run on a cluster: options of Snakemake, or keys of a profile."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, create_model
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase

from .runtime.errors import PlacementError

_PREFIX = "tilewright_"


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text, "env_var": False, "required": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """Options of a run on a cluster: ``--tilewright-…``, or keys of a profile."""

    accounts: str = _setting(
        "", "The only accounts to use: names or patterns of the shell, separated by commas."
    )
    leave_out: str = _setting(
        "", "Accounts and QOS that are not used: names or patterns, separated by commas."
    )
    gpu_partitions: str = _setting(
        "", "The only partitions for GPU jobs, separated by commas; none uses no GPU."
    )
    cpu_partitions: str = _setting("", "The only partitions for CPU jobs, separated by commas.")
    cpu_share: float = _setting(0.85, "Share of an account's CPUs that CPU jobs may fill, 0 to 1.")
    poll_seconds: float = _setting(
        10.0, "Slurm's queue is asked so often: freed slots and ended jobs are seen as late."
    )
    reservation: str = _setting("", "The reservation in which all jobs run.")

    def __post_init__(self) -> None:
        if not 0 < self.cpu_share <= 1:
            raise WorkflowError(f"--tilewright-cpu-share is {self.cpu_share}; give 0 to 1")
        if self.poll_seconds <= 0:
            raise WorkflowError(f"--tilewright-poll-seconds is {self.poll_seconds}; give above 0")


def names_in(text: str) -> list[str]:
    """Return the names in a setting.

    >>> names_in("clive, maigan"), names_in("")
    (['clive', 'maigan'], [])
    """
    return [one.strip() for one in text.split(",") if one.strip()]


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
        given = {str(key).replace("-", "_"): value for key, value in content.items()}
        own = {key: value for key, value in given.items() if key.startswith(_PREFIX)}
        return ExecutorSettings(**dict(_PROFILE.model_validate(own)))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]).replace("_", "-")
        raise PlacementError(f"{file}: '{key}' is {first['input']!r}: {first['msg']}") from None
    except WorkflowError as error:
        raise PlacementError(f"{file}: {error}") from None
    except (OSError, AttributeError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise PlacementError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


_PROFILE = create_model(
    "Profile",
    __config__={
        "extra": "forbid",
        "coerce_numbers_to_str": True,
        "alias_generator": lambda name: _PREFIX + name,
    },
    **{one.name: (one.type, one.default) for one in fields(ExecutorSettings)},  # type: ignore[call-overload]
)
