import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import RawDataError
from tilewright.io.inputs.codex_metadata import emission_peaks_nm, parse_experiment, unique_names


def test_experiment_json_in_all_its_spellings() -> None:
    camel = parse_experiment(
        '\ufeff{"regionHeight": 9, "xyResolution": 377.4, "zPitch": 1500, "aperture": "0.75"}'
    )
    snake = parse_experiment(
        '{"acquisition": {"region_height": [], "per_pixel_XY_resolution": 0.3774, "z_pitch": 1.5, '
        '"details": [{"numerical_aperture": 0.75}]}, "x": {"y": {"Region_Height": "9"}}}'
    )
    for told in (camel, snake):
        assert (told.pixel_um, told.z_step_um, told.numerical_aperture) == (0.3774, 1.5, 0.75)
    assert camel.rows == 9
    assert parse_experiment('{"aperture": NaN, "regionWidth": 2.5}').numerical_aperture is None
    times = parse_experiment('{"e": {"exposureTimesArray": [["Cycle", "CH1"], ["1", "10"]]}}')
    assert times.exposures_ms == {(1, 1): 10.0}
    with pytest.raises(RawDataError, match="not a JSON object"):
        parse_experiment("[1]")


def test_emission_given_as_such_stays() -> None:
    told = parse_experiment('{"emission_wavelengths": [425, 525], "wavelengths": [358, 488]}')
    assert told.wavelengths_nm == (425.0, 525.0)
    assert told.wavelengths_are_emission
    assert emission_peaks_nm([488.0, 650.0]) == [519.0, 668.0]
    assert emission_peaks_nm([525.0, 650.0]) == [525.0, 650.0]


@given(st.lists(st.sampled_from(["DAPI", "DAPI_1", "DAPI_2", "DAPI_1_1", "CD8"])))
def test_unique_names_are_unique_and_keep_their_stem(names: list[str]) -> None:
    unique = unique_names(names, range(len(names)))
    assert len(set(unique)) == len(unique) == len(names)
    for before, after in zip(names, unique, strict=True):
        assert after == before if names.count(before) == 1 else after.startswith(f"{before}_")
