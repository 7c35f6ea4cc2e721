"""Displacements of overlapping tiles, lens distortion, and the positions they imply."""
