"""Transforms on disk: an ``.npz`` with the arrays, a ``.json`` with quality numbers to read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.io.results.npz import read_npz, write_npz
from tilewright.io.results.result_file import result_file_errors, write_json
from tilewright.kernels.register.warp import Transform

_ARRAYS = ("affine", "field", "origin_px", "block_px", "confidence")


def write_transform(transform: Transform, npz_path: str | Path, json_path: str | Path) -> None:
    """Write a transform; the same transform gives the same bytes.

    Parameters
    ----------
    npz_path : Path
        Arrays of :class:`~tilewright.kernels.register.warp.Transform`, readable by ``numpy.load``;
        ``quality`` in it is the JSON text.
    json_path : Path
        The quality numbers and the affine part.
    """
    text = json.dumps(dict(transform.quality), sort_keys=True, allow_nan=False)
    arrays = {name: np.asarray(getattr(transform, name)) for name in _ARRAYS}
    arrays["quality"] = np.frombuffer(text.encode(), np.uint8)
    summary = dict(transform.quality) | {"affine": transform.affine.tolist()}
    write_json(Path(json_path), summary, indent=2, sort_keys=True)
    write_npz(Path(npz_path), arrays)


def read_transform(npz_path: str | Path) -> Transform:
    """Read a transform written by :func:`write_transform`.

    Raises
    ------
    ResultFileError
        The file is not a transform.
    """
    with result_file_errors(npz_path, "transform"):
        data = read_npz(npz_path)
        values: dict[str, Any] = {name: data[name] for name in _ARRAYS}
        quality = json.loads(data["quality"].tobytes())
    values["block_px"] = float(values["block_px"])
    return Transform(**values, quality=quality)
