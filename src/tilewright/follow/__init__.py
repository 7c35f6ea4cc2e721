"""`tilewright follow`: which cycles are complete, runs of them, and new verdicts."""
