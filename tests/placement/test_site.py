"""Site files: what is wrong in one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.site import SiteError, read_site


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("blocked: {brusko: ''}", "'blocked.brusko'"),
        ("utilisation: 2", "'utilisation'"),
        ("burst: '['", "not a regular expression"),
        ("bursts: x", "'bursts': extra inputs are not permitted; remove it"),
        ("restart_on_gpu: true", "'restart_on_gpu': extra inputs are not permitted; remove it"),
        ("a: [", "is not YAML"),
        ("- a", "valid"),
        ("caps: {clive: 'cpus=40'}", "'cpus=40' is none of"),
        ("caps: {clive: 'cpu=40,mem=lots'}", "'mem=lots' is none of"),
        ("caps: {clive: 'Mem=200G'}", "'caps.clive': 'Mem=200G' is none of cpu=40, mem=200G and"),
    ],
)
def test_site_files_are_checked(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(content)
    with pytest.raises(SiteError) as caught:
        read_site(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_site_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "binary", "is not text")):
        with pytest.raises(SiteError, match=f"{path} cannot be read: .*{reason}"):
            read_site(path)
