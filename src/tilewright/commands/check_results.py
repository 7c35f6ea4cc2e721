"""``tilewright doctor RESULTS``: whether every file of results is what was written."""

import os
from collections.abc import Iterator
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import Check, ok, problem, problem_from, warning
from tilewright.config.layout import Layout
from tilewright.errors import ResultFileError
from tilewright.io.results.checked_store import CHECKSUMS, CheckedStore
from tilewright.io.results.result_file import check_file, checksum_path
from tilewright.runtime.json_lines import read_json_lines
from tilewright.runtime.text import count, few

_ABOUT = "results"


def check_results(results: Path) -> Iterator[Check]:
    """Yield what is damaged or missing in a folder of results, and a line about the rest."""
    layout, whole, unknown = Layout(str(results)), 0, list[str]()
    for path in _outputs(layout):
        is_image = path.suffix == ".zarr"
        try:
            if not (path / CHECKSUMS if is_image else checksum_path(path)).is_file():
                unknown.append(str(path.relative_to(results)))
                continue
            if is_image:
                CheckedStore(path, read_only=True).checked_files()
            else:
                check_file(path)
            whole += 1
        except (ResultFileError, OSError) as error:
            yield problem_from(_ABOUT, error, f"run snakemake again, or look why {path} is so")
    for record in (layout.ledger, layout.device_evidence, layout.follow_record):
        if note := read_json_lines(record).note:
            yield warning(_ABOUT, note, "nothing: other lines count")
    if unknown:
        text = f"no checksums of {count(len(unknown), 'file or image')}: {few(unknown)}"
        yield warning(_ABOUT, text, "nothing, if an earlier version wrote them")
    if whole:
        yield ok(_ABOUT, f"{count(whole, 'file or image')} in {results} as they were written")
    elif not unknown:
        yield problem(_ABOUT, f"{results} holds no results", "name the folder `results` of a run")


def _outputs(layout: Layout) -> Iterator[Path]:
    """Yield what rules wrote and what they should have: files, and folders of images."""
    skipped = {layout.logs, Path(layout.benchmark("", "")).parent, layout.ledger.parent}
    for root, folders, files in os.walk(layout.results):
        folder = Path(root)
        yield from (folder / name for name in sorted(folders) if name.endswith(".zarr"))
        folders[:] = sorted(
            name
            for name in folders
            if not name.endswith(".zarr") and name[0] != "." and folder / name not in skipped
        )
        listed = {name[1:-4] for name in files if name[0] == "." and name.endswith(".sfv")}
        named = {name for name in files if name[0] != "."}
        yield from (folder / name for name in sorted(listed | named))
