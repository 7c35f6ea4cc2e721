"""Config files: reading them as dictionaries, and errors with line numbers."""

import itertools
import os.path
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError

from snakemake_scheduler_plugin_tilewright import SetUpError
from tilewright.errors import ConfigError
from tilewright.io.text_file import read_text
from tilewright.runtime.text import printable

#: Brackets within each other: PyYAML takes seconds for thousands of them, and a configuration has
#: three.
_DEEPEST = 100


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML itself takes the last."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the line of a value that is written like a date or number and is none."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError):
            reason = f"a value that is no {node.tag.rpartition(':')[2]}; correct or quote it"
            raise MarkedYAMLError(problem=reason, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a duplicate key."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = printable(key.value, 100), key.start_mark.line + 1
            if name in lines:
                reason = f"duplicate key '{name}' (lines {lines[name]} and {line}); remove one"
                raise yaml.YAMLError(reason)
            lines[name] = line
        return super().construct_mapping(node, deep)


def load_yaml(text: str, source: object) -> Any:
    r"""Return what a text says.

    Raises
    ------
    ValueError
        It is not YAML, or has a duplicate key; the message names the source and the line.

    Examples
    --------
    >>> load_yaml("a: [1, 2\nb: 3", "config.yaml")
    Traceback (most recent call last):
    ValueError: config.yaml is not YAML: line 2, column 2: expected ',' or ']', but got ':'
    """
    try:
        depths = itertools.accumulate((c in "[{") - (c in "]}") for c in text)
        if max(depths, default=0) > _DEEPEST:
            raise RecursionError
        return yaml.load(text, _StrictLoader)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        why = f"is not YAML: {where}{printable(error.problem)}"
    except RecursionError:
        why = "is nested too deeply"
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:  # a duplicate key, an escape
        why = f"is not YAML: {' '.join(str(error).split())}"
    raise ValueError(f"{source} {why}")


#: A configuration is a few kB.
_MOST_MB = 1
#: Keys of files and folders, besides those that end with ``_file``.
_PLACES = ("samples", "tiles", "markers", "results")


def read_config(configfile: Path) -> dict[str, Any]:
    r"""Return the keys of a config file.

    Raises
    ------
    ConfigError
        The file cannot be read, is not YAML, has no keys or a duplicate one.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "config.yaml")
    >>> _ = path.write_text("samples: samples.tsv\nmarkers: markers.csv\n")
    >>> read_config(path)
    {'samples': 'samples.tsv', 'markers': 'markers.csv'}
    """
    text = read_text(configfile, _MOST_MB, ConfigError, utf16=False)
    try:
        config = load_yaml(text, configfile)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(config, dict):
        raise ConfigError(f"{configfile} holds no keys; `tilewright init` writes such a file")
    return config


def with_places(config: Mapping[str, Any], configfiles: Iterable[str | Path]) -> Mapping[str, Any]:
    """Return a configuration whose relative paths are right in the working directory.

    They are relative to the folder of the first config file that has the samples table, as
    ``tilewright init`` writes them, else to the working directory. There nothing is changed: the
    names of results stay as they are written.
    """
    samples = str(config.get("samples"))
    for file in configfiles:
        folder = Path(file).resolve().parent
        # Path.is_file raises for names that are too long.
        if os.path.isfile(folder / samples) and not os.path.isabs(samples):  # noqa: PTH113, PTH117
            here = folder == Path.cwd()
            return config if here else _below(folder, {"results": "results", **config})
    return config


def _below(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with their paths, also of sections, below a folder."""
    return {
        key: _below(folder, value)
        if isinstance(value, dict)
        else str(folder / value)
        if isinstance(value, str) and (key in _PLACES or key.endswith("_file"))
        else value
        for key, value in values.items()
    }


def check_config_file(configfile: str) -> str:
    """Return the path of a config file after checking its syntax; Snakemake's error has no line.

    Raises
    ------
    SetUpError
        The file exists and cannot be read.
    """
    try:
        if Path(configfile).exists():
            read_config(Path(configfile))
    except ConfigError as error:
        raise SetUpError(str(error)) from None
    return configfile
