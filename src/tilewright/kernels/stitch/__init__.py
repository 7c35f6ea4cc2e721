"""Fusing tiles into a mosaic, and whether they agree where they overlap."""
