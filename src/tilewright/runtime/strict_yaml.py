"""YAML that people wrote: plain keys, each once, and no more than a person writes."""

from typing import Any

import yaml
from yaml.error import MarkedYAMLError

from tilewright.runtime.text import printable

#: Such a text is a few kB; Python writes no number of more than 4,300 digits.
MOST_B, _MOST_ALIASES, _MOST_LEVELS, _LONGEST_VALUE = 2**20, 30, 30, 3000
#: What values cause that are not what their tag, or their look, says.
VALUE_ERRORS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML itself takes the last."""

    _aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases of aliases, which stand for a billion values."""
        self._aliases += self.check_event(yaml.AliasEvent)
        if self._aliases > _MOST_ALIASES:
            raise yaml.YAMLError(f"over {_MOST_ALIASES} aliases; write values out")
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Refuse ``[[[[``, of which each takes as long as there are."""
        if self.flow_level > _MOST_LEVELS:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the line of a value that is no date or number, though it looks like one."""
        try:
            if isinstance(node, yaml.ScalarNode) and len(node.value) > _LONGEST_VALUE:
                raise OverflowError(f"over {_LONGEST_VALUE} characters")
            return super().construct_object(node, deep)
        except VALUE_ERRORS as error:
            tells = isinstance(error, ValueError | ArithmeticError)
            why = error if tells else f"no {node.tag.rpartition(':')[2]}"
            said = f"a value that cannot be read ({why}); correct or quote it"
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
                name, before = printable(key.value, 100), lines[key.value]
                said = f"duplicate key '{name}' (lines {before} and {line}); remove one"
                raise yaml.YAMLError(said)
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def load_yaml(text: str, source: object) -> Any:
    r"""Return what a text says.

    Raises
    ------
    ValueError
        It is not YAML, or has what no person writes; the message names the source and the line.

    Examples
    --------
    >>> load_yaml("a: [1, 2\nb: 3", "config.yaml")
    Traceback (most recent call last):
    ValueError: config.yaml is not YAML: line 2, column 2: expected ',' or ']', but got ':'
    """
    try:
        if len(text) > MOST_B:
            raise yaml.YAMLError(f"over {MOST_B} characters")
        return yaml.load(text, _StrictLoader)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        why = f"is not YAML: {where}{printable(error.problem)}"
    except RecursionError:
        why = "is nested too deeply"
    except (yaml.YAMLError, *VALUE_ERRORS) as error:  # of a duplicate key, or an escape
        why = f"is not YAML: {' '.join(str(error).split())}"
    raise ValueError(f"{source} {why}")
