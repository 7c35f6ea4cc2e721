"""Give the fake NVML library to a process that has this folder on ``PYTHONPATH``."""

import ctypes
import os

from fake_nvml_library import STATE, Library  # type: ignore[import-not-found, unused-ignore]

if STATE in os.environ:
    ctypes.CDLL = Library  # type: ignore[misc]
