"""Judging one stage of one cycle, and the JSON that comes of it.

What is particular to a stage is in its module ``report.quality.<stage>``, which has

- ``findings(subject, files, **options)``, which judges a channel, or a whole cycle,
- ``draw(views, path)``, which shows the ``view`` of each of its findings in a picture,
- ``CAPTION``, which says what the picture shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tilewright.config.rules import STAGES
from tilewright.io.results.npz import write_npz
from tilewright.io.results.reading import checked_rows, read_json, result_file_errors
from tilewright.report.verdict import Item, Subject, resolve_thresholds, worst
from tilewright.runtime.files import write_text_atomic

#: Name of an input of a quality rule to its path.
Files = Mapping[str, Any]


@dataclass(frozen=True)
class Findings:
    """What was found in a channel, or in a cycle.

    Attributes
    ----------
    items : list of Item
        Judged numbers.
    numbers : mapping
        Further numbers, not judged.
    view
        What the stage's ``draw`` shows of it.
    arrays : mapping
        What the judging of a later stage needs of it.
    """

    items: list[Item]
    numbers: Mapping[str, Any]
    view: Any
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Quality:
    """What one quality stage found in one cycle.

    Attributes
    ----------
    sample, cycle, stage
        What was looked at.
    items : tuple of Item
        Judged numbers.
    numbers : dict
        Further numbers, not judged.
    caption : str
        What its picture shows; also the alternative text.
    """

    sample: str
    cycle: int
    stage: str
    items: tuple[Item, ...]
    numbers: dict[str, Any]
    caption: str


def judge_stage(
    stage: str,
    files: Files,
    output_json: Path,
    output_png: Path,
    output_npz: Path | None = None,
    *,
    sample: str,
    cycle: int,
    channels: Sequence[tuple[str, str]] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Judge one stage of one cycle by the default limits, and draw what was looked at.

    The configured limits come later (:func:`judge_again`): a changed one needs no image again.

    Parameters
    ----------
    stage : str
        A key of :data:`~tilewright.config.rules.STAGES`.
    files : mapping
        Inputs of the quality rule by name. A list holds a file for each channel; an empty one
        is an input that this cycle does not have.
    output_json, output_png : Path
        Verdicts and picture.
    output_npz : Path, optional
        What the judging of a later stage needs of this one.
    channels : sequence of (str, str)
        Token and marker of each channel of the cycle; without a marker the channel is named.
    options : mapping, optional
        What else the stage's ``findings`` takes.

    Raises
    ------
    ValueError
        There is not a file for each channel, or no channel where channels are judged.
    """
    module = import_module(f"tilewright.report.quality.{stage}")
    limits = resolve_thresholds({})
    judged = channels if STAGES[stage].by_channel else ()
    if STAGES[stage].by_channel and not channels:
        raise ValueError(f"stage {stage} is judged channel by channel, and none is given")
    parts = _by_channel(files, len(judged)) if judged else [files]
    found: dict[str, Findings] = {
        token: module.findings(
            Subject(sample, cycle, stage, limits, token, marker), part, **(options or {})
        )
        for (token, marker), part in zip(judged or [("", "")], parts, strict=True)
    }
    module.draw([part.view for part in found.values()], output_png)
    items = tuple(item for part in found.values() for item in part.items)
    numbers = {token: part.numbers for token, part in found.items()}
    whole = dict(numbers if judged else numbers[""])
    if output_npz is not None:
        write_npz(output_npz, {k: v for part in found.values() for k, v in part.arrays.items()})
    caption = module.CAPTION.format(cycle=cycle)
    write_quality(output_json, Quality(sample, cycle, stage, items, whole, caption))


def _by_channel(files: Files, count: int) -> list[dict[str, Any]]:
    """Return the files of each channel; those that are not lists are for all."""
    lists = {name: list(paths) for name, paths in files.items() if isinstance(paths, list)}
    for name, paths in lists.items():
        if len(paths) not in (0, count):
            raise ValueError(f"{len(paths)} files of '{name}' for {count} channels")
    shared = {name: path for name, path in files.items() if name not in lists}
    return [
        {**shared, **{name: paths[k] for name, paths in lists.items() if paths}}
        for k in range(count)
    ]


def judge_again(
    quality: Quality,
    thresholds: Mapping[str, Mapping[str, Any]],
    channels: Sequence[Mapping[str, Any]],
) -> Quality:
    """Judge what was found by the configured limits, under the names of the marker table.

    Parameters
    ----------
    thresholds : mapping
        ``qc.thresholds`` of the config.
    channels : sequence of mapping
        cycle, channel and marker of every channel.
    """
    limits = resolve_thresholds(thresholds)
    markers = {(int(c["cycle"]), str(c["channel"])): str(c["marker"]) for c in channels}

    def again(item: Item) -> Item:
        marker = markers.get((item.cycle, item.channel), item.marker)
        who = (item.sample, item.cycle, item.stage, limits, item.channel, marker)
        return Subject(*who).judge(item.metric, item.value, item.detail)

    return replace(quality, items=tuple(again(item) for item in quality.items))


def _plain(value: Any) -> Any:
    """Return JSON values: numbers rounded to six digits, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def write_quality(path: Path, quality: Quality) -> None:
    """Write whole or not at all."""
    content = {
        "sample": quality.sample,
        "cycle": quality.cycle,
        "stage": quality.stage,
        "verdict": worst(item.verdict for item in quality.items),
        "caption": quality.caption,
        "items": [asdict(item) for item in quality.items],
        "numbers": quality.numbers,
    }
    write_text_atomic(path, json.dumps(_plain(content), indent=1, allow_nan=False) + "\n")


def read_quality(path: Path) -> Quality:
    """Read what :func:`write_quality` wrote.

    Raises
    ------
    ResultFileError
        The file is not a quality file.
    """
    with result_file_errors(path, "quality file"):
        content = read_json(path)
        wanted = [each.name for each in fields(Item) if each.default is MISSING]
        items = tuple(Item(**row) for row in checked_rows(content["items"], "items", wanted))
        keys = ("sample", "cycle", "stage", "numbers", "caption")
        return Quality(items=items, **{key: content[key] for key in keys})
