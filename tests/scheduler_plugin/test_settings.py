"""Settings of a run on a cluster, as a profile of Snakemake has them."""

from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.settings import settings_of
from tests.support.runs import REPO


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tilewright-cpu-share: 2", "--tilewright-cpu-share is 2.0; give 0 to 1"),
        (
            "tilewright-cpu-share: lots",
            "'tilewright-cpu-share' is 'lots': Input should be a valid number",
        ),
        (
            "tilewright-accounts: [a, b]",
            "'tilewright-accounts' is ['a', 'b']: Input should be a valid string",
        ),
        ("tilewright-acounts: x", "'tilewright-acounts' is 'x': Extra inputs are not permitted"),
        ("a: [", "cannot be read: while parsing"),
        ("[1, 2]", "cannot be read: "),
        (None, "there is no profile"),
    ],
)
def test_a_wrong_profile_says(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlacementError) as caught:
        settings_of(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_settings_of_a_profile_are_read(tmp_path: Path) -> None:
    settings = settings_of(REPO / "profiles/hipergator")
    assert (settings.leave_out, settings.gpu_partitions) == ("brusko, *-b", "hpg-b200")
    (tmp_path / "config.yaml").write_text(
        "jobs: 3\ntilewright-poll_seconds: 5\ntilewright-accounts: 1234\n"
    )
    found = settings_of(tmp_path / "config.yaml")
    assert (found.poll_seconds, found.accounts) == (5, "1234")
    assert settings_of(None).cpu_share == 0.85
