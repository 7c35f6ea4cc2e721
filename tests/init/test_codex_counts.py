"""Names and times of CODEX cycles, by the numbers that the metadata state and never by place."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.config.tables import cycles_text
from tilewright.init.folder import InitResult, create_experiment

NAMES = ["DAPI-01", "CD3", "DAPI-02", "CD8", "DAPI-03", "CD20"]
ALL = {cycle: [1, 2] for cycle in (1, 2, 3)}
TIMES = "Cycle,CH1,CH2\n1,10,100\n2,10,200\n3,10,300\n"


def made(
    folder: Path,
    channels: dict[int, list[int]],
    names: str | bytes = "\n".join(NAMES),
    times: str = TIMES,
    told: dict[str, Any] | None = None,
) -> tuple[InitResult, dict[tuple[int, int], tuple[str, str, str]]]:
    """Return what init says of a folder of one tile, and its markers table."""
    for cycle, numbers in channels.items():
        (folder / f"raw/Cyc{cycle}_reg1").mkdir(parents=True, exist_ok=True)
        for channel in numbers:
            path = folder / f"raw/Cyc{cycle}_reg1/1_00001_Z001_CH{channel}.tif"
            tifffile.imwrite(path, np.full((64, 64), 100, np.uint16))
    text = names if isinstance(names, bytes) else names.encode()
    (folder / "raw/channelnames.txt").write_bytes(text)
    (folder / "raw/exposure_times.txt").write_text(times)
    if told is not None:
        (folder / "raw/experiment.json").write_text(json.dumps(told))
    shutil.rmtree(folder / "out", ignore_errors=True)
    result = create_experiment(folder / "raw", folder / "out")
    with result.markers.open() as stream:
        _, *lines = csv.reader(stream)
    return result, {(int(line[0]), int(line[1])): (line[2], line[4], line[5]) for line in lines}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        *((names, None) for names in ("abcd", "abcde", "abcdefg", "abcdefgh")),
        *(
            ("abcdef", {"num_cycles": cycles, "num_channels": channels})
            for cycles, channels in ((2, 2), (2, 3), (3, 1), (6, 1), (4, 2))
        ),
    ],
)
def test_names_that_do_not_fit_are_left_to_fill_in(
    tmp_path: Path, names: str, told: dict[str, Any] | None
) -> None:
    result, table = made(tmp_path, ALL, "\n".join(names), told=told)
    assert {name for name, *_ in table.values()} == {""}
    assert any(": marker of cycle 1 channel 1" in key for key in result.notes.unknown)
    assert any("marker names for" in warning for warning in result.notes.warnings)
    assert [exposure for *_, exposure in table.values()] == ["10", "100", "10", "200", "10", "300"]


@pytest.mark.parametrize(
    ("times", "known"),
    [
        ("Cycle,CH1,CH2\n1,10,100\n3,10,300\n", {(1, 1), (1, 2), (3, 1), (3, 2)}),
        ("Cycle,CH2\n1,100\n2,200\n3,300\n", {(1, 2), (2, 2), (3, 2)}),
        ("Cycle,CH1,CH2\n1,10,100\n2,200\n3,10,300\n", {(1, 1), (1, 2), (3, 1), (3, 2)}),
        ("Cycle,CH1,CH2\n1,10,100\n2,10,200,5\n3,,300\n", {(1, 1), (1, 2), (3, 2)}),
        ("Cycle,CH1,CH2\n0,10,100\n1,10,200\n2,10,300\n", set()),
        ("Cycle,CH1,CH2\n2,10,100\n3,10,200\n4,10,300\n", set()),
        ("Cycle,DAPI\n1,100\n2,200\n3,300\n", set()),
        ("Cycle,CH1,CH2\n1,10,100\n1,10,150\n2,10,200\n3,10,300\n",
         {(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)}),
        ("1,10,100\n2,10,200\n3,10,300\n", {(c, n) for c in (1, 2, 3) for n in (1, 2)}),
    ],
)  # fmt: skip
def test_exposure_times_are_those_of_the_stated_numbers(
    tmp_path: Path, times: str, known: set[tuple[int, int]]
) -> None:
    _, table = made(tmp_path, ALL, times=times)
    for (cycle, channel), (*_, exposure) in table.items():
        right = "10" if channel == 1 else f"{cycle}00"
        assert exposure == (right if (cycle, channel) in known else "")


def test_wavelengths_are_those_of_their_place_or_none(tmp_path: Path) -> None:
    for wavelengths, emission in (
        ([358, 488], ["461", "519"]),
        ([0, 488], ["", "519"]),
        ([None, 650], ["", "668"]),
        ([358, 488, 650], ["", ""]),
        ([488], ["", ""]),
    ):
        _, table = made(tmp_path, ALL, told={"wavelengths": wavelengths})
        assert [row[1] for row in table.values()][:2] == emission


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_names_in_another_encoding_are_read(tmp_path: Path, encoding: str) -> None:
    _, table = made(tmp_path, ALL, "\n".join(NAMES).encode(encoding))
    assert [name for name, *_ in table.values()] == NAMES


CHANNELS = st.sets(st.integers(1, 3), min_size=1).map(sorted)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    there=st.dictionaries(st.integers(1, 4), CHANNELS, min_size=1),
    cycles=st.integers(4, 5),
    channels=st.integers(3, 4),
    stated=st.booleans(),
)
def test_what_is_written_is_right_or_empty(
    tmp_path: Path, there: dict[int, list[int]], cycles: int, channels: int, stated: bool
) -> None:
    """Names and times of a whole list, of which only some cycles and channels are there."""
    folder = tmp_path / f"{hash((str(there), cycles, channels, stated))}"
    every = [[f"{c}{n}" for n in range(1, channels + 1)] for c in range(1, cycles + 1)]
    names = [f"n{number}" for line in every for number in line]
    times = [["Cycle", *(f"CH{n}" for n in range(1, channels + 1))]]
    times += [[str(c), *line] for c, line in enumerate(every, start=1)]
    told = {"num_cycles": cycles, "num_channels": channels} if stated else {}
    text = "".join(f"{','.join(line)}\n" for line in times)
    _, table = made(folder, there, "\n".join(names), text, told)
    for (cycle, channel), (name, _, exposure) in table.items():
        assert name in (("",) if not stated else ()) + (f"n{cycle}{channel}",)
        assert exposure == f"{cycle}{channel}"


@pytest.mark.parametrize(
    ("names", "references"),
    [
        ("DAPI CD3 CD8 Hoechst_33342", {(1, 1), (2, 2)}),
        ("DNA1 DNA-PKcs DNA2 DNase", {(1, 1), (2, 1)}),
        ("CD3 cyc1_DAPI CD8 SYTOX-Green", {(1, 2), (2, 2)}),
        ("DAPI CD3 CD8 CD20", {(1, 1)}),
        ("DAPI CD3 DAPI Hoechst", {(1, 1)}),
        ("CD4 CD3 CD8 CD20", set()),
    ],
)
def test_the_reference_channel_is_the_one_named_as_a_nuclear_stain(
    tmp_path: Path, names: str, references: set[tuple[int, int]]
) -> None:
    result, _ = made(tmp_path, {1: [1, 2], 2: [1, 2]}, "\n".join(names.split()), times="")
    with result.markers.open() as stream:
        found = {(int(row["cycle"]), int(row["channel"])) for row in csv.DictReader(stream)
                 if row["reference"]}  # fmt: skip
    assert found == references
    left = sorted({1, 2} - {cycle for cycle, _ in references})
    asked = [key for key in result.notes.unknown if ": reference: " in key]
    assert [key.rpartition(" of ")[2] for key in asked] == [cycles_text(left)] * bool(left)
