"""Write the tables of the documentation that say what the code says: ``make docs``.

A page holds the line ``<!-- NAME: written by make docs -->``, and the line ``<!-- end of NAME -->``
below it; what is between is replaced. A test fails where a page differs.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from docs import code, constants, tried
from docs.keys import TOP, literal, rows, sections
from docs.markdown import table
from docs.reason_pictures import PICTURES
from snakemake_scheduler_plugin_tilewright import cli as placement
from snakemake_scheduler_plugin_tilewright.settings import ExecutorSettings
from tilewright import cli
from tilewright.config.rules import STAGES
from tilewright.config.settings import Settings
from tilewright.quality.results import METRICS, REASONS, Metric

REPOSITORY = Path(__file__).parent.parent


def limit(metric: Metric, value: float | None) -> str:
    """Return where a number turns, with the side on which it is bad."""
    if value is None:
        return "never"
    unit = " px" if metric.unit == "px" else ""
    return f"{metric.threshold.direction} {value:g}{unit}"


def metrics() -> str:
    """Return the table of all metrics, in the order of the stages that measure them."""
    order = list(STAGES)
    named = sorted(METRICS.items(), key=lambda item: order.index(item[1].stages[0]))
    rows = [
        (
            f"`{name}`",
            metric.what,
            limit(metric, metric.threshold.warn),
            limit(metric, metric.threshold.fail),
            f"[`{metric.reason}`](warnings.md#{metric.reason})",
            ", ".join(f"`{stage}`" for stage in metric.stages),
        )
        for name, metric in named
    ]
    return table(("Metric", "What it is", "Warn", "Fail", "Reason", "Stage"), *rows)


#: What the stages are called in headings.
_STAGE_TITLES = {
    "illumination": "Illumination",
    "tile_positions": "Tile positions",
    "stitch": "Mosaics",
    "deconvolve": "Deconvolution",
    "edf": "In-focus planes",
    "register": "Registration",
    "subtract": "Background subtraction",
}


def _sentence(name: str, metric: Metric) -> str:
    """Return the sentences on a number that can give a reason."""
    stages = ", ".join(f"`{stage}`" for stage in metric.stages)
    limits = {"warns": metric.threshold.warn, "fails": metric.threshold.fail}
    turns = [f"{verb} {limit(metric, at)}" for verb, at in limits.items() if at is not None]
    if metric.threshold.warn == metric.threshold.fail:
        turns = turns[1:]
    bad = metric.bad[0].upper() + metric.bad[1:]
    return f"- **{metric.title}** (`{name}`, in {stages}): {', '.join(turns)}. {bad}."


def _picture(reason: str) -> list[str]:
    """Return the picture of a reason and what it shows; nothing where there is none."""
    known = json.loads(
        (REPOSITORY / "docs/images/reasons/sentences.json").read_text(encoding="utf-8")
    )
    if reason not in known:
        return []
    first, second = ("Above", "Below") if PICTURES[reason].below else ("Left", "Right")
    damage, sentence = known[reason]["damage"], known[reason]["sentence"]
    number = re.split(r", (?:above|below) ", sentence)[0].removesuffix(".")
    number = re.sub(r" \([^)]*\)$", "", number)
    text = f"*{first}: {damage}. Report: {number}. {second}: the same without.*"
    picture = f"![{first} with a damage, {second.lower()} without.](images/reasons/{reason}.webp)"
    return [picture, text]


def reasons() -> str:
    """Return one section for each reason, below the first stage that gives it."""
    first = {m.reason: m.stages[0] for m in reversed(METRICS.values())}
    parts = []
    for stage, title in _STAGE_TITLES.items():
        parts.append(f"## {title}")
        for reason in dict.fromkeys(m.reason for m in METRICS.values()):
            if first[reason] != stage:
                continue
            named = {name: m for name, m in METRICS.items() if m.reason == reason}
            sentences = "\n".join(_sentence(name, metric) for name, metric in named.items())
            advice = f"**Look at, and try:** {REASONS[reason].remedy}."
            parts += [f"### `{reason}`", sentences, *_picture(reason), advice]
    return "\n\n".join(parts)


#: Values in usages, by the last word of an option; ``FILE`` where none fits.
_VALUES = {
    "output": "OUTPUT",
    "quiet_min": "MINUTES",
    "notify": "COMMAND",
    "profile": "FOLDER",
    "clear": "UUID",
    **{"pattern": "PATTERN", "rows": "N", "cols": "N", "layout": "LAYOUT", "overlap": "FRACTION"},
    "missing": "stop|fill",
}


def commands(app: typer.Typer) -> dict[str, Any]:
    """Return the commands of a program by name, in the order of its help."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def _spelling(parameter: Any) -> str:
    """Return an argument or option as one types it."""
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    if isinstance(parameter.default, bool):
        return str((parameter.secondary_opts if parameter.default else parameter.opts)[0])
    return f"{parameter.opts[0]} {_VALUES.get(parameter.name, 'FILE')}"


def usage(program: str, name: str, command: Any) -> str:
    """Return how a command is called; optional parts in brackets."""
    parts = [_spelling(p) if p.required else f"[{_spelling(p)}]" for p in command.params]
    return " ".join((program, name, *parts))


def _option(parameter: Any) -> tuple[str, str]:
    """Return the row of an argument or option."""
    plain = isinstance(parameter.default, bool) or parameter.default in (None, "")
    default = "" if plain else f" Default: `{parameter.default}`."
    text = parameter.help
    if parameter.default is True:
        text = f"Do not {text[0].lower()}{text[1:]}"
    short = "".join(f", `{o}`" for o in parameter.opts[1:])
    return f"`{_spelling(parameter)}`{short}", text + default


def program(name: str, app: typer.Typer) -> str:
    """Return one section for each command of a program."""
    parts = []
    for word, command in commands(app).items():
        rows = [_option(parameter) for parameter in command.params]
        called = f"```sh\n{usage(name, word, command)}\n```"
        parts += [f"### `{name} {word}`", command.help, called, table(("Option", "Meaning"), *rows)]
    return "\n\n".join(parts)


def overview(name: str, app: typer.Typer) -> str:
    """Return the table of the commands of a program, a line each."""
    known = commands(app)
    rows = [(f"`{usage(name, word, c)}`", c.help.split("\n\n")[0]) for word, c in known.items()]
    return table(("Command", "What it does"), *rows)


def on_a_cluster() -> str:
    """Return the table of the commands that read the state of a cluster."""
    name, rows = "tilewright-placement", []
    for word, command in commands(placement.app).items():
        called = f"[`{usage(name, word, command)}`](commands.md#{name}-{word})"
        rows.append((called, command.help.split("\n\n")[0]))
    return table(("Command", "What it does"), *rows)


_KEY_HEAD = ("Key", "Values", "Default", "Meaning")


def keys(section: str) -> str:
    """Return the table of the keys of a section, or of those of none."""
    known = sections()
    rows_ = rows(known[section]) if section else rows(Settings, TOP)
    return table(_KEY_HEAD, *rows_)


def settings() -> str:
    """Return the table of the settings of a run on a cluster: options, and keys of a profile."""
    rows_ = []
    for one in dataclasses.fields(ExecutorSettings):
        default = "" if one.default in ("", False) else literal(one.default)
        rows_.append((f"`tilewright-{one.name.replace('_', '-')}`", default, one.metadata["help"]))
    return table(("Key", "Default", "Meaning"), *rows_)


#: What is written where: the name between the marks, the page, and the text.
BLOCKS: dict[str, tuple[str, Callable[[], str]]] = {
    "metrics": ("docs/quality.md", metrics),
    "reasons": ("docs/warnings.md", reasons),
    "commands": ("docs/commands.md", lambda: program("tilewright", cli.app)),
    "commands of placement": (
        "docs/commands.md",
        lambda: program("tilewright-placement", placement.app),
    ),
    "commands on a cluster": ("docs/cluster.md", on_a_cluster),
    "commands of the plugin": (
        "scheduler-plugin/README.md",
        lambda: overview("tilewright-placement", placement.app),
    ),
    "formats": ("docs/raw-data.md", tried.formats),
    "damages": ("docs/quality.md", tried.damages),
    "features": ("docs/placement-for-your-workflow.md", tried.features),
    "tests on Slurm": ("docs/placement-for-your-workflow.md", code.on_slurm),
    "files of a run": ("docs/own-data.md", code.files),
    "constants of positions": (
        "docs/design-tile-positions-constants.md",
        lambda: constants.constants("positions"),
    ),
    "folders": ("docs/development.md", code.folders),
    "tables of positions": ("docs/tile-positions.md", code.tables_of_positions),
    "commands that measure": ("docs/benchmarks.md", code.benchmarks),
    "constants of edf": (
        "docs/design-multiplane-wiener-constants.md",
        lambda: constants.constants("edf"),
    ),
    "settings": ("docs/cluster.md", settings),
    "reasons of Slurm": ("docs/placement.md", code.reasons_of_slurm),
    "keys": ("config/README.md", lambda: keys("")),
}
BLOCKS |= {
    f"keys of {name}": ("config/README.md", functools.partial(keys, name)) for name in sections()
}


def rewritten(page: str, text: str) -> str:
    """Return the text of a page with all that is generated in it as the code says now."""
    for name, (where, write) in BLOCKS.items():
        if where == page:
            first, last = f"<!-- {name}: written by make docs -->", f"<!-- end of {name} -->"
            if text.count(first) != 1 or text.count(last) != 1:
                raise ValueError(f"{page} must hold the marks of {name} once")
            before, rest = text.split(first)
            text = f"{before}{first}\n\n{write()}\n\n{last}{rest.split(last)[1]}"
    return text


def main() -> None:
    """Update the generated parts of all pages."""
    for page in sorted({where for where, _ in BLOCKS.values()}):
        path = REPOSITORY / page
        text = path.read_text(encoding="utf-8")
        path.write_text(rewritten(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
