"""Loading of an experiment from its configuration and tables.

This is the only reader of the configuration dictionary. Problems are raised before the DAG is
built, in messages that name the key or file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from tilewright.config.config_file import read_config, with_places
from tilewright.config.consistency import check_experiment
from tilewright.config.experiment import Experiment
from tilewright.config.settings import Section, Settings
from tilewright.config.tables import collect_errors, read_markers, read_samples
from tilewright.errors import ConfigError
from tilewright.installed import shipped
from tilewright.runtime.text import printable, suggestion

#: Parts that pydantic adds to a key whose value has several types.
_VALUE_TYPE = re.compile(r"constrained-|literal\[|tuple\[")


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
            messages.setdefault(_key_of(problem), _message(problem))
        raise ConfigError(*messages.values()) from None
    channels, samples = collect_errors(
        lambda: read_markers(Path(settings.markers)),
        lambda: read_samples(Path(settings.samples)),
    )
    experiment = Experiment(settings, samples, channels, channels)
    return experiment if settings.cycles == "auto" else experiment.of_cycles(settings.cycles)


def _key_of(problem: Any) -> tuple[str, ...]:
    """Return the parts of the key of a pydantic problem, without types of values."""
    first, *rest = map(str, problem["loc"])
    return first, *(part for part in rest if not _VALUE_TYPE.match(part))


def _sections(section: type[Section]) -> dict[str, type[Section]]:
    """Return the sections in a section, by their keys."""
    known = Section.__subclasses__()
    kinds = {name: field.annotation for name, field in section.model_fields.items()}
    return {name: t for name, kind in kinds.items() for t in (kind, *get_args(kind)) if t in known}


def _similar_key(location: tuple[str, ...]) -> str:
    """Return which key may be meant by an unknown one: of its section, or of one of its name."""
    section: type[Section] = Settings
    for name in location[:-1]:  # that of a metric or a rule is no section
        section = _sections(section).get(name, section)
    names = list(section.model_fields)
    inner = _sections(Settings).items() if len(location) == 1 else ()
    dotted = [f"{name}.{key}" for name, part in inner for key in part.model_fields]
    return suggestion(location[-1], names + dotted, names)


def _message(problem: Any) -> str:
    """Return the message for one pydantic problem."""
    location, value = _key_of(problem), problem.get("input")
    key, where = ".".join(location), f"{shipped('config') / 'README.md'} describes it"
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{key}'; {_similar_key(location)}"
    if problem["type"] == "missing":
        return f"the key '{key}' is missing; {where}"
    if value is None:
        return f"'{key}' is not filled in; {where}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"'{key}' is {printable(repr(value), 200)}: {message}"
