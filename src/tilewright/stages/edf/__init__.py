"""The rule ``edf_plane``: one in-focus plane from a mosaic z-stack.

Its methods, a row each, are here: the configuration reads them without NumPy.
"""

from typing import Literal, NamedTuple

Method = Literal["multiplane_wiener", "sum_projection", "focus_weighted"]


class MethodNeeds(NamedTuple):
    """What a method of the in-focus plane needs.

    Attributes
    ----------
    deconvolved : bool | None
        Whether the stack must be deconvolved, or must not; None: it may be either.
    psf : bool
        Whether it needs a PSF although nothing is deconvolved.
    """

    deconvolved: bool | None
    psf: bool

    def takes(self, *, deconvolved: bool) -> bool:
        """Return whether a stack that was deconvolved, or was not, can be projected."""
        return self.deconvolved in (None, deconvolved)


#: What plans each is in ``stages.edf.projections._PLANNERS``.
METHODS: dict[Method, MethodNeeds] = {
    "multiplane_wiener": MethodNeeds(deconvolved=False, psf=True),
    "sum_projection": MethodNeeds(deconvolved=True, psf=False),
    "focus_weighted": MethodNeeds(deconvolved=None, psf=False),
}
