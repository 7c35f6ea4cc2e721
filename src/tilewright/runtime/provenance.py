"""What made each result, kept beside the results.

Snakemake keeps it in the working folder, by the path of a result as the configuration writes it:
after a move, in a copy or from another folder it finds nothing, and takes old results for right.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: No sample is called so.
_FOLDER = ".provenance"
#: Stands for the folder of results; no path begins with a brace.
_HERE = '"{results}/'


def keep_provenance(workflow: Any, results: str) -> None:
    """Let Snakemake keep its records of results in their folder, besides its own.

    Parameters
    ----------
    workflow : Workflow
        Snakemake's, before its DAG is built.
    results : str
        The folder of results, as paths of outputs begin.
    """
    prepare = workflow._prepare_dag

    def prepare_and_keep(*args: Any, **options: Any) -> None:
        prepare(*args, **options)
        store = workflow.persistence
        records = _Records(store, results)
        store._read_record, store._write_record = records.read, records.write
        store._delete_record = records.delete

    workflow._prepare_dag = prepare_and_keep


class _Records:
    """Records by output; those of results have a file each, in which paths are relative."""

    def __init__(self, store: Any, results: str) -> None:
        self._own_read, self._own_write = store._read_record, store._write_record
        self._own_delete = store._delete_record
        self._prefix, self._folder = f"{results}/", Path(results) / _FOLDER
        # as paths begin in JSON
        self._quoted = json.dumps(self._prefix)[:-1]
        self._known = dict(self._read_files())

    def _read_files(self) -> Iterator[tuple[str, Any]]:
        from snakemake.persistence import MetadataRecord

        for path in self._folder.rglob("*.json"):
            key = self._prefix + str(path.relative_to(self._folder)).removesuffix(".json")
            # A record that a kill cut short is left out: Snakemake's own counts then.
            with contextlib.suppress(ValueError):
                text = path.read_text("utf-8").replace(_HERE, self._quoted)
                record = MetadataRecord.model_validate_json(text)
                record.input = sorted(record.input or [])
                yield key, record

    def _file(self, key: str) -> Path:
        return self._folder / f"{key.removeprefix(self._prefix)}.json"

    def read(self, key: str) -> Any:
        """Return the record of an output, None where there is none."""
        return self._known.get(key) or self._own_read(key)

    def write(self, key: str, record: Any) -> None:
        """Write the record of an output."""
        self._own_write(key, record)
        self._keep(key, record)

    def _keep(self, key: str, record: Any) -> None:
        if key.startswith(self._prefix):
            self._known[key] = record
            path = self._file(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(dict(record.items())).replace(self._quoted, _HERE)
            path.write_text(text, "utf-8")

    def delete(self, key: str) -> bool:
        """Forget an output; return whether it was known."""
        known = self._known.pop(key, None) is not None
        if known:
            self._file(key).unlink(missing_ok=True)
        return bool(self._own_delete(key)) or known


def software_versions() -> dict[str, str]:
    """Return the versions of the packages that compute the pixels; absent ones are omitted."""
    versions = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
