"""Lens distortion of one cycle as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.io.results.result_file import read_json, result_file_errors, write_result
from tilewright.kernels.tile_positions.distortion import Distortion

if TYPE_CHECKING:  # SciPy's spatial part and special functions, 80 ms in every job of stitch
    from tilewright.kernels.tile_positions.distortion_fit import DistortionFit

#: Names of Brown's terms in the file.
_TERMS = ("radial_px", "decentring_y_px", "decentring_x_px")


def write_distortion(path: Path, fit: DistortionFit | None) -> None:
    """Write a field, its errors and its test on held-out overlaps; px with 4 digits.

    ``used`` is whether positions and mosaics are corrected by it; without a fit it is the only key.
    """
    content: dict[str, object] = {"used": False}
    if fit is not None:
        lens = fit.distortion
        content = {
            "used": fit.used,
            "tile_shape_px": list(lens.shape),
            "meeting": [round(line, 6) for line in lens.meeting],
            "terms_px": dict(zip(_TERMS, _rounded(lens.terms_px.tolist()), strict=True)),
            "terms_sigma_px": dict(zip(_TERMS, _rounded(fit.terms_sigma_px.tolist()), strict=True)),
            "corner_px": round(lens.corner_px, 4),
            "held_out_px": dict(zip(("without", "with"), _rounded(fit.held_out_px), strict=True)),
            "held_out_z": [round(z, 2) for z in fit.held_out_z],
            "overlaps": fit.overlaps,
            "blocks": fit.blocks,
        }
    write_result(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _rounded(values: tuple[float, ...] | list[float]) -> list[float]:
    # + 0.0 turns -0.0 into 0.0, so that equal results are equal bytes.
    return [round(value, 4) + 0.0 for value in values]


def read_distortion(path: str | Path) -> Distortion | None:
    """Return the field by which positions were corrected, None where there is none.

    Raises
    ------
    ResultFileError
        The file is not what :func:`write_distortion` wrote.
    """
    with result_file_errors(path, "lens distortion"):
        content = read_json(path)
        if not content["used"]:
            return None
        radial, in_y, in_x = (float(content["terms_px"][name]) for name in _TERMS)
        height, width = (int(n) for n in content["tile_shape_px"])
        meet_y, meet_x = (float(line) for line in content["meeting"])
    return Distortion(radial, in_y, in_x, (height, width), (meet_y, meet_x))
