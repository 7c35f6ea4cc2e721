"""The table of what kernels ask of a device: kinds of calls, and where CuPy answers otherwise.

The kinds are those of ``tests/kernels/cupy_calls.json``. A test demands a row for each name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).parent.parent / "tests/kernels/cupy_calls.json"


class Row(NamedTuple):
    """Names that belong together, how CuPy differs, and what keeps results the same."""

    what: str
    names: str
    differs: str
    kept: str


_GUARD = "the guard refuses"
#: The first row whose names fit is a call's.
ROWS = (
    Row("indices", r"array\.__[gs]etitem__|xp\.take",
        "An index out of bounds is wrapped, no error. Of a place set twice any value stays. One "
        "mask at most. A single element is a view.",
        f"{_GUARD} all three, and its single elements are views"),
    Row("casts", r"array\.astype",
        "A float that the integer cannot hold, or NaN, becomes another number.", _GUARD),
    Row("scalars", r"array\.__(float|int|bool|iter)__",
        "Each waits for the device. There is no `__index__`: no bound of a slice, no `range`, no "
        "place in a list; no format.", "the guard has none"),
    Row("sums by place", r"xp\.bincount",
        "Weights are added in any order, so the last bits change from run to run.",
        f"{_GUARD} weights that are not whole numbers; shares are counted in parts of 2⁻²⁰"),
    Row("reductions and products",
        r"(xp|array)\.(sum|mean|std|max|min|all|any|argmax|count_nonzero|cumsum|einsum|matmul)|"
        r"array\.__matmul__",
        "Float32 is added in another order, the same in each run. Results are arrays of no "
        "dimension. Dtypes and the first of equal maxima as in NumPy. TF32 is off.",
        "tolerances; scores are rounded before they are compared"),
    Row("order statistics", r"xp\.(percentile|median|sort)",
        "`percentile` has five of NumPy's methods (not `weibull`, `inverted_cdf` …) and computes "
        "in the dtype that its argument and `q` share. A sort is `stable`, also by default.",
        f"the binding looks for the method; {_GUARD} other kinds, and sorts stably"),
    Row("transforms", r"fft\..*",
        "A spectrum of no real image has no defined inverse (`irfft2`): the highest frequencies "
        "after a spectrum is cut. Plans take memory. Float32 stays float32. No `workers`.",
        f"{_GUARD} such spectra; the highest frequencies are set to 0"),
    Row("resampling", r"ndimage\.map_coordinates",
        "The pixel is found in the image's precision, the fraction in the position's: just below a "
        "pixel the next one is read. Taps beyond the border count otherwise with `constant`.",
        f"{_GUARD} such positions; the image is padded by 2 px; tolerances"),
    Row("filters", r"ndimage\..*",
        "Weights and sums of float32 images are float32, SciPy's float64. It has all modes used.",
        "the binding looks for the mode; tolerances"),
    Row("padding and shapes",
        r"xp\.(pad|concatenate|stack|roll|moveaxis|swapaxes|expand_dims|broadcast_to)|"
        r"array\.(reshape|ravel|transpose|copy)",
        "`pad` has all modes used. What `broadcast_to` gives may be written to. Strides of results "
        "may differ.", "on the guard such writing fails; nothing depends on strides"),
    Row("arithmetic and choices",
        r"array\.__.*__|array\.conj|xp\.(abs|conj|divide|exp|floor|isfinite|log|maximum|minimum|"
        r"multiply|rint|sign|sqrt|square|subtract|clip|where|round|nan_to_num)",
        "Dtypes as in NumPy 2 (NEP 50), also of Python's scalars. No lists. The last bit of `exp`, "
        "`log` and powers.",
        f"the binding compares the dtype of each kind; {_GUARD} lists; tolerances"),
    Row("arrays made and moved",
        r"xp\.(empty|zeros|ones|full|arange|meshgrid|asarray|ascontiguousarray|asnumpy)(_like)?",
        "No arrays of objects, text or long doubles. None of the host's in a call.", _GUARD),
    Row("memory, devices, plans", r"xp\.(cuda|get_default|fft\.config).*",
        "CuPy alone has them.", "the stand-in has them, with limits and failures"),
    Row("dtypes and attributes", r"xp\.(complex64|u?int\d+|float\d+)|"
        r"array\.(T|dtype|imag|ndim|real|shape|size)", "None.", "—"),
)  # fmt: skip


def row_of(name: str) -> str:
    """Return the row of a name.

    >>> row_of("fft.rfft2"), row_of("array.__add__")
    ('transforms', 'arithmetic and choices')
    """
    return next(row.what for row in ROWS if re.fullmatch(row.names, name))


def rows() -> list[tuple[str, ...]]:
    """Return the lines of the table, with its head and the sum."""
    calls = json.loads(TABLE.read_text(encoding="utf-8"))
    counts = dict.fromkeys((row.what for row in ROWS), 0)
    for name, kinds in calls.items():
        counts[row_of(name)] += len(kinds)
    body = [(row.what, str(counts[row.what]), row.differs, row.kept) for row in ROWS]
    return [
        ("Calls", "Kinds", "How CuPy differs", "What keeps results the same"),
        *body,
        ("**all, bound to CuPy**", f"**{sum(counts.values())}**", "", ""),
    ]
