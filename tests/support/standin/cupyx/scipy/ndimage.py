"""``scipy.ndimage`` under CuPy's name."""

from scipy.ndimage import *  # noqa: F403
