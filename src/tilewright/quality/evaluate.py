"""Quality control of one stage of one cycle, and its JSON.

Module ``quality.stages.<stage>`` has

- ``evaluate(context, files)``, the :class:`StageQc` of a channel, or of a cycle,
- ``draw(views, path)``, a picture of the ``view`` of each,
- ``CAPTION``, what the picture shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.config.rules import STAGES
from tilewright.io.results.result_file import json_value, read_json, result_file_errors, write_json
from tilewright.quality.results import (
    NOT_APPLICABLE,
    QcContext,
    QcResult,
    Verdict,
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

    @property
    def verdict(self) -> Verdict:
        """The worst of its items'."""
        return worst(item.verdict for item in self.items)


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
    """
    module = import_module(f"tilewright.quality.stages.{stage}")
    context = QcContext(sample, cycle, stage, resolve_thresholds({}))
    if STAGES[stage].by_channel:
        parts = {
            token: module.evaluate(
                replace(context, channel=token, marker=marker), _files_of(files, number)
            )
            for number, (token, marker) in enumerate(channels)
        }
        numbers: Mapping[str, Any] = {token: part.numbers for token, part in parts.items()}
    else:
        parts = {"": module.evaluate(context, files)}
        numbers = parts[""].numbers
    module.draw([part.view for part in parts.values()], output_png)
    items = tuple(item for part in parts.values() for item in part.items)
    caption = module.CAPTION.format(cycle=cycle)
    write_qc(output_json, QcRecord(sample, cycle, stage, items, dict(numbers), caption))


def _files_of(files: Files, channel: int) -> dict[str, Any]:
    """Return the files of a channel by its number; those that are not lists are of all."""
    return {
        name: paths[channel] if isinstance(paths, list) else paths
        for name, paths in files.items()
        if paths != []
    }


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


def write_qc(path: Path, record: QcRecord) -> None:
    """Write a record atomically."""
    write_json(path, json_value({"verdict": record.verdict, **asdict(record)}))


def read_qc(path: Path) -> QcRecord:
    """Read a record that :func:`write_qc` wrote.

    Raises
    ------
    ResultFileError
        The file is not a quality file.
    """
    with result_file_errors(path, "quality file"):
        content = read_json(path)
        items = tuple(QcResult(**row) for row in content["items"])
        keys = ("sample", "cycle", "stage", "numbers", "caption")
        return QcRecord(items=items, **{key: content[key] for key in keys})
