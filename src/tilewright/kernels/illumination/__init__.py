"""Flat-field and camera offset from the tiles themselves."""
