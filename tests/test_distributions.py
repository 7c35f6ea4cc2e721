"""Two distributions of one repository: the same version, and no word of images in the plugin's."""

import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPO


def project(folder: str) -> dict[str, Any]:
    return dict(tomllib.loads((REPO / folder / "pyproject.toml").read_text())["project"])


def test_all_that_tell_the_version_tell_the_same() -> None:
    plugin, own = project("scheduler-plugin"), project(".")
    version = own["version"]
    assert plugin["version"] == version
    assert f"{plugin['name']}=={version}" in own["dependencies"]
    assert not plugin["scripts"].keys() & own["scripts"].keys()
    assert yaml.safe_load((REPO / "CITATION.cff").read_text())["version"] == version
    changes = (REPO / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.M)[0] == version
    environment = yaml.safe_load((REPO / "workflow/envs/tilewright.yaml").read_text())
    assert environment["dependencies"][-1] == {"pip": [f"tilewright=={version}"]}


@pytest.mark.long
def test_what_is_published_is_whole(tmp_path: Path) -> None:
    """The wheel is made from the source distribution, as whoever installs that does.

    That the wheel is enough to work with is tested in ``tests/workflow/test_installed.py``.
    """
    made = subprocess.run(
        ["make", "dist", f"DIST={tmp_path / 'dist'}", "--assume-old=.venv/.installed-dist"],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    assert made.stdout.count("PASSED") == 4
    (wheel,) = (tmp_path / "dist").glob("tilewright-*.whl")
    (source,) = (tmp_path / "dist").glob("tilewright-*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tilewright/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]
    with tarfile.open(source) as packed:
        folders = {name.split("/")[1] for name in packed.getnames()}
    assert not folders & {"tests", "docs", "benchmarks", "scheduler-plugin", ".venv"}


def test_the_plugins_front_page_has_no_links_into_the_repository() -> None:
    # an index of packages shows the page alone
    links = re.findall(r"\]\(([^)]*)\)", (REPO / "scheduler-plugin/README.md").read_text())
    assert [link for link in links if not link.startswith("https://")] == []
