"""Synthetic tissue with known truth, and a microscope that images it."""
