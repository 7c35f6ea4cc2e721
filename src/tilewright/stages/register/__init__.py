"""The rules ``register``, ``resample`` and ``assemble``: transforms of cycles, final image."""
