"""SciPy's modules under the names that CuPy gives its own."""
