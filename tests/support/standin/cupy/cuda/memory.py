"""The part of ``cupy.cuda.memory`` that says that there is none."""

from .._pool import OutOfMemoryError

__all__ = ["OutOfMemoryError"]
