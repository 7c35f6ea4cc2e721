"""Snakefiles of rules whose jobs do nothing, and what the ledger says of a run."""

from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger


class Code(str):
    """An expression of a Snakefile, as it stands."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rule(name: str, keyword: str = "rule", /, **stated: object) -> str:
    """Return a rule whose jobs do nothing; what is no directive is one of its resources.

    ``resources`` are more of them, as they stand.
    """
    directives = ("output", "input", "log", "group", "threads", "retries")
    lines = [f"{key}: {stated.pop(key)!r}" for key in directives if key in stated]
    more = [str(stated.pop("resources"))] if "resources" in stated else []
    if resources := [f"{key}={value!r}" for key, value in stated.items()] + more:
        lines.append(f"resources: {', '.join(resources)}")
    return "\n    ".join([f"{keyword} {name}:", *lines, 'shell: "true"\n'])


def default_target(*inputs: str) -> str:
    """Return the rule that the others are made for; the executor gets no job of it."""
    wanted = ", ".join(map(repr, inputs))
    return f"rule all:\n    default_target: True\n    input: {wanted}\nlocalrules: all\n"


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of a name in the ledger of a workflow without a plan."""
    ledger = read_ledger(folder / ".snakemake/tilewright/ledger.jsonl")
    return [event for event in ledger if event["event"] == name]
