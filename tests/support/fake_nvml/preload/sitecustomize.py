"""Give the fake answers of NVML to a process that has this folder on ``PYTHONPATH``."""

import os

if "FAKE_NVML_STATE" in os.environ:
    import fake_nvml_library  # type: ignore[import-not-found, unused-ignore]

    fake_nvml_library.install()
