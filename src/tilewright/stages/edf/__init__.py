"""The rule ``edf_plane``: one in-focus plane from a mosaic z-stack."""
