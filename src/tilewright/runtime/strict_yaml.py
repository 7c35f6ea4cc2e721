"""YAML that people wrote: each key once, and the line of what is wrong."""

import itertools
from typing import Any

import yaml
from yaml.error import MarkedYAMLError

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
