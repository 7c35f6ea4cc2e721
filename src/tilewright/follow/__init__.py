"""`tilewright follow`: which cycles are whole, runs of them, and what is told of their quality."""
