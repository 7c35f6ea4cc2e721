"""The part of ``cupy.fft`` that holds plans."""

from . import config

__all__ = ["config"]
