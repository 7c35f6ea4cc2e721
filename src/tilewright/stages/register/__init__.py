"""The rules ``register`` and ``assemble``: transforms of cycles, and the final image."""
