"""Array-in, array-out kernels, written once for NumPy/SciPy and CuPy.

In examples ``cpu`` is what :func:`tilewright.kernels.backend.cpu_backend` returns, ``np`` is NumPy
and ``ndimage`` is SciPy's.
"""
