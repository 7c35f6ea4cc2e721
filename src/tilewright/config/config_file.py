"""Config files: reading them as dictionaries, and errors with line numbers."""

from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright import SetUpError, load_yaml
from tilewright.errors import ConfigError
from tilewright.io.text_file import read_text

#: A configuration is a few kB.
_MOST_MB = 1


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
