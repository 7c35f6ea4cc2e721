"""Files that a command names: the configuration of an experiment, and the Snakefile."""

from __future__ import annotations

from pathlib import Path

from tilewright.config.experiment import Experiment, load_experiment, read_config
from tilewright.errors import ConfigError
from tilewright.installed import snakefile


def read_experiment(configfile: Path) -> Experiment:
    """Return the experiment of a config file.

    Raises
    ------
    ConfigError
        The file is absent, is not YAML, or its content is wrong.
    """
    return load_experiment(read_config(configfile))


def find_snakefile(given: Path | None) -> Path:
    """Return the Snakefile: the one given, that of the current folder, or the installed one.

    Raises
    ------
    ConfigError
        The one given is no file.
    """
    if given is not None and not given.is_file():
        raise ConfigError(
            f"there is no {given}; name a Snakefile with --snakefile, or leave it out"
        )
    here = [path for path in (Path("Snakefile"), Path("workflow/Snakefile")) if path.is_file()]
    return given or next(iter(here), snakefile())
