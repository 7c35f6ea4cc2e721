"""CODEX's ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``, as texts."""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tilewright.io.conventions.common import RawDataError, finite


@dataclass(frozen=True)
class CodexExperiment:
    """What ``experiment.json`` tells; None where it does not.

    ``overlap`` is a fraction of the tile or, from 1 on, a number of pixels. ``wavelengths_nm``
    are one per channel of a cycle and emission peaks if ``wavelengths_are_emission``.
    """

    cycles: int | None = None
    channels: int | None = None
    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None
    pixel_um: float | None = None
    z_step_um: float | None = None
    numerical_aperture: float | None = None
    immersion_refractive_index: float | None = None
    reference_cycle: int | None = None
    reference_channel: int | None = None
    wavelengths_nm: tuple[float, ...] = ()
    wavelengths_are_emission: bool = False
    markers: tuple[str, ...] = ()
    exposures_ms: Mapping[tuple[int, int], float] | None = None


def parse_experiment(text: str, source: str = "experiment.json") -> CodexExperiment:
    """Return what an ``experiment.json`` tells, whatever its nesting and spelling.

    Lengths of 20 and more are nm, smaller ones µm: no pixel is as large as 20 µm.

    Raises
    ------
    RawDataError
        The text is no JSON object.
    """
    try:
        content = json.loads(text.lstrip("\ufeff"))
    except json.JSONDecodeError as error:
        raise RawDataError(f"{source} is no JSON ({error}); correct it or move it away") from error
    if not isinstance(content, dict):
        raise RawDataError(f"{source} is no JSON object; correct it or move it away")
    values = _flatten(content)
    numbers = {
        name: next((n for alias in aliases if (n := _number(values.get(alias))) is not None), None)
        for name, aliases in _tables()["aliases"].items()
    }
    kinds = [values.get(name) for name in ("objectivetype", "immersionmedium")]
    indices = _tables()["immersion_refractive_index"]
    immersion = next((indices.get(kind.lower()) for kind in kinds if isinstance(kind, str)), None)
    emission = _numbers(values.get("emissionwavelengths"))
    return CodexExperiment(
        cycles=_whole(numbers["cycles"]),
        channels=_whole(numbers["channels"]),
        rows=_whole(numbers["rows"]),
        cols=_whole(numbers["cols"]),
        layout=_tables()["layouts"].get(str(values.get("tilingmode", "")).lower()),
        overlap=numbers["overlap"] or None,
        pixel_um=_length_um(numbers["pixel"]),
        z_step_um=_length_um(numbers["z_step"]),
        numerical_aperture=numbers["aperture"] or None,
        immersion_refractive_index=immersion,
        reference_cycle=_whole(numbers["reference_cycle"]),
        reference_channel=_whole(numbers["reference_channel"]),
        wavelengths_nm=emission or _numbers(values.get("wavelengths")),
        wavelengths_are_emission=bool(emission),
        markers=_names(values.get("channelnamesarray"), values.get("channelnames")),
        exposures_ms=_exposures(values.get("exposuretimesarray") or ()),
    )


def parse_channel_names(text: str) -> tuple[str, ...]:
    r"""Return the markers of ``channelnames.txt``, cycle after cycle.

    >>> parse_channel_names("DAPI\nCD 8 \n\nDAPI\n")
    ('DAPI', 'CD 8', 'DAPI')
    """
    lines = (line.strip() for line in text.lstrip("\ufeff").splitlines())
    return tuple(line for line in lines if line)


def parse_exposure_times(text: str) -> dict[tuple[int, int], float]:
    r"""Return ms by (cycle, channel), both from 1, of ``exposure_times.txt``.

    >>> parse_exposure_times("Cycle,CH1,CH2\n1,10,500\n")
    {(1, 1): 10.0, (1, 2): 500.0}
    """
    return _exposures(csv.reader(text.lstrip("\ufeff").splitlines()))


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names, numbered where they stand more than once, as MCMICRO does.

    >>> unique_names(["DAPI", "CD8", "DAPI", "DAPI_1"])
    ['DAPI_2', 'CD8', 'DAPI_3', 'DAPI_1']
    """
    names = list(names)
    taken = {name for name in names if names.count(name) == 1}
    numbers: dict[str, int] = {}
    unique = []
    for name in names:
        if name not in taken:
            number = numbers.get(name, 0) + 1
            while f"{name}_{number}" in taken:
                number += 1
            numbers[name] = number
            name = f"{name}_{number}"
        unique.append(name)
    return unique


def emission_peaks_nm(wavelengths_nm: Sequence[float]) -> list[float | None]:
    """Return emission peaks for wavelengths that may be those of the excitation.

    CODEX instruments write 358, 488, 550, 650: the excitation. Where every value is an
    excitation line, or one is shorter than any dye emits (420 nm), the emission peak of the
    usual dye is taken, None where no dye is usual; else the values are emission peaks.

    >>> emission_peaks_nm([358.0, 488.0, 550.0, 700.0])
    [461.0, 519.0, 570.0, None]
    >>> emission_peaks_nm([461.0, 525.0])
    [461.0, 525.0]
    """
    dyes = _tables()["emission_of_excitation"]
    lines = [
        next((peak for low, high, peak in dyes if low <= nm <= high), None) for nm in wavelengths_nm
    ]
    if None not in lines or any(nm < 420 for nm in wavelengths_nm):
        return lines
    return list(wavelengths_nm)


@cache
def _tables() -> dict[str, Any]:
    """Return what ``codex_metadata.yaml`` beside this module holds."""
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return tables


def _flatten(content: dict[str, Any]) -> dict[str, Any]:
    """Return all values by normalised key; those nearer to the root win."""
    values: dict[str, Any] = {}
    queue = deque([content])
    while queue:
        for key, value in queue.popleft().items():
            values.setdefault(re.sub(r"[^a-z0-9]", "", key.lower()), value)
            inner = value if isinstance(value, list) else [value]
            queue.extend(item for item in inner if isinstance(item, dict))
    return values


def _number(value: Any) -> float | None:
    """Return a finite, non-negative number, also of a text; else None."""
    number = None if isinstance(value, bool) else finite(str(value))
    return number if number is not None and number >= 0 else None


def _whole(number: float | None) -> int | None:
    return int(number) if number and number == int(number) else None


def _length_um(number: float | None) -> float | None:
    if not number:
        return None
    return round(number / 1000, 6) if number >= 20 else number


def _numbers(value: Any) -> tuple[float, ...]:
    items = value if isinstance(value, list) else []
    return tuple(number for item in items if (number := _number(item)))


def _names(*values: Any) -> tuple[str, ...]:
    lists = (value for value in values if isinstance(value, list))
    return tuple(str(name).strip() for name in next(lists, []))


def _exposures(lines: Iterable[Sequence[Any]]) -> dict[tuple[int, int], float]:
    found = {}
    for line in lines:
        cycle = _whole(_number(line[0])) if line else None
        if cycle is not None:  # else the heading
            for channel, text in enumerate(line[1:], start=1):
                exposure = _number(text)
                if exposure:
                    found[cycle, channel] = exposure
    return found
