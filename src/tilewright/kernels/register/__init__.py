"""Transforms between cycles: found, refined, applied; and subtraction of a background cycle."""
