"""Rules, keys and markers agree with what is written elsewhere of each."""

import csv
import re

import yaml

from tests.conftest import REPO
from tilewright.config.rules import RULES
from tilewright.config.settings import Section, Settings
from tilewright.phantom.make import PhantomDesign

WRITTEN = "\n".join(path.read_text() for path in sorted((REPO / "workflow/rules").glob("*.smk")))
SECTIONS = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def test_the_table_holds_the_rules_of_the_workflow_and_each_has_a_script_of_its_name() -> None:
    assert set(re.findall(r"^rule (\w+):", WRITTEN, re.M)) == RULES.keys()
    scripts = {path.stem for path in (REPO / "scripts").glob("*.py")}
    # the rules of quality share one
    assert scripts == {name for name in RULES if not name.startswith("qc_")} | {"quality"}
    assert set(re.findall(r"scripts/(\w+)\.py", WRITTEN)) == scripts


def test_every_key_is_documented_and_the_template_shows_it_with_its_default() -> None:
    page = (REPO / "config/README.md").read_text()
    template = yaml.safe_load((REPO / "config/config.yaml").read_text())
    assert set(template) == set(Settings.model_fields)
    keys = set(Settings.model_fields)
    shown = Settings.model_validate(template)
    for name, section in SECTIONS.items():
        keys |= set(section.model_fields)
        assert set(template[name]) == set(section.model_fields)
        if name not in ("acquisition", "optics"):
            assert getattr(shown, name) == section()
    assert len(SECTIONS) > 5
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_the_demo_tables_name_what_the_phantom_stains() -> None:
    design = PhantomDesign(seed=1)
    with (REPO / "config/markers.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    stained = [name.replace("-", "_") for names in design.markers() for name in names]
    assert [row["marker"] for row in rows] == stained
    for row in rows:
        assert float(row["emission_nm"]) == design.wavelengths_nm[int(row["channel"]) - 1]
