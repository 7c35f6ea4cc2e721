"""Array libraries of this environment that could compute on a GPU; none is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions

#: Distributions of each library; where the name itself tells, whether it is built for CUDA.
_NAMES: dict[str, dict[str, bool | None]] = {
    "CuPy": {
        "cupy-cuda11x": True,
        "cupy-cuda12x": True,
        "cupy-cuda13x": True,
        "cupy-rocm-5-0": False,
        "cupy": None,
    },
    "PyTorch": {"torch": None},
    "TensorFlow": {"tensorflow": None, "tensorflow-cpu": False, "tensorflow-rocm": False},
    "JAX": {"jax": None},
}
#: JAX reaches GPUs through a plugin, a distribution of its own.
_JAX_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")


@dataclass(frozen=True, slots=True)
class Library:
    """An installed array library.

    Attributes
    ----------
    name : str
        ``CuPy``, ``PyTorch``, ``TensorFlow`` or ``JAX``.
    version : str
    cuda : bool or None
        Whether the build is for CUDA; None where its metadata does not say.
    """

    name: str
    version: str
    cuda: bool | None


def installed_libraries(path: Sequence[str] | None = None) -> tuple[Library, ...]:
    """Return the libraries that are installed, from their metadata.

    Parameters
    ----------
    path : sequence of str, optional
        Folders to look in; ``sys.path`` without.
    """
    found: dict[str, Distribution] = {}
    for distribution in distributions(path=list(sys.path if path is None else path)):
        # the first on the path is the one that an import would find
        found.setdefault(_plain(distribution.metadata["Name"] or ""), distribution)
    return tuple(
        Library(library, found[name].version, _for_cuda(name, told, found))
        for library, names in _NAMES.items()
        for name, told in names.items()
        if name in found
    )


def _for_cuda(name: str, told: bool | None, found: dict[str, Distribution]) -> bool | None:
    if told is not None:
        return told
    if name == "jax":
        return any(plugin in found for plugin in _JAX_PLUGINS)
    local = found[name].version.partition("+")[2]
    if local:
        return local.startswith("cu")
    # wheels for CUDA bring its libraries as distributions of their own
    needs = {_plain(_first_word(line)) for line in found[name].requires or ()}
    return True if any(need.startswith("nvidia-") and need in found for need in needs) else None


def _first_word(requirement: str) -> str:
    """Return the name that a requirement such as ``nvidia-nccl-cu12==2.21; extra`` begins with."""
    for end, letter in enumerate(requirement):
        if not (letter.isalnum() or letter in "-_."):
            return requirement[:end]
    return requirement


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
