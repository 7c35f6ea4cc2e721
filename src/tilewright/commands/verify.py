"""``tilewright verify``: whether every file of results is what was written."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from snakemake_scheduler_plugin_tilewright import active_run, read_json_lines
from tilewright.config.layout import Layout
from tilewright.errors import ResultFileError
from tilewright.io.results.checksum_store import CHECKSUMS, ChecksumStore
from tilewright.io.results.result_file import compare_checksum
from tilewright.runtime.text import count, few, printable


@dataclass(frozen=True)
class Finding:
    """One line of what was found; the text of a warning or a problem ends with what to do."""

    state: Literal["ok", "warning", "problem"]
    text: str


def verify(results: Path) -> None:
    """Print what is damaged or missing in a folder of results; status 1 if something is."""
    findings = [*check_result_files(results)]
    for one in findings:
        typer.echo(printable(f"{one.state}: {one.text}"))
    raise SystemExit(int(any(one.state == "problem" for one in findings)))


def check_result_files(results: Path) -> Iterator[Finding]:
    """Yield what is damaged or missing in a folder of results, and a line about the rest."""
    layout, whole, unknown = Layout(str(results)), 0, list[str]()
    if where := active_run(layout.ledger):
        text = f"a run is active {where}: what it makes or removes now may look damaged"
        yield Finding("warning", f"{text}; look again when it has ended")
    errors = list[OSError]()
    for path in _outputs(layout, errors):
        try:
            if _compare(path):
                whole += 1
            else:
                unknown.append(str(path.relative_to(results)))
        except ResultFileError as error:
            yield Finding("problem", str(error))
        except OSError as error:
            yield Finding("problem", f"{path} cannot be read ({error.strerror}); make it readable")
    for unread in errors:
        text = f"{unread.filename} cannot be read ({unread.strerror}); make it readable"
        yield Finding("problem", text)
    if note := read_json_lines(layout.ledger).note:
        yield Finding("warning", f"{note}; the other lines count")
    if unknown:
        text = f"no checksums of {count(len(unknown), 'output')}: {few(unknown)}"
        yield Finding("warning", f"{text}; make them again, unless you wrote them yourself")
    if whole:
        yield Finding("ok", f"{count(whole, 'output')} in {results} as written")
    else:
        text = f"{results} holds no output with a checksum; name the folder `results` of a run"
        yield Finding("problem", text)


def _compare(path: Path) -> bool:
    """Compare an output with its checksums; return whether it has some."""
    if path.suffix != ".zarr":
        return compare_checksum(path)
    return (path / CHECKSUMS).is_file() and bool(ChecksumStore(path).crc32_below())


def _outputs(layout: Layout, errors: list[OSError]) -> Iterator[Path]:
    """Yield what rules wrote and what they should have: files, and folders of images."""
    skipped = {layout.logs, Path(layout.benchmark("", "")).parent, layout.ledger.parent}
    visited = set[Path]()
    for root, folders, files in os.walk(layout.results, onerror=errors.append, followlinks=True):
        folder = Path(root)
        if folder.resolve() in visited or folder in skipped:
            folders.clear()
            continue
        visited.add(folder.resolve())
        yield from (folder / name for name in sorted(folders) if name.endswith(".zarr"))
        folders[:] = [name for name in folders if not name.endswith(".zarr") and name[0] != "."]
        listed = {name[1:-4] for name in files if name[0] == "." and name.endswith(".sfv")}
        named = listed | {name for name in files if name[0] != "."}
        yield from (folder / name for name in sorted(named) if folder / name != layout.report_jobs)
