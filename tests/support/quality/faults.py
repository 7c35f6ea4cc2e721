"""Faults that are put into a copy of the small experiment.

Each runs again what depends on the damaged file and returns the quality stages to ask, with cycle
and channels. Tiles of raw data count by (row, col) from 0, those of tables as these list them: tile
4 is the middle one of both, whose name is 5.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.quality.workbench import BORDERS_PX, CHUNK_PX, CYCLES, Bench
from tilewright.io.results.checksum_store import ChecksumStore
from tilewright.io.results.illumination import Illumination
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.positions import Edges, read_edges, read_positions, write_table
from tilewright.io.results.transform import read_transform, write_transform
from tilewright.kernels.register.warp import Transform

Array = NDArray[Any]
Edit = Callable[[Array], Array]
Asked = list[tuple[str, int, tuple[str, ...]]]
Harm = Callable[[Bench], Asked]
EDF: Asked = [("edf", 1, ("2",))]
FINAL: Asked = [*EDF, ("image", 1, ("2",))]
REGISTERED: Asked = [("register", 2, ())]

# Raw tiles


def stitched(bench: Bench, cycle: int = 1, channel: str = "1", **options: Any) -> Asked:
    bench.stitch(cycle, channel, **options)
    return [("stitch", cycle, (channel,))]


def raw(cycle: int, channel: str, edit: Edit, tiles: Iterable[int] = range(9)) -> Harm:
    def harm(bench: Bench) -> Asked:
        bench.edit_raw(cycle, channel, edit, tiles)
        return stitched(bench, cycle, channel)

    return harm


def exchanged_tiles(first: int, second: int, both: bool) -> Harm:
    """Return a fault that puts the second tile in the place of the first, and back for ``both``."""

    def harm(bench: Bench) -> Asked:
        stacks = {tile: bench.stack(1, "1", tile) for tile in (first, second)}
        bench.edit_raw(1, "1", lambda _: stacks[second], [first])
        if both:
            bench.edit_raw(1, "1", lambda _: stacks[first], [second])
        return stitched(bench)

    return harm


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
    bench.edit_raw(2, "1", lambda stack: stack[:, :, ::-1])
    bench.positions(2)
    return [("tile_positions", 2, ()), *stitched(bench, 2)]


def plane(edit: Edit) -> Harm:
    """Return a fault of planes of cycle 1, channel 2, in every tile."""

    def harm(bench: Bench) -> Asked:
        asked = raw(1, "2", edit)(bench)
        bench.edf(1, "2")
        return [*asked, *EDF]

    return harm


def fourth_plane(edit: Callable[[Array], Any]) -> Harm:
    """Return a fault that changes the fourth plane of each stack (z, y, x)."""

    def changed(stack: Array) -> Array:
        out = stack.astype(float)
        out[3] = edit(out)
        return out

    return plane(changed)


def blank(stack: Array) -> Array:
    return np.random.default_rng(0).normal(100, 20, stack.shape)


def blurred(sigma_px: float) -> Edit:
    return lambda stack: ndimage.gaussian_filter(stack.astype(float), (0, sigma_px, sigma_px))


def incomplete_tile(bench: Bench) -> Asked:
    """Lose a plane of the middle tile, which the tiles table leaves out then."""
    bench.raw(1, "1", 4)[2].unlink()
    bench.leave_out(1, "5")
    bench.manifests()
    bench.positions(1)
    return [("tile_positions", 1, ()), *stitched(bench)]


def started_too_deep(bench: Bench) -> Asked:
    """Lose the first two planes of every stack."""
    for cycle, channel, tile in np.ndindex(2, 2, 9):
        paths = bench.raw(cycle + 1, str(channel + 1), tile)
        for old, new in zip(paths[2:], paths, strict=False):
            old.rename(new)
    bench.manifests()
    asked = stitched(bench, 1, "2")
    bench.edf(1, "2")
    return [*asked, *EDF]


# Illumination


def flat(edit: Edit = lambda flat: flat, dark: float = 0, **numbers: Any) -> Harm:
    """Return a fault of the illumination of cycle 1, channel 2."""

    def harm(bench: Bench) -> Asked:
        old, told = bench.fields(1, "2")
        new = Illumination.from_fields(edit(old.flat.astype(float)), old.dark + dark)
        bench.set_fields(1, "2", new, {**told, **numbers})
        return [("illumination", 1, ("2",)), *stitched(bench, 1, "2")]

    return harm


def vignette(flat: Array) -> Array:
    y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in flat.shape], indexing="ij")
    return np.asarray(1 - 0.47 * (x**2 + y**2))


def foreign_flat(bench: Bench) -> Asked:
    bench.set_fields(1, "2", *bench.fields(1, "1"))
    return [("illumination", 1, ("2",)), *stitched(bench, 1, "2")]


def estimated(edit: Edit, tiles: Iterable[int] = range(9)) -> Harm:
    """Return a fault of raw tiles of which the flat-field is estimated."""

    def harm(bench: Bench) -> Asked:
        bench.edit_raw(1, "2", edit, tiles)
        bench.illumination(1, "2")
        return [("illumination", 1, ("2",))]

    return harm


def tissue_in_two_tiles(bench: Bench) -> Asked:
    """Leave glass in seven of nine tiles, so that one overlap alone shows the flat-field."""
    rng = np.random.default_rng(0)
    glass = estimated(lambda stack: rng.normal(100, 3, stack.shape), [0, 1, 2, 5, 6, 7, 8])
    return glass(bench)


# Tile positions


def edges(edit: Callable[[Edges], object]) -> Harm:
    """Return a fault of the overlaps of cycle 1."""

    def harm(bench: Bench) -> Asked:
        table = read_edges(bench.path("edges"))
        edit(table)
        write_table(bench.path("edges"), table)
        return [("tile_positions", 1, ())]

    return harm


def given_up(edges: Edges) -> None:
    """Put the last eight overlaps 2.5 px from where the tiles are, as sure as they can be."""
    edges.dy_px[4:] += 2.5
    edges.accepted[4:] = False
    edges.log10_chance[4:] = -9.0


def positions(column: str, tiles: Iterable[int], value: float) -> Harm:
    """Return a fault that adds a value to a column of some tiles of cycle 1."""

    def harm(bench: Bench) -> Asked:
        table = read_positions(bench.path("positions"))
        for tile in tiles:
            getattr(table, column)[tile] += value
        write_table(bench.path("positions"), table)
        return [("tile_positions", 1, ()), *(stitched(bench) if column == "y_px" else [])]

    return harm


# Stacks


def mosaic(stage: str, edit: Edit, **attributes: Any) -> Harm:
    """Return a fault of what a stage made of cycle 1, channel 1."""

    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic(stage, 1, "1", edit, **attributes)
        return [(stage, 1, ("1",))]

    return harm


def black_tile(stack: Array) -> Array:
    out = stack.copy()
    out[:, 180:350, 180:350] = 0
    return out


def step(stack: Array) -> Array:
    out = stack.astype(float)
    out[:, :, 185:] = (out[:, :, 185:] - 100) * 1.2 + 100
    return out


def zero_chunk(stack: Array) -> Array:
    out = stack.copy()
    out[2, CHUNK_PX : 2 * CHUNK_PX, :CHUNK_PX] = 0
    return out


def glass(stack: Array) -> Array:
    """Leave tissue in a corner of 5 %."""
    out = np.random.default_rng(0).normal(180, 30, stack.shape)
    out[:, 180:300, 180:300] = stack[:, 180:300, 180:300]
    return out


def bright_rows(stack: Array) -> Array:
    """Brighten rows and columns of tiles more and more, from the middle of their overlaps."""
    out = stack.astype(float) - 100
    for border in BORDERS_PX:
        out[:, border:] *= 4
        out[:, :, border:] *= 4
    return np.asarray(out / 64 + 100)


def optics(stage: str, numerical_aperture: float) -> Harm:
    def harm(bench: Bench) -> Asked:
        getattr(bench, stage)(1, "1", numerical_aperture=numerical_aperture)
        return [(stage, 1, ("1",))]

    return harm


def dark_halos(bench: Bench) -> Asked:
    """Draw lone cells over haze, and dark halos around them after deconvolution."""
    size = bench.pixels("stitch", 1, "1").shape
    y, x = np.indices(size[1:]) % 64 - 32
    cells = 800 / (1 + np.exp((np.hypot(y, x) - 9) * 1.5))
    reach = ndimage.distance_transform_edt(cells <= 400)
    dark_ring = 200.0 * ((reach > 0) & (reach <= 4))
    noise = np.random.default_rng(0).normal(0, 20, size)
    bench.edit_mosaic("stitch", 1, "1", lambda _: (cells + 400) * 8 + 100 + noise)
    return mosaic("deconvolve", lambda _: np.broadcast_to((cells + 400 - dark_ring) * 8, size))(
        bench
    )


# In-focus planes and what is made of them


def in_focus(edit: Callable[[Array, Bench], Array]) -> Harm:
    """Return a fault of the in-focus plane (1, y, x) of cycle 1, channel 2."""

    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic("edf", 1, "2", lambda plane: edit(plane, bench))
        bench.assemble()
        return FINAL

    return harm


def wrong_plane(plane: Array, bench: Bench) -> Array:
    return np.asarray(np.maximum(bench.pixels("stitch", 1, "2")[:1].astype(float) - 100, 0))


def ringed(plane: Array, bench: Bench) -> Array:
    """Draw what the in-focus plane once had around debris: black out to 10 px, then a halo."""
    image = plane[0].astype(float)
    rest = image.copy()
    for _ in range(3):
        peak = np.unravel_index(rest.argmax(), rest.shape)
        own, _ = ndimage.label(image > 0.2 * image[peak])
        away = np.asarray(ndimage.distance_transform_edt(own != own[peak]))
        image[(away > 4) & (away <= 10)] = 0
        image[(away > 10) & (away <= 26)] *= 1.5
        rest[away < 90] = 0
    return np.asarray(image[None])


def foreign_plane(bench: Bench) -> Asked:
    bench.replace("edf", (1, "2"), (1, "1"))
    bench.assemble()
    return FINAL


def exchanged_in_cycle(bench: Bench) -> Asked:
    stacks = {c: bench.pixels("edf", 2, c) for c in ("1", "2")}
    bench.edit_mosaic("edf", 2, "1", lambda _: stacks["2"])
    bench.edit_mosaic("edf", 2, "2", lambda _: stacks["1"])
    bench.register()
    bench.assemble()
    return [*REGISTERED, ("image", 2, ("1", "2"))]


def exchanged_between_cycles(bench: Bench) -> Asked:
    one, two = (bench.pixels("edf", cycle, "2") for cycle in (1, 2))
    small = tuple(slice(0, min(a, b)) for a, b in zip(one.shape, two.shape, strict=True))

    def put(old: Array, new: Array) -> Array:
        out = old.copy()
        out[small] = new[small]
        return out

    bench.edit_mosaic("edf", 1, "2", lambda old: put(old, two))
    bench.edit_mosaic("edf", 2, "2", lambda old: put(old, one))
    bench.assemble()
    return [("image", cycle, ("2",)) for cycle in CYCLES]


def hazy_background(bench: Bench) -> Asked:
    """Take the stain of cycle 2 for a background that lost as much light as it has as haze."""
    light = float(bench.pixels("edf", 2, "2").mean())
    bench.edit_mosaic("edf", 2, "2", lambda plane: plane, haze_counts=light)
    bench.set_background({"CD3": "PanCK"})
    bench.assemble()
    return [("image", 1, ("2",))]


# Registration


def nuclei(edit: Edit) -> Harm:
    """Return a fault of the plane (1, y, x) by which cycle 2 is registered."""

    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic("edf", 2, "1", edit)
        bench.register()
        return REGISTERED

    return harm


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


def dim_noise(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).poisson(40, shape)


def transform(edit: Callable[[Transform], Transform]) -> Harm:
    def harm(bench: Bench) -> Asked:
        files = [bench.path(name, 2) for name in ("transform", "transform_json")]
        write_transform(edit(read_transform(files[0])), *files)
        return REGISTERED

    return harm


def shifted(y_px: float, x_px: float) -> Harm:
    move = np.array([[0, 0, y_px], [0, 0, x_px]])
    return transform(lambda t: dataclasses.replace(t, affine=t.affine + move))


def turned(transform: Transform) -> Transform:
    angle = np.deg2rad(0.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array([270.0, 270.0])
    linear = transform.affine[:, :2]
    centre = linear @ middle + transform.affine[:, 2]
    return dataclasses.replace(
        transform, affine=np.column_stack([turn @ linear, centre - turn @ linear @ middle])
    )


def torn(transform: Transform) -> Transform:
    field = transform.field.copy()
    field[1, 5, 5] = 40.0
    return dataclasses.replace(transform, field=field)


# The final image


def image(edit: Callable[[list[Any]], None], tiff: bool) -> Harm:
    """Return a fault of both levels of the final image; the OME-TIFF, too, if ``tiff``."""

    def harm(bench: Bench) -> Asked:
        path = bench.path("image_zarr")
        shutil.copytree(path, path.with_suffix(".own"))  # the original's are hard links
        shutil.rmtree(path)
        path.with_suffix(".own").rename(path)
        store = ChecksumStore(path)
        with zarr.config.set({"array.write_empty_chunks": True}):
            group = zarr.open_group(store, mode="r+")
            edit([group[str(k)] for k in range(2)])
        store.write_list()  # as if a rule had written it so
        if tiff:
            write_ome_tiff(path, bench.path("image_tiff"))
        return [("image", 1, ("1", "2"))]

    return harm


def wrong_order(levels: list[Any]) -> None:
    for level in levels:
        level[:2] = np.asarray(level[:2])[::-1]


def wrong_level(levels: list[Any]) -> None:
    levels[1][0] = np.asarray(levels[1][1])


def lost_chunk(levels: list[Any]) -> None:
    for k, level in enumerate(levels):
        level[0, (256 >> k) : (512 >> k), 0 : (256 >> k)] = 0
