"""For every judged number a fault that must make it warn; the undamaged experiment must not.

``WARNS`` names a damage of :mod:`tests.support.quality.damages`, or describes a scene of its own
and how it is made.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from scipy import ndimage

from tests.support.quality import faults
from tests.support.quality.faults import Array, Asked, Harm
from tests.support.quality.workbench import BORDERS_PX, Bench
from tilewright.io.results.positions import read_edges, read_positions, write_table


def bad_fit(bench: Bench) -> Asked:
    path = bench.path("illumination_json", 1, "2")
    numbers = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({**numbers, "heldout_log_ratio": 0.08}))
    return [("illumination", 1, ("2",))]


def eight_bits(bench: Bench) -> Asked:
    bench.edit_raw(1, "2", lambda stack: np.round(stack / 500) * 500)
    bench.path("illumination_json", 1, "2").unlink()
    bench.illumination(1, "2")
    return [("illumination", 1, ("2",))]


def few_photons(bench: Bench) -> Asked:
    rng = np.random.default_rng(0)

    def edit(stack: Array) -> Array:
        light = rng.poisson(np.maximum(stack.astype(float) - 100, 0) / 30000) * 30.0
        return np.asarray(light + rng.normal(100, 3, stack.shape))

    bench.edit_raw(1, "2", edit)
    bench.stitch(1, "2")
    bench.edf(1, "2")
    return [("edf", 1, ("2",))]


def sharper_optics(bench: Bench) -> Asked:
    bench.edf(1, "1", numerical_aperture=0.95)
    return [("edf", 1, ("1",))]


def deep_vignette(bench: Bench) -> Asked:
    def edit(flat: Array) -> Array:
        y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in flat.shape], indexing="ij")
        return np.asarray(1 - 0.47 * (x**2 + y**2))

    return faults.flat(edit)(bench)[:1]


def edited_edges(**values: Any) -> Harm:
    """Return a fault of all overlaps of cycle 1 but the first four."""

    def harm(bench: Bench) -> Asked:
        path = bench.path("edges")
        edges = read_edges(path)
        changed = {name: getattr(edges, name).copy() for name in values}
        for name, value in values.items():
            changed[name][4:] = value
        path.unlink()
        write_table(path, dataclasses.replace(edges, **changed))
        return [("tile_positions", 1, ())]

    return harm


def displaced_edges(accepted: bool) -> Harm:
    """Return a fault of the last eight overlaps of cycle 1: 2.5 px from where the tiles are."""

    def harm(bench: Bench) -> Asked:
        path = bench.path("edges")
        edges = read_edges(path)
        edges.dy_px[4:] += 2.5
        edges.accepted[4:] = accepted
        edges.log10_chance[4:] = -9.0
        path.unlink()
        write_table(path, edges)
        return [("tile_positions", 1, ())]

    return harm


def edited_positions(**values: Any) -> Harm:
    """Return a fault of the last row of tiles of cycle 1."""

    def harm(bench: Bench) -> Asked:
        path = bench.path("positions")
        positions = read_positions(path)
        changed = {name: getattr(positions, name).copy() for name in values}
        for name, value in values.items():
            changed[name][-3:] = value
        path.unlink()
        write_table(path, dataclasses.replace(positions, **changed))
        return [("tile_positions", 1, ())]

    return harm


def incomplete_tile(bench: Bench) -> Asked:
    """Lose a plane of the middle tile, which is left out then."""
    text = bench.run.config.read_text()
    bench.run.config.unlink()  # the original is a hard link to the same file
    bench.run.config.write_text(text)
    bench.run.edit(acquisition={"missing": "fill"})
    bench.__dict__.pop("experiment", None)
    bench.raw(1, "1", 4, 2).unlink()
    bench.manifests()
    bench.positions(1)
    return [("tile_positions", 1, ()), *faults.stitched(bench)]


def tissue_in_two_tiles(bench: Bench) -> Asked:
    """Leave glass in seven of nine tiles, so that one overlap alone shows the flat-field."""
    rng = np.random.default_rng(0)
    bench.edit_raw(1, "2", lambda stack: rng.normal(100, 3, stack.shape), [0, 1, 2, 5, 6, 7, 8])
    bench.illumination(1, "2")
    return [("illumination", 1, ("2",))]


def overexposed(bench: Bench) -> Asked:
    """Fill the camera's range, so that light that the flat-field raises does not fit the file."""
    bench.edit_raw(1, "2", lambda stack: (stack - 100.0) * 11 + 100)
    return faults.stitched(bench, 1, "2")


def started_too_deep(bench: Bench) -> Asked:
    """Lose the first two planes of every stack."""
    for cycle, channel, tile in np.ndindex(2, 2, 9):
        paths = [bench.raw(cycle + 1, str(channel + 1), tile, z) for z in range(5)]
        for path in paths[:2]:
            path.unlink()
        for old, new in zip(paths[2:], paths, strict=False):
            old.rename(new)
    bench.manifests()
    asked = faults.stitched(bench, 1, "2")
    bench.edf(1, "2")
    return [*asked, ("edf", 1, ("2",))]


def edited_attributes(template: str, stage: str, **values: Any) -> Harm:
    """Return a fault of what a stage says beside its mosaic of cycle 1, channel 1."""

    def harm(bench: Bench) -> Asked:
        bench.edit_mosaic(template, 1, "1", lambda stack: stack, **values)
        return [(stage, 1, ("1",))]

    return harm


def ringed(bench: Bench) -> Asked:
    """Draw what the in-focus plane once had around specks: black out to 10 px, then a halo."""

    def harm(plane: Array) -> Array:
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

    bench.edit_mosaic("edf", 1, "2", harm)
    bench.assemble()
    return [("edf", 1, ("2",)), ("image", 1, ("2",))]


def glass(stack: Array) -> Array:
    """Leave tissue in a corner of 5 %."""
    out = np.random.default_rng(0).normal(180, 30, stack.shape)
    out[:, 180:300, 180:300] = stack[:, 180:300, 180:300]
    return out


def bright_rows(bench: Bench) -> Asked:
    """Brighten rows and columns of tiles more and more, from the middle of their overlaps."""

    def edit(stack: Array) -> Array:
        out = stack.astype(float) - 100
        for border in BORDERS_PX:
            out[:, border:] *= 4
            out[:, :, border:] *= 4
        return np.asarray(out / 64 + 100)

    bench.edit_mosaic("stitch", 1, "1", edit, feather_px=4)
    return [("stitch", 1, ("1",))]


def moats(bench: Bench) -> Asked:
    """Draw lone cells over haze, and moats around them after deconvolution."""
    size = bench.pixels("stitch", 1, "1").shape
    y, x = np.indices(size[1:]) % 64 - 32
    cells = 800 / (1 + np.exp((np.hypot(y, x) - 9) * 1.5))
    reach = ndimage.distance_transform_edt(cells <= 400)
    moat = 200.0 * ((reach > 0) & (reach <= 4))
    noise = np.random.default_rng(0).normal(0, 20, size)
    bench.edit_mosaic("stitch", 1, "1", lambda _: (cells + 400) * 8 + 100 + noise)
    bench.edit_mosaic(
        "deconvolve", 1, "1", lambda _: np.broadcast_to((cells + 400 - moat) * 8, size)
    )
    return [("deconvolve", 1, ("1",))]


def light_at_the_end(bench: Bench) -> Asked:
    bench.edit_mosaic(
        "deconvolve", 1, "1", lambda s: np.concatenate([4 * s[2:3], s[1:]]).astype(np.float32)
    )
    return [("deconvolve", 1, ("1",))]


def elsewhere(bench: Bench) -> Asked:
    def edit(transform: Any) -> Any:
        affine = transform.affine + np.array([[0, 0, 60.0], [0, 0, 40.0]])
        return dataclasses.replace(transform, affine=affine)

    return faults.transform(edit)(bench)


def torn(bench: Bench) -> Asked:
    def edit(transform: Any) -> Any:
        field = transform.field.copy()
        field[1, 5, 5] = 40.0
        return dataclasses.replace(transform, field=field)

    return faults.transform(edit)(bench)


def not_imaged(bench: Bench) -> Asked:
    def edit(plane: Array) -> Array:
        out = plane.copy()
        out[:, :, plane.shape[2] * 4 // 5 :] = 0
        return out

    bench.edit_mosaic("edf", 2, "1", edit)
    bench.register()
    return [("register", 2, ())]


def lost(bench: Bench) -> Asked:
    def edit(plane: Array) -> Array:
        out = plane.copy()
        gone = out[:, :, plane.shape[2] * 3 // 4 :]
        gone[:] = np.random.default_rng(0).poisson(40, gone.shape)
        return out

    bench.edit_mosaic("edf", 2, "1", edit)
    bench.register()
    return [("register", 2, ())]


def let_through(bench: Bench) -> Asked:
    bench.run.edit(registration={"allow_unregistered": [2]})
    return faults.negative(bench)


def stain_for_background(bench: Bench) -> Asked:
    """Subtract the stain of cycle 2 from that of cycle 1."""
    bench.set_background({"CD3": "PanCK"})
    bench.assemble()
    return [("image", 1, ("2",))]


def hazy_background(bench: Bench) -> Asked:
    """Say that the plane of a background lost as much light as it has, and take it for blank."""
    light = float(bench.pixels("edf", 2, "2").mean())
    bench.edit_mosaic("edf", 2, "2", lambda plane: plane, haze_counts=light)
    return stain_for_background(bench)


#: Metric to the name of a damage, or to what the scene shows and how it is made.
WARNS: dict[str, str | tuple[str, Harm]] = {
    "heldout_log_ratio": ("a flat-field whose held-out overlaps differ by 10 %", bad_fit),
    "flat_error": ("a channel with tissue in two of nine tiles", tissue_in_two_tiles),
    "equal_neighbours": ("a channel stored in 8 bits, black cut off", eight_bits),
    "flat_minimum": ("a flat-field with 6 % of the light in its corners", deep_vignette),
    "accepted_edges": ("8 of 12 overlaps without a match", edited_edges(accepted=False)),
    "edge_residual_px": (
        "overlaps that contradict each other by 2 px",
        displaced_edges(accepted=True),
    ),
    "doubtful_tiles": ("a row of tiles known to 2 px", edited_positions(sigma_px=2.0)),
    "contradicting_overlaps": (
        "sure matches that were given up for others",
        displaced_edges(accepted=False),
    ),
    "untied_tiles": ("a row of tiles that nothing ties to the others", edited_positions(island=1)),
    "position_sigma_px": ("a row of tiles known to 2 px", edited_positions(sigma_px=2.0)),
    "tiles_left_out": ("a tile that lacks a plane left out", incomplete_tile),
    "saturated": "a channel saturated",
    "clipped": ("a channel exposed 11 times as long", overexposed),
    "contrast": "a marker blank",
    "empty": ("a section that covers 5 % of the mosaic", faults.mosaic(glass)),
    "focus": "a cycle out of focus",
    "focus_edge": (
        "a stack whose sharpest plane is the first",
        faults.mosaic(lambda stack: stack[[2, 1, 0, 0, 0]]),
    ),
    "seam": (
        "each row and column of tiles four times as bright as the last",
        bright_rows,
    ),
    "tile_change": "a step of 20 % in the mosaic",
    "blank_area": "a chunk of the mosaic not written",
    "resolution_px": ("a channel of a few photons", few_photons),
    "undershoot": ("a plane made with the PSF of a larger aperture", sharper_optics),
    "below_zero": "a dark-field 150 counts too high",
    "overlap_shift_px": "one tile 3 px off in `positions.csv`",
    "unlike_overlaps": "a tile is a copy of another",
    "tile_brightness": "one tile 30 % dimmer",
    "overlap_mismatch": "the flat-field applied twice",
    "hot_pixels": "hot pixels left",
    "image_agreement": "the in-focus plane of another channel",
    "missing_area": "a chunk of the final image missing",
    "image_detail": "the in-focus plane made of the wrong plane",
    "oversubtracted": ("another stain subtracted as background", stain_for_background),
    "background_left": ("a background that lost half of its light as haze", hazy_background),
    "file_difference": "a lower level of the final image of another channel",
    "ringing": ("moats of half a cell's haze around lone cells", moats),
    "dark_rings": ("black rings and halos around the brightest objects", ringed),
    "flux_factor": "2.5 times the light after deconvolution",
    "end_plane_excess": ("four times the light of the best plane in the first", light_at_the_end),
    "tissue_beyond": ("a stack without its first two planes", started_too_deep),
    "damaged_planes": (
        "one of five planes left out of the projection",
        edited_attributes("edf", "edf", excluded_planes=[{"z": 3, "reason": "blank"}]),
    ),
    "ncc": ("a transform that is 70 px off", elsewhere),
    "residual_px": "the transform of a cycle 1.5 px off",
    "local_error_px": "the elastic field three times too large",
    "elastic_px": ("one node of the field 40 px off", torn),
    "poor_blocks": ("a transform that is 70 px off", elsewhere),
    "lost_tissue": ("a quarter of the tissue lost", lost),
    "not_imaged": ("a cycle whose tiles end at four fifths of the reference", not_imaged),
    "unregistered": ("an inverted stain that `allow_unregistered` lets through", let_through),
}
