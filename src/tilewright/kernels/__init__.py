"""Array-in, array-out kernels, written once for NumPy/SciPy and CuPy."""
