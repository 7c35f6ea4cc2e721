"""Measured comparisons with named peers; run one with ``python -m benchmarks.NAME``."""
