"""Faults that are put into a copy of the small experiment.

Each runs again what depends on the damaged file and returns the quality stages to ask, with cycle
and channels. Tiles count by (row, col) from 0: tile 4 is row 1 column 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.quality.workbench import CHUNK_PX, CYCLES, Bench
from tilewright.io.results.illumination import Illumination, write_illumination
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.positions import read_positions, write_table
from tilewright.io.results.transform import read_transform, write_transform
from tilewright.kernels.register.warp import Transform

Array = NDArray[Any]
Asked = list[tuple[str, int, tuple[str, ...]]]
Harm = Callable[[Bench], Asked]


def stitched(bench: Bench, cycle: int = 1, channel: str = "1", **options: Any) -> Asked:
    bench.stitch(cycle, channel, **options)
    return [("stitch", cycle, (channel,))]


def moved_tile(bench: Bench) -> Asked:
    path = bench.path("positions")
    positions = read_positions(path)
    positions.y_px[4] += 3
    path.unlink()
    write_table(path, positions)
    return [("tile_positions", 1, ()), *stitched(bench)]


def swapped_tiles(bench: Bench) -> Asked:
    stacks = [bench.stack(1, "1", tile) for tile in (4, 5)]
    bench.edit_raw(1, "1", lambda _: stacks[1], [4])
    bench.edit_raw(1, "1", lambda _: stacks[0], [5])
    return stitched(bench)


def copied_tile(bench: Bench) -> Asked:
    other = bench.stack(1, "1", 0)
    bench.edit_raw(1, "1", lambda _: other, [4])
    return stitched(bench)


def dimmed(stack: Array, share: float) -> Array:
    return np.asarray((stack.astype(float) - 100) * share + 100)


def dim_tile(bench: Bench) -> Asked:
    bench.edit_raw(1, "1", lambda stack: dimmed(stack, 0.7), [4])
    return stitched(bench)


def mirrored_cycle(bench: Bench) -> Asked:
    bench.edit_raw(2, "1", lambda stack: stack[:, :, ::-1])
    bench.positions(2)
    return [("tile_positions", 2, ()), *stitched(bench, 2)]


def plane(edit: Callable[[Array], Array]) -> Harm:
    """Return a fault of planes of cycle 1, channel 2, in every tile."""

    def harm(bench: Bench) -> Asked:
        bench.edit_raw(1, "2", edit)
        asked = stitched(bench, 1, "2")
        bench.deconvolve(1, "2")
        bench.edf(1, "2")
        return [*asked, ("deconvolve", 1, ("2",)), ("edf", 1, ("2",))]

    return harm


def set(stack: Array, z: int, plane: Array) -> Array:
    out = stack.astype(float)
    out[z] = plane
    return out


def flat(edit: Callable[[Array], Array], dark: float = 0) -> Harm:
    """Return a fault of the illumination of cycle 1, channel 2."""

    def harm(bench: Bench) -> Asked:
        old = bench.fields(1, "2")
        paths = bench.path("illumination", 1, "2")
        for name in ("flat", "dark"):
            bench.path(name, 1, "2").unlink()
        new = Illumination.from_fields(edit(old.flat.astype(float)), old.dark + dark)
        json = bench.path("illumination_json", 1, "2").read_bytes()
        bench.path("illumination_json", 1, "2").unlink()
        write_illumination(paths, new, {})
        bench.path("illumination_json", 1, "2").write_bytes(json)
        return [("illumination", 1, ("2",)), *stitched(bench, 1, "2")]

    return harm


def foreign_flat(bench: Bench) -> Asked:
    for name in ("flat", "dark", "illumination_json"):
        bench.replace(name, (1, "2"), (1, "1"))
    return [("illumination", 1, ("2",)), *stitched(bench, 1, "2")]


def raw(cycle: int, channel: str, edit: Callable[[Array], Array]) -> Harm:
    def harm(bench: Bench) -> Asked:
        bench.edit_raw(cycle, channel, edit)
        return stitched(bench, cycle, channel)

    return harm


def blank(stack: Array) -> Array:
    return np.random.default_rng(0).normal(100, 20, stack.shape)


def mosaic(edit: Callable[[Array], Array]) -> Harm:
    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic("stitch", 1, "1", edit)
        return [("stitch", 1, ("1",))]

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


def wrong_psf(bench: Bench) -> Asked:
    bench.deconvolve(1, "1", numerical_aperture=0.25)
    return [("deconvolve", 1, ("1",))]


def wrong_optics(bench: Bench) -> Asked:
    bench.edf(1, "1", numerical_aperture=0.25)
    return [("edf", 1, ("1",))]


def more_light(bench: Bench) -> Asked:
    bench.edit_mosaic("deconvolve", 1, "1", lambda stack: stack * np.float32(2.5))
    return [("deconvolve", 1, ("1",))]


def edf(edit: Callable[[Array], Array]) -> Harm:
    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic("edf", 1, "2", edit)
        bench.assemble()
        return [("edf", 1, ("2",)), ("image", 1, ("2",))]

    return harm


def wrong_plane(bench: Bench) -> Asked:
    stack = bench.pixels("stitch", 1, "2").astype(float) - 100
    bench.edit_mosaic("edf", 1, "2", lambda _: np.maximum(stack[:1], 0))
    bench.assemble()
    return [("edf", 1, ("2",)), ("image", 1, ("2",))]


def foreign_plane(bench: Bench) -> Asked:
    bench.replace("edf", (1, "2"), (1, "1"))
    bench.assemble()
    return [("edf", 1, ("2",)), ("image", 1, ("2",))]


def transform(edit: Callable[[Transform], Transform]) -> Harm:
    def harm(bench: Bench) -> Asked:
        path = bench.path("transform", 2)
        new = edit(read_transform(path))
        for name in ("transform", "transform_json"):
            bench.path(name, 2).unlink()
        write_transform(new, path, bench.path("transform_json", 2))
        return [("register", 2, ())]

    return harm


def shifted(transform: Transform) -> Transform:
    return dataclasses.replace(
        transform, affine=transform.affine + np.array([[0, 0, 1.5], [0, 0, 0]])
    )


def turned(transform: Transform) -> Transform:
    angle = np.deg2rad(0.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array([270.0, 270.0])
    linear = transform.affine[:, :2]
    centre = linear @ middle + transform.affine[:, 2]
    return dataclasses.replace(
        transform, affine=np.column_stack([turn @ linear, centre - turn @ linear @ middle])
    )


def exchanged_in_cycle(bench: Bench) -> Asked:
    stacks = {c: bench.pixels("edf", 2, c) for c in ("1", "2")}
    bench.edit_mosaic("edf", 2, "1", lambda _: stacks["2"])
    bench.edit_mosaic("edf", 2, "2", lambda _: stacks["1"])
    bench.register()
    bench.assemble()
    return [("register", 2, ()), ("image", 2, ("1", "2"))]


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


def negative(bench: Bench) -> Asked:
    bench.edit_mosaic(
        "edf", 2, "1", lambda plane: np.maximum(np.percentile(plane, 99.5) - plane.astype(float), 0)
    )
    bench.register()
    return [("register", 2, ())]


def image(edit: Callable[[Bench, zarr.Group], None], tiff: bool) -> Harm:
    """Return a fault of the final image; ``tiff``: the OME-TIFF is written from it again."""

    def harm(bench: Bench) -> Asked:
        path = bench.own_tree("image_zarr")
        edit(bench, zarr.open_group(path, mode="r+"))
        if tiff:
            bench.path("image_tiff").unlink()
            write_ome_tiff(path, bench.path("image_tiff"))
        return [("image", 1, ("1", "2"))]

    return harm


def levels(group: zarr.Group) -> list[Any]:
    return [group[str(k)] for k in range(2)]


def wrong_order(bench: Bench, group: zarr.Group) -> None:
    for level in levels(group):
        level[:2] = np.asarray(level[:2])[::-1]


def wrong_level(bench: Bench, group: zarr.Group) -> None:
    level = levels(group)[1]
    level[0] = np.asarray(level[1])


def lost_chunk(bench: Bench, group: zarr.Group) -> None:
    for k, level in enumerate(levels(group)):
        level[0, (256 >> k) : (512 >> k), 0 : (256 >> k)] = 0


def blurred(sigma_px: float) -> Callable[[Array], Array]:
    return lambda stack: ndimage.gaussian_filter(stack.astype(float), (0, sigma_px, sigma_px))
