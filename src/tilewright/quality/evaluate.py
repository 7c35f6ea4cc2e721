"""Quality control of one stage of one cycle, and its JSON.

Module ``quality.stages.<stage>`` has

- ``evaluate(context, files)``, the :class:`StageQc` of a channel, or of a cycle,
- ``draw(views, path)``, a picture of the ``view`` of each,
- ``CAPTION``, what the picture shows.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.config.rules import STAGES
from tilewright.io.results.result_file import (
    checked_rows,
    read_json,
    result_file_errors,
    write_result,
)
from tilewright.quality.results import (
    NOT_APPLICABLE,
    QcContext,
    QcResult,
    resolve_thresholds,
    worst,
)

#: Name of an input of a quality rule to its path.
Files = Mapping[str, Any]


@dataclass(frozen=True)
class StageQc:
    """Quality of a channel, or of a cycle, at one stage.

    Attributes
    ----------
    items, numbers
        Numbers with a verdict, and numbers without one.
    view : Any
        What the stage's ``draw`` shows.
    """

    items: list[QcResult]
    numbers: Mapping[str, Any]
    view: Any


@dataclass(frozen=True)
class QcRecord:
    """Quality of one stage of one cycle, as in its JSON file.

    Attributes
    ----------
    sample, cycle, stage
        Of what the numbers are.
    items, numbers
        Numbers with a verdict, and numbers without one.
    caption : str
        What its picture shows; also the alternative text.
    """

    sample: str
    cycle: int
    stage: str
    items: tuple[QcResult, ...]
    numbers: dict[str, Any]
    caption: str


def evaluate_stage(
    stage: str,
    files: Files,
    output_json: Path,
    output_png: Path,
    *,
    sample: str,
    cycle: int,
    channels: Sequence[tuple[str, str]] = (),
) -> None:
    """Evaluate one stage of one cycle by the default limits, and draw its picture.

    :func:`apply_thresholds` applies the configured limits: when they change, no image is read.

    Parameters
    ----------
    stage : str
        A key of :data:`~tilewright.config.rules.STAGES`.
    files : mapping
        Inputs of the quality rule by name: a list has a file for each channel, or is empty.
    output_json, output_png : Path
        Verdicts and picture.
    channels : sequence of (str, str)
        Token and marker of each channel of the cycle; without a marker the channel is named.

    Raises
    ------
    ValueError
        There is not a file for each channel, or no channel in a stage of channels.
    """
    module = import_module(f"tilewright.quality.stages.{stage}")
    context = QcContext(sample, cycle, stage, resolve_thresholds({}))
    if STAGES[stage].by_channel:
        parts = _evaluate_channels(module, context, files, channels)
        numbers: Mapping[str, Any] = {token: part.numbers for token, part in parts.items()}
    else:
        parts = {"": module.evaluate(context, files)}
        numbers = parts[""].numbers
    module.draw([part.view for part in parts.values()], output_png)
    items = tuple(item for part in parts.values() for item in part.items)
    caption = module.CAPTION.format(cycle=cycle)
    write_qc(output_json, QcRecord(sample, cycle, stage, items, dict(numbers), caption))


def _evaluate_channels(
    module: Any, context: QcContext, files: Files, channels: Sequence[tuple[str, str]]
) -> dict[str, StageQc]:
    """Return the quality of each channel."""
    if not channels:
        raise ValueError(f"stage {context.stage} is evaluated by channel; give the channels")
    files_of = _by_channel(files, len(channels))
    return {
        token: module.evaluate(replace(context, channel=token, marker=marker), inputs)
        for (token, marker), inputs in zip(channels, files_of, strict=True)
    }


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


def apply_thresholds(
    record: QcRecord,
    thresholds: Mapping[str, Mapping[str, Any]],
    channels: Sequence[Mapping[str, Any]],
) -> QcRecord:
    """Return a record with the verdicts of the configured limits and the table's marker names.

    ``thresholds`` is ``qc.thresholds`` of the config; ``channels`` have cycle, channel and marker.
    """
    limits = resolve_thresholds(thresholds)
    markers = {(int(c["cycle"]), str(c["channel"])): str(c["marker"]) for c in channels}

    def evaluate(item: QcResult) -> QcResult:
        marker = markers.get((item.cycle, item.channel), item.marker)
        tiles = 1 if item.reason == NOT_APPLICABLE else None
        of = item.sample, item.cycle, item.stage
        context = QcContext(*of, limits, item.channel, marker, tiles)
        return context.evaluate(item.metric, item.value, item.detail)

    return replace(record, items=tuple(map(evaluate, record.items)))


def _json_value(value: Any) -> Any:
    """Return JSON values: numbers rounded to six digits, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def write_qc(path: Path, record: QcRecord) -> None:
    """Write a record atomically."""
    content = {
        "sample": record.sample,
        "cycle": record.cycle,
        "stage": record.stage,
        "verdict": worst(item.verdict for item in record.items),
        "caption": record.caption,
        "items": [asdict(item) for item in record.items],
        "numbers": record.numbers,
    }
    write_result(path, json.dumps(_json_value(content), indent=1, allow_nan=False) + "\n")


def read_qc(path: Path) -> QcRecord:
    """Read a record that :func:`write_qc` wrote.

    Raises
    ------
    ResultFileError
        The file is not a quality file.
    """
    with result_file_errors(path, "quality file"):
        content = read_json(path)
        required = [each.name for each in fields(QcResult) if each.default is MISSING]
        rows = checked_rows(content["items"], "items", required)
        items = tuple(QcResult(**row) for row in rows)
        keys = ("sample", "cycle", "stage", "numbers", "caption")
        return QcRecord(items=items, **{key: content[key] for key in keys})
