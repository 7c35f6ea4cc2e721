"""Faults that are put into a copy of the small experiment.

Each runs again what depends on the damaged file and returns the quality stages to ask, with cycle
and channels. Tiles of raw data count by (row, col) from 0, those of tables as these list them: tile
4 is the middle one of both, whose name is 5.
"""

from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec

import numpy as np
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.quality.workbench import SAMPLE, Bench
from tilewright.io.results.positions import Edges, read_edges, write_table

Array = NDArray[Any]
Edit = Callable[[Array], Array]
Asked = list[tuple[str, int, tuple[str, ...]]]
Harm = Callable[[Bench], Asked]
P = ParamSpec("P")
EDF: Asked = [("edf", 1, ("2",))]
REGISTERED: Asked = [("register", 2, ())]


def fault(harm: Callable[Concatenate[Bench, P], Asked]) -> Callable[P, Harm]:
    """Return a function that returns the fault of arguments: what does it to a bench."""

    def of(*args: P.args, **kwargs: P.kwargs) -> Harm:
        return lambda bench: harm(bench, *args, **kwargs)

    return of


# Raw tiles


def stitched(bench: Bench, cycle: int = 1, channel: str = "1", **options: Any) -> Asked:
    bench.stitch(cycle, channel, **options)
    return [("stitch", cycle, (channel,))]


@fault
def raw(
    bench: Bench, cycle: int, channel: str, edit: Edit, tiles: Iterable[int] = range(9)
) -> Asked:
    bench.edit_raw(cycle, channel, edit, tiles)
    bench.calibrate(cycle)
    return stitched(bench, cycle, channel)


@fault
def exchanged_tiles(bench: Bench, first: int, second: int, both: bool) -> Asked:
    """Put the second tile in the place of the first, and with ``both`` the first in its place."""
    stacks = {tile: bench.stack(1, "1", tile) for tile in (first, second)}
    bench.edit_raw(1, "1", lambda _: stacks[second], [first])
    if both:
        bench.edit_raw(1, "1", lambda _: stacks[first], [second])
    bench.calibrate(1)
    return stitched(bench)


def dimmed(share: float) -> Edit:
    return lambda stack: np.asarray((stack.astype(float) - 100) * share + 100)


def magnified(factor: float) -> Edit:
    """Return a lens that magnifies each plane about its middle."""

    def magnify(stack: Array) -> Array:
        middle = (np.array(stack.shape[1:]) - 1) / 2
        planes = [
            ndimage.affine_transform(
                plane.astype(float), np.eye(2) / factor, middle - middle / factor, mode="nearest"
            )
            for plane in stack
        ]
        return np.stack(planes)

    return magnify


def mirrored_cycle(bench: Bench) -> Asked:
    bench.edit_raw(2, "1", lambda stack: stack[:, :, ::-1], check_pixels=True)
    bench.calibrate(2)
    return [("tile_positions", 2, ()), *stitched(bench, 2)]


@fault
def fourth_plane(bench: Bench, edit: Callable[[Array], Any]) -> Asked:
    """Change the fourth plane of each stack (z, y, x) of cycle 1, channel 2."""

    def changed(stack: Array) -> Array:
        out = stack.astype(float)
        out[3] = edit(out)
        return out

    asked = raw(1, "2", changed)(bench)
    bench.edf(1, "2")
    return [*asked, *EDF]


def blank(stack: Array) -> Array:
    return np.random.default_rng(0).normal(100, 20, stack.shape)


def blurred(sigma_px: float) -> Edit:
    return lambda stack: ndimage.gaussian_filter(stack.astype(float), (0, sigma_px, sigma_px))


def few_photons(bench: Bench) -> Asked:
    rng = np.random.default_rng(0)

    def edit(stack: Array) -> Array:
        light = rng.poisson(np.maximum(stack.astype(float) - 100, 0) / 10000) * 30.0
        return np.asarray(light + rng.normal(100, 3, stack.shape))

    raw(1, "2", edit)(bench)
    bench.edf(1, "2")
    return EDF


def incomplete_tile(bench: Bench) -> Asked:
    """Lose a plane of the middle tile, which the tiles table leaves out then."""
    bench.raw(1, "1", 4)[2].unlink()
    bench.edit_rows("tiles.csv", leave_out)
    bench.manifests(1, pixels=False)
    bench.calibrate(1)
    return [("tile_positions", 1, ()), *stitched(bench)]


def leave_out(row: dict[str, str]) -> dict[str, str]:
    return {"use": "0"} if (row["cycle"], row["tile"]) == ("1", "5") else {}


def started_too_deep(bench: Bench) -> Asked:
    """Lose the first two planes of every stack."""
    for cycle, channel, tile in np.ndindex(2, 2, 9):
        paths = bench.raw(cycle + 1, str(channel + 1), tile)
        for old, new in zip(paths[2:], paths, strict=False):
            old.rename(new)
    bench.manifests(pixels=False)
    asked = stitched(bench, 1, "2")
    bench.edf(1, "2")
    return [*asked, *EDF]


# Illumination


@fault
def estimated(bench: Bench, edit: Edit, tiles: Iterable[int] = range(9)) -> Asked:
    """Change raw tiles of which the flat-field is estimated."""
    bench.edit_raw(1, "2", edit, tiles)
    bench.calibrate(1)
    return [("illumination", 1, ("2",))]


def offset_too_high(bench: Bench) -> Asked:
    """Tell a camera offset that is 150 counts too high."""
    bench.calibrate(1, offset_counts=250.0)
    stitched(bench, 1, "2")
    bench.edf(1, "2")
    return [("illumination", 1, ("2",)), ("stitch", 1, ("2",)), *EDF]


def tissue_in_two_tiles(bench: Bench) -> Asked:
    """Leave glass in seven of nine tiles, so that one overlap alone shows the flat-field."""
    rng = np.random.default_rng(0)
    glass = estimated(lambda stack: rng.normal(100, 3, stack.shape), [0, 1, 2, 5, 6, 7, 8])
    return glass(bench)


def by_file_of_another_lens(bench: Bench) -> Asked:
    """Correct with a flat-field file of the user's that falls off to a third in the corners."""
    flat = np.asarray(bench.fields(1, "2")[0].flat)
    y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in flat.shape], indexing="ij")
    path = bench.run.folder / "flat.tif"
    tifffile.imwrite(path, (1 - 0.33 * (x**2 + y**2)).astype(np.float32))
    bench.calibrate(1, method="file", flat_file=path)
    return [("illumination", 1, ("2",))]


# Tile positions


def blurred_tiles(bench: Bench) -> Asked:
    """Take two rows of tiles out of focus in the channel by which tiles are placed."""
    bench.edit_raw(1, "1", blurred(12), range(3, 9))
    bench.calibrate(1)
    return [("tile_positions", 1, ())]


@fault
def edges(bench: Bench, edit: Callable[[Edges], object]) -> Asked:
    """Change the overlaps of cycle 1."""
    table = read_edges(bench.path("edges"))
    edit(table)
    write_table(bench.path("edges"), {SAMPLE: table})
    return [("tile_positions", 1, ())]


def given_up(edges: Edges) -> None:
    """Put the last eight overlaps 2.5 px from where the tiles are, as sure as they can be."""
    edges.dy_px[4:] += 2.5
    edges.accepted[4:] = False
    edges.log10_chance[4:] = -9.0


# Stacks


@fault
def optics(bench: Bench, stage: str, numerical_aperture: float) -> Asked:
    getattr(bench, stage)(1, "1", numerical_aperture=numerical_aperture)
    return [(stage, 1, ("1",))]


# In-focus planes and what is made of them


def exchanged_in_cycle(bench: Bench) -> Asked:
    stacks = {c: bench.pixels("edf", 2, c) for c in ("1", "2")}
    bench.edit_plane(2, "1", lambda _: stacks["2"])
    bench.edit_plane(2, "2", lambda _: stacks["1"])
    bench.register()
    return REGISTERED


def stained_background(bench: Bench) -> Asked:
    """Take the stain of cycle 2 for a background."""
    bench.set_background({"CD3": "PanCK"})
    bench.assemble()
    return [("subtract", 1, ("2",))]


# Registration


@fault
def nuclei(bench: Bench, edit: Edit) -> Asked:
    """Change the plane (1, y, x) by which cycle 2 is registered."""
    bench.edit_plane(2, "1", edit)
    bench.register()
    return REGISTERED


def negative(plane: Array) -> Array:
    return np.asarray(np.maximum(np.percentile(plane, 99.5) - plane.astype(float), 0))


def let_through(bench: Bench) -> Asked:
    bench.run.edit(registration={"allow_unregistered": [2]})
    return nuclei(negative)(bench)


def cut_off(share: float, rest: Callable[[tuple[int, ...]], Array] = np.zeros) -> Edit:
    """Return a change that puts something else beyond a share of the width."""

    def cut(plane: Array) -> Array:
        out = plane.copy()
        gone = out[:, :, int(plane.shape[2] * share) :]
        gone[:] = rest(gone.shape)
        return out

    return cut


def folded(plane: Array) -> Array:
    """Lay a piece of the section upside down over the rest."""
    out = plane.copy()
    out[:, 120:400, 120:400] = plane[:, 120:400, 120:400][:, ::-1, ::-1]
    return out


def wavy(plane: Array) -> Array:
    """Bend the section to and fro by 6 px within 90 px."""
    y, x = np.indices(plane.shape[1:], dtype=float)
    at = [y + 6 * np.sin(x * 0.07), x + 6 * np.sin(y * 0.07)]
    return np.asarray(ndimage.map_coordinates(plane[0].astype(float), at, order=1)[None])


def dim_noise(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).poisson(40, shape)
