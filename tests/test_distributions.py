"""Two distributions of one repository: the same version, and no word of images in the plugin's."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from tests.conftest import REPO


def project(folder: str) -> dict[str, Any]:
    return dict(tomllib.loads((REPO / folder / "pyproject.toml").read_text())["project"])


def test_tilewright_asks_for_its_own_version_of_the_plugin() -> None:
    plugin, own = project("scheduler-plugin"), project(".")
    assert plugin["version"] == own["version"]
    assert f"{plugin['name']}=={plugin['version']}" in own["dependencies"]
    assert not plugin["scripts"].keys() & own["scripts"].keys()


def test_the_plugin_asks_for_what_it_imports_and_no_more() -> None:
    asked = {re.split(r"[<>=]", one)[0] for one in project("scheduler-plugin")["dependencies"]}
    names = {"yaml": "pyyaml", **{name: name.replace("_", "-") for name in asked}}
    source = "\n".join(path.read_text() for path in (REPO / "scheduler-plugin/src").rglob("*.py"))
    found = set(re.findall(r"^\s*(?:from|import) (\w+)", source, re.M))
    imported = {names.get(name, name.replace("_", "-")) for name in found}
    through_snakemake = {"snakemake-interface-common", "snakemake-interface-executor-plugins"}
    # the executor is asked for by name, and imported by Snakemake
    assert asked - imported == {"snakemake-executor-plugin-slurm"}
    assert not imported & {"numpy", "scipy", "matplotlib", "tilewright"}
    assert imported & through_snakemake == through_snakemake


def test_the_plugins_front_page_has_no_links_into_the_repository() -> None:
    # an index of packages shows the page alone
    links = re.findall(r"\]\(([^)]*)\)", (REPO / "scheduler-plugin/README.md").read_text())
    assert [link for link in links if not link.startswith("https://")] == []
