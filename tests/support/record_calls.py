"""Write the table of what kernels ask of a device: ``python -m tests.support.record_calls``.

It runs every test that uses the guarded backend, in one process, and takes some minutes.
"""

import json
import os

import pytest

from tests.support.device_calls import DEVICE_ONLY, RECORDING, TABLE, seen, table


class OnlyGuarded:
    """Of all tests, those that use the guarded backend."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        guarded = {"guarded", "other"}  # the second: tests/conftest.py
        items[:] = [item for item in items if guarded & {*getattr(item, "fixturenames", ())}]


if __name__ == "__main__":
    os.environ[RECORDING] = "1"
    status = pytest.main(["-n", "0", "-q", "tests"], [OnlyGuarded()])
    if status == pytest.ExitCode.OK:
        calls = seen | {n: kinds for n, kinds in table().items() if n.startswith(DEVICE_ONLY)}
        parts = [
            f" {json.dumps(name)}: [\n  " + ",\n  ".join(sorted(kinds)) + "\n ]"
            for name, kinds in sorted(calls.items())
        ]
        TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        print(f"{sum(map(len, calls.values()))} kinds of calls in {TABLE}")
    raise SystemExit(status)
