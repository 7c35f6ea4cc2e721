"""Planes joined with rows: whatever is missing or too much is named once, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from tilewright.io.formats.common import RawPlane
from tilewright.io.inputs.tile_planes import (
    _SAME_PX,
    PlacedPlanes,
    TilePlace,
    TileRows,
    place_planes,
)


def placed(planes: list[RawPlane], rows: list[TilePlace]) -> PlacedPlanes:
    return place_planes(planes, 1, rows, ["1", "2"])


def plane(tile: int, channel: str, z: int) -> RawPlane:
    return RawPlane(1, channel, z, f"/raw/t{tile}_c{channel}_z{z}.tif", tile=tile)


def row(tile: int, **values: object) -> TilePlace:
    place = TilePlace(str(tile), 0.0, 100.0 * tile, row=f"row {tile}")
    return place._replace(**values)  # type: ignore[arg-type]


EVERY = [plane(tile, channel, z) for tile in (1, 2, 3) for channel in "12" for z in range(3)]


@given(st.sets(st.sampled_from(EVERY)), st.sets(st.integers(1, 3)))
def test_each_tile_that_lacks_planes_is_named_once(gone: set[RawPlane], unused: set[int]) -> None:
    rows = [row(tile, use=tile not in unused) for tile in (1, 2, 3)]
    planes = [one for one in EVERY if one not in gone]
    used = {1, 2, 3} - unused
    found = placed(planes, rows)
    if not used:
        assert [text for text in found.problems if "uses none of its tiles" in text]
        return
    there = {(one.tile, one.channel, one.z) for one in planes}
    of_used = {key for key in there if key[0] in used}
    depths = {
        c: max((z + 1 for _, channel, z in of_used if channel == c and z is not None), default=1)
        for c in "12"
    }
    whole = {(tile, c, z) for tile in used for c in "12" for z in range(depths[c])}
    silent = {c for c in "12" if not any(key[1] == c for key in there)}
    lacking = {tile for tile, c, _ in whole - there if c not in silent}
    assert {text for text in found.problems if "no files" in text} == {
        f"cycle 1, channel {c}: no files, but the markers table lists it" for c in silent
    }
    named = [text for text in found.problems if "lacks" in text]
    assert sorted(text.partition(":")[0] for text in named) == [f"row {t}" for t in sorted(lacking)]
    for text in named:
        (tile,) = (t for t in lacking if text.startswith(f"row {t}:"))
        for channel in {"1", "2"} - silent:
            depth = depths[channel]
            missing = [str(z + 1) for z in range(depth) if (tile, channel, z) not in there]
            part = f"z-plane {', '.join(missing)} of {depth} of channel {channel}"
            if len(missing) == depth:
                part = f"all planes of channel {channel}"
            assert (part in text) == bool(missing)
    assert len(found.problems) == len(silent) + len(lacking)
    if not found.problems:
        assert {(one.tile, one.channel, one.z) for one, _ in found.planes} == of_used
        assert all(place.tile == one.tile_name for one, place in found.planes)
    assert {*found.excluded} == {str(tile) for tile in unused}


def test_a_plane_of_two_files_is_named_with_both() -> None:
    again = plane(2, "1", 0)._replace(path="/raw/again.tif")
    found = placed([*EVERY, again], [row(tile) for tile in (1, 2, 3)])
    assert found.problems == [
        "cycle 1, channel 1, tile 2, duplicate z 0: /raw/t2_c1_z0.tif and /raw/again.tif"
    ]


def test_tiles_of_other_samples_are_passed_over_but_not_those_of_none() -> None:
    def read(rows: TileRows) -> PlacedPlanes:
        planes = [plane for plane in EVERY if plane.tile_name not in rows.left_out()]
        return placed(planes, list(rows.places))

    (text,) = read(TileRows([row(1)], ["2"])).problems
    assert text.startswith("cycle 1: tile 3 (/raw/t3_")
    whole = read(TileRows([row(1)], ["2", "3"]))
    assert whole.problems == whole.excluded == []
    assert len(whole.planes) == 6
    shared = read(TileRows([row(1), row(2)], ["2", "3"]))
    assert shared.problems == []
    assert len(shared.planes) == 12


def test_a_tile_that_is_left_out_is_a_gap_unless_another_lies_there() -> None:
    for off_px, gaps in ((_SAME_PX - 0.1, []), (_SAME_PX, ["2"])):
        found = placed(EVERY, [row(1), row(2, use=False), row(3, x_px=200.0 + off_px)])
        assert (found.problems, found.excluded) == ([], gaps)
