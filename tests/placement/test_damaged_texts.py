"""Damaged answers of Slurm, profiles and records: read, or refused in words of ours, soon."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from snakemake_scheduler_plugin_tilewright.runtime.cause import last_line, read_cause
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.settings import settings_of
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from snakemake_scheduler_plugin_tilewright.slurm.reasons import cause_of
from tests.fuzz.damage import Reader, Words, check
from tests.fuzz.test_text import file
from tests.scheduler_plugin.test_damaged_records import USES
from tests.support.recorded import ANSWERS, CONFIG, QUESTIONS
from tests.support.recorded_texts import RELEASES

Make = Callable[[Path], Reader]
CAUSE = b'x\ntilewright-cause {"cause": "error", "words": "x"}\n'
PROFILE = yaml.safe_dump(
    {"executor": "tilewright", "tilewright-accounts": "a*, b", "tilewright-cpu-share": 0.9,
     "tilewright-poll-seconds": 5}
)  # fmt: skip


def slurm(question: str) -> Make:
    """Return what makes a reader of what Slurm answers to a question."""
    more = {"sacct": ["CANCELLED by 0\n"], "sinfo": [ANSWERS["sinfo"]], "config": [CONFIG]}
    texts = [one[question] for one in RELEASES.values() if question in one]
    samples = [text.encode() for text in texts + more.get(question, [])]

    def use(data: bytes) -> None:
        text = data.decode(errors="replace")
        QUESTIONS[question](SlurmClient("ada", lambda argv, stdin=None: text))
        cause_of(text)

    return lambda _: Reader(samples, use, SlurmQueryError)


def record(name: str) -> Make:
    """Return what makes a reader of what runs write down of themselves."""
    use, path, lines = USES[name]

    def make(folder: Path) -> Reader:
        (folder / "placement").mkdir()
        reader = file(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines), use)
        return reader(folder / "placement")._replace(examples=40)

    return make


READERS: dict[str, Make] = {
    "profile": file("config.yaml", PROFILE.encode(), settings_of, PlacementError),
    **{f"slurm {name}": slurm(name) for name in QUESTIONS},
    **{f"record {name}": record(name) for name in USES},
    "record cause": file("a.log", CAUSE, lambda path: read_cause(last_line(str(path)))),
}
#: What took the place of words of a sample, or of all of it, when a reader did otherwise.
FOUND: dict[str, list[Words]] = {
    "profile": [
        (b"", b"!!timestamp x: 1\n"), (b"", b"a: " + b"[" * 1000), (b"", b"a: 2026-99-99\n"),
        (b"0.9", b"[]"), (b"0.9", b"2"), (b"0.9", b".nan"), (b"5", b"maybe"),
    ],
    "slurm use": [(b" User Limits=", b" User Limits=" + b"a " * 50_000)],
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_text_of_slurm_or_of_a_run_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(READERS[name](tmp_path), FOUND.get(name, ()), lambda: "".join(capsys.readouterr()))
