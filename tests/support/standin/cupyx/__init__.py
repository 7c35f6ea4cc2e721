"""Not CuPy's ``cupyx``: SciPy under its name, for tests on machines without a GPU."""
