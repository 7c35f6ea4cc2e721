"""Config files: reading them as dictionaries, and errors with line numbers."""

from pathlib import Path
from typing import Any

import yaml

from snakemake_scheduler_plugin_tilewright import SetUpError
from tilewright.errors import ConfigError
from tilewright.runtime.text import yaml_problem


class _StrictLoader(yaml.SafeLoader):
    """YAML without duplicate keys, of which YAML itself takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a duplicate key."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ConfigError(
                    f"duplicate key '{key.value}' (lines {lines[key.value]} and {line}); remove one"
                )
            if isinstance(key, yaml.ScalarNode):
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
    try:
        config = yaml.load(configfile.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{configfile} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{configfile} is not UTF-8; save it with that encoding") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{configfile} is not YAML: {yaml_problem(error)}") from None
    except RecursionError:
        raise ConfigError(f"{configfile} is nested too deeply for a configuration") from None
    except ConfigError as error:
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
