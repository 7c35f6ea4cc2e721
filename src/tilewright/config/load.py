"""Loading of an experiment from its configuration and tables.

This is the only reader of the configuration dictionary. Problems are raised before the DAG is
built, in messages that name the key or file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tilewright.config.config_file import read_config, with_places
from tilewright.config.consistency import check_experiment, check_keys
from tilewright.config.experiment import Experiment
from tilewright.config.settings import Settings
from tilewright.config.tables import (
    collect_errors,
    key_of,
    problem_message,
    read_markers,
    read_samples,
)
from tilewright.errors import ConfigError


def read_experiment(configfile: Path) -> Experiment:
    """Return the experiment of a config file.

    Raises
    ------
    ConfigError
        As :func:`read_config`, or :func:`load_experiment`.
    """
    return load_experiment(with_places(read_config(configfile), [configfile]))


def load_experiment(config: Mapping[str, Any]) -> Experiment:
    """Read a configuration and its tables, and check them for contradictions.

    Raises
    ------
    ConfigError
        As :func:`parse_experiment`, or :func:`check_experiment`.
    """
    experiment = parse_experiment(config)
    check_experiment(experiment)
    return experiment


def parse_experiment(config: Mapping[str, Any]) -> Experiment:
    """Validate a configuration and read its tables.

    Parameters
    ----------
    config : mapping
        The dictionary that Snakemake made of the config file and ``--config``.

    Raises
    ------
    ConfigError
        A key is unknown, missing or out of range, or a table is wrong.
    """
    if not config:
        raise ConfigError(
            "there is no configuration; add --configfile with the file that `tilewright init` "
            "wrote, after the targets"
        )
    try:
        settings = Settings.model_validate(dict(config))
    except ValidationError as error:
        messages = dict[tuple[str, ...], str]()
        for problem in error.errors():  # of a key with two types one for each
            messages.setdefault(key_of(problem), problem_message(problem))
        said = [*messages.values()]
        if ("markers",) not in messages:
            try:
                read_markers(Path(config["markers"]))
            except ConfigError as of_table:
                said += of_table.args
        raise ConfigError(*said) from None
    try:
        channels, samples = collect_errors(
            lambda: read_markers(Path(settings.markers)),
            lambda: read_samples(Path(settings.samples)),
        )
    except ConfigError as error:
        raise ConfigError(*error.args, *check_keys(settings)) from None
    experiment = Experiment(settings, samples, channels, channels)
    return experiment if settings.cycles == "auto" else experiment.of_cycles(settings.cycles)
