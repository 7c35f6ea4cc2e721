from __future__ import annotations

import pytest

from tilewright.kernels.backend import Backend


@pytest.fixture(params=["guarded", pytest.param("gpu", marks=pytest.mark.gpu)])
def other(request: pytest.FixtureRequest) -> Backend:
    """The pretended device, and a GPU where there is one."""
    backend: Backend = request.getfixturevalue(request.param)
    return backend
