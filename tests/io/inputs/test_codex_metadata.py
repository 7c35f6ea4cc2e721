import pytest

from tilewright.errors import RawDataError
from tilewright.io.inputs.codex_metadata import parse_experiment


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
    told = parse_experiment('{"emission_wavelengths": [425, 525], "wavelengths": [358, 488]}')
    assert (told.wavelengths_nm, told.wavelengths_are_emission) == ((425.0, 525.0), True)
    times = parse_experiment('{"e": {"exposureTimesArray": [["Cycle", "CH1"], ["1", "10"]]}}')
    assert times.exposures_ms == {(1, 1): 10.0}
    with pytest.raises(RawDataError, match="not a JSON object"):
        parse_experiment("[1]")
