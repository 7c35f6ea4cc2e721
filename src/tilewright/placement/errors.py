"""What stops a run before it starts."""


class PlacementError(RuntimeError):
    """A run cannot be placed; the message says why and how to mend it."""
