"""The rule ``deconvolve``: a mosaic z-stack, and the point spread function of a mosaic."""
