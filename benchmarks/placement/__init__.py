"""Placement beside three baselines and the best known schedule, on random clusters."""
