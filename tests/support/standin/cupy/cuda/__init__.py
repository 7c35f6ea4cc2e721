"""The part of ``cupy.cuda`` that asks whether there is a device."""

from .. import _pool as memory
from . import runtime

__all__ = ["is_available", "memory", "runtime"]


def is_available() -> bool:
    """Whether a device can be used; as CuPy's, it raises where CUDA itself is broken."""
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError as error:
        if runtime.NO_DEVICE not in error.args:
            raise
        return False
