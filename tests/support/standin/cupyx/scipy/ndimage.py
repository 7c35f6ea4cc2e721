"""``scipy.ndimage`` under CuPy's name."""

from __future__ import annotations

from typing import Any

import scipy.ndimage


def __getattr__(name: str) -> Any:
    """Take every name from SciPy."""
    return getattr(scipy.ndimage, name)
