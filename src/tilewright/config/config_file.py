"""Config files: reading them as dictionaries, and errors with line numbers."""

from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError

from snakemake_scheduler_plugin_tilewright import SetUpError
from tilewright.errors import ConfigError
from tilewright.io.text_file import read_text
from tilewright.runtime.text import yaml_problem

#: A configuration is a few kB; Python writes no number of more than 4,300 digits.
_MOST_MB, _MOST_ALIASES, _LONGEST_VALUE = 1, 30, 3000


class _StrictLoader(yaml.SafeLoader):
    """YAML of plain keys, each once: of duplicate ones YAML itself takes the last."""

    _aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases of aliases, which stand for a billion values."""
        self._aliases += self.check_event(yaml.AliasEvent)
        if self._aliases > _MOST_ALIASES:
            raise yaml.YAMLError(f"over {_MOST_ALIASES} aliases; write values out")
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the line of a value that is no date or number, though it looks like one."""
        try:
            if isinstance(node, yaml.ScalarNode) and len(node.value) > _LONGEST_VALUE:
                raise OverflowError(f"over {_LONGEST_VALUE} characters")
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            said = f"a value that cannot be read ({error}); correct or quote it"
            raise MarkedYAMLError(problem=said, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a duplicate key."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                said = "a list or mapping as a key; write a word"
                raise MarkedYAMLError(problem=said, problem_mark=key.start_mark)
            if key.value in lines:
                raise ConfigError(
                    f"duplicate key '{key.value}' (lines {lines[key.value]} and {line}); remove one"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


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
        config = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{configfile} is not YAML: {yaml_problem(error)}") from None
    except RecursionError:
        raise ConfigError(f"{configfile} is nested too deeply for a configuration") from None
    except (ValueError, OverflowError) as error:  # of a duplicate key, or an escape
        raise ConfigError(f"{configfile}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{configfile} holds no keys; `tilewright init` writes such a file")
    return config


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
