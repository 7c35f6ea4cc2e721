"""Files that commands read: the configuration of an experiment, and the Snakefile."""

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
        The file is absent, is not YAML, or its content is invalid.
    """
    return load_experiment(read_config(configfile))


def find_snakefile(path: Path | None) -> Path:
    """Return ``path``, or else the Snakefile of the current folder, or the installed one.

    Raises
    ------
    ConfigError
        ``path`` is not a file.
    """
    if path is not None and not path.is_file():
        raise ConfigError(f"no Snakefile {path}; correct --snakefile, or remove it")
    local = [at for at in (Path("Snakefile"), Path("workflow/Snakefile")) if at.is_file()]
    return path or next(iter(local), snakefile())
