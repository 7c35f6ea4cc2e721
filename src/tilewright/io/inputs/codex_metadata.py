"""CODEX's ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``, as texts."""

import csv
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from tilewright.errors import RawDataError
from tilewright.io.numbers import finite
from tilewright.io.tiff.ome_xml import immersion_refractive_index


@dataclass(frozen=True)
class CodexExperiment:
    """Content of ``experiment.json``; None where a value is absent.

    ``overlap`` is a fraction of the tile or, from 1 on, a number of pixels. ``wavelengths_nm``
    are one per channel of a cycle, 0 where there is no number, and emission peaks if
    ``wavelengths_are_emission``.
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
    exposures_ms: Mapping[tuple[int, int], float | None] | None = None


def parse_experiment(text: str, source: str = "experiment.json") -> CodexExperiment:
    """Return the content of an ``experiment.json``, whatever its nesting and spelling.

    Lengths of 20 and more are nm, smaller ones µm: no pixel is as large as 20 µm.

    Raises
    ------
    RawDataError
        The text is not a JSON object.
    """
    try:
        content = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise RawDataError(f"{source} is not JSON ({error}); correct it or move it away") from error
    if not isinstance(content, dict):
        raise RawDataError(f"{source} is not a JSON object; correct it or move it away")
    values = _flatten(content)
    numbers = {
        name: next((n for alias in aliases if (n := _number(values.get(alias))) is not None), None)
        for name, aliases in _tables()["aliases"].items()
    }
    kinds = [values.get(name) for name in ("objectivetype", "immersionmedium")]
    immersion = next((kind for kind in kinds if isinstance(kind, str)), None)
    emission = _numbers(values.get("emissionwavelengths"))
    return CodexExperiment(
        cycles=_integer(numbers["cycles"]),
        channels=_integer(numbers["channels"]),
        rows=_integer(numbers["rows"]),
        cols=_integer(numbers["cols"]),
        layout=_tables()["layouts"].get(str(values.get("tilingmode", "")).lower()),
        overlap=numbers["overlap"] or None,
        pixel_um=_length_um(numbers["pixel"]),
        z_step_um=_length_um(numbers["z_step"]),
        numerical_aperture=numbers["aperture"] or None,
        immersion_refractive_index=immersion_refractive_index(immersion),
        reference_cycle=_integer(numbers["reference_cycle"]),
        reference_channel=_integer(numbers["reference_channel"]),
        wavelengths_nm=emission or _numbers(values.get("wavelengths")),
        wavelengths_are_emission=bool(emission),
        markers=_names(values.get("channelnamesarray"), values.get("channelnames")),
        exposures_ms=_exposures(values.get("exposuretimesarray"), _integer(numbers["channels"])),
    )


def parse_channel_names(text: str) -> tuple[str, ...]:
    r"""Return the markers of ``channelnames.txt``, cycle after cycle.

    >>> parse_channel_names("DAPI\nCD 8 \n\nDAPI\n")
    ('DAPI', 'CD 8', 'DAPI')
    """
    lines = (line.strip() for line in text.lstrip("\ufeff").splitlines())
    return tuple(line for line in lines if line)


def parse_exposure_times(
    text: str, per_cycle: int | None = None
) -> dict[tuple[int, int], float | None]:
    r"""Return ms by (cycle, channel) of ``exposure_times.txt``.

    None is unknown: no time, contradictory times, or a line that is not as long as the heading.
    Columns without a number are those of channels in order, if they are ``per_cycle``.

    >>> parse_exposure_times("Cycle,CH1,CH3\n1,10,500\n2,10\n")
    {(1, 1): 10.0, (1, 3): 500.0, (2, 1): None, (2, 3): None}
    """
    lines = text.replace("\0", "").lstrip("\ufeff").splitlines()
    return _exposures(list(csv.reader(lines)), per_cycle)


def unique_names(names: Iterable[str], cycles: Iterable[int]) -> list[str]:
    """Return the names with the number of their cycle behind those of several channels.

    A number that is taken is counted on.

    >>> unique_names(["DAPI", "DAPI", "CD8", "DAPI"], [0, 1, 1, 2])
    ['DAPI_0', 'DAPI_1', 'CD8', 'DAPI_2']
    >>> unique_names(["DAPI", "CD8", "DAPI", "DAPI_1"], [1, 1, 2, 2])
    ['DAPI_2', 'CD8', 'DAPI_3', 'DAPI_1']
    """
    names = list(names)
    used = {name for name in names if names.count(name) == 1}
    unique = []
    for name, cycle in zip(names, cycles, strict=True):
        if names.count(name) > 1:
            name = next(one for n in count(cycle) if (one := f"{name}_{n}") not in used)
            used.add(name)
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
    known = [(line, nm) for line, nm in zip(lines, wavelengths_nm, strict=True) if nm]
    if all(line for line, _ in known) or any(nm < 420 for _, nm in known):
        return lines
    return list(wavelengths_nm)


@cache
def _tables() -> dict[str, Any]:
    """Return what ``codex_metadata.yaml`` next to this module holds."""
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


def _integer(number: float | None) -> int | None:
    return int(number) if number and number == int(number) else None


def _length_um(number: float | None) -> float | None:
    if not number:
        return None
    return round(number / 1000, 6) if number >= 20 else number


def _numbers(value: Any) -> tuple[float, ...]:
    items = value if isinstance(value, list) else []
    return tuple(_number(item) or 0.0 for item in items)


def _names(*values: Any) -> tuple[str, ...]:
    lists = (value for value in values if isinstance(value, list))
    return tuple("" if name is None else str(name).strip() for name in next(lists, []))


def _exposures(lines: Any, per_cycle: int | None) -> dict[tuple[int, int], float | None]:
    exposures: dict[tuple[int, int], float | None] = {}
    channels: list[int] | None = None
    for line in lines if isinstance(lines, list) else []:
        cells = [str(cell).strip() for cell in line] if isinstance(line, list) else []
        cycle = _number(cells[0]) if cells else None
        if cells and (cycle is None or channels is None):
            filled = [k for k, cell in enumerate(cells) if cell]
            channels = _column_numbers(cells[1 : max(filled, default=0) + 1], per_cycle)
        if cycle is None or not channels or cycle != int(cycle):
            continue
        complete = len(cells) > len(channels) and not any(cells[len(channels) + 1 :])
        for column, channel in enumerate(channels, start=1):
            key, exposure = (int(cycle), channel), (_number(cells[column]) if complete else None)
            exposures[key] = (
                (exposure or None) if exposures.get(key, exposure) == exposure else None
            )
    return exposures


def _column_numbers(cells: Sequence[str], per_cycle: int | None) -> list[int]:
    """Return the channel of each column, nothing where that is unknown."""
    matches = (re.fullmatch(r"(?i)ch(?:annel)?[ _-]*0*(\d{1,4})", cell) for cell in cells)
    numbers = [int(match[1]) for match in matches if match]
    if len(set(numbers)) == len(cells):
        return numbers
    return list(range(1, len(cells) + 1)) if per_cycle in (None, len(cells)) else []
