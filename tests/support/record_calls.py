"""Write the table of what kernels ask of a device: ``python -m tests.support.record_calls``.

It runs every test that uses the guarded backend, in one process, and takes some minutes.
"""

from __future__ import annotations

import os

import pytest

from tests.support import device_calls


class OnlyGuarded:
    """Of all tests, those that use the guarded backend."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "guarded" in getattr(item, "fixturenames", ())]


def main() -> int:
    """Run the guarded tests, write the table where they pass, and return their status."""
    os.environ[device_calls.RECORDING] = "1"
    folders = [f"tests/{name}" for name in ("kernels", "stages", "benchmarks", "devices")]
    status = pytest.main(["-n", "0", "-q", *folders], [OnlyGuarded()])
    if status == pytest.ExitCode.OK:
        print(f"{device_calls.write_table()} kinds of calls in {device_calls.TABLE}")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
