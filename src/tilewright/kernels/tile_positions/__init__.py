"""Displacements of overlapping tiles, and the positions they imply."""
