"""Scenes with known truth, which no part of tilewright makes."""
