"""The methods of the in-focus plane: a row of one table each.

The configuration reads it too, without NumPy; what plans a method is in
``stages.edf.plane._PLANNERS``.
"""

from typing import Literal, NamedTuple

Method = Literal["multiplane_wiener", "sum_projection", "focus_weighted"]


class MethodNeeds(NamedTuple):
    """What a method of the in-focus plane needs.

    Attributes
    ----------
    deconvolved : bool or None
        Whether the stack must be deconvolved, or must not be; None: it may be either.
    psf : bool
        Whether it needs a PSF, computed or measured, although nothing is deconvolved.
    by_chunk : bool
        Projected chunk by chunk; else in tiles of its own. The cost of the rule follows.
    """

    deconvolved: bool | None
    psf: bool
    by_chunk: bool

    def takes(self, *, deconvolved: bool) -> bool:
        """Return whether a stack that was deconvolved, or was not, can be projected."""
        return self.deconvolved in (None, deconvolved)


METHODS: dict[Method, MethodNeeds] = {
    "multiplane_wiener": MethodNeeds(deconvolved=False, psf=True, by_chunk=False),
    "sum_projection": MethodNeeds(deconvolved=True, psf=False, by_chunk=True),
    "focus_weighted": MethodNeeds(deconvolved=None, psf=False, by_chunk=True),
}
