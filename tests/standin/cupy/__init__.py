"""Not CuPy: NumPy under CuPy's name, for tests on machines without a GPU.

With the folder above on ``PYTHONPATH`` a process takes the GPU's way through the program
(choice of device, its checks, its failures) while the CPU computes. It says nothing about
speed, memory of a device or rounding on one. It counts as devices what
``CUDA_VISIBLE_DEVICES`` lists, so a job that Slurm gave no GPU finds none.
"""

from __future__ import annotations

from typing import Any

import numpy

from . import cuda

__all__ = ["cuda"]
__version__ = "0+standin"


def __getattr__(name: str) -> Any:
    """Take every other name from NumPy."""
    return getattr(numpy, name)
