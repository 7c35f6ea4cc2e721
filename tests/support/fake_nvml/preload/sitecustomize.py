"""Give the fake NVML library to a process that has this folder on ``PYTHONPATH``."""

import os

if "FAKE_NVML_STATE" in os.environ:
    import pynvml
    from fake_nvml_library import FUNCTIONS  # type: ignore[import-not-found, unused-ignore]

    vars(pynvml).update(FUNCTIONS)
