"""The table of rules and what is written elsewhere for each rule agree."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.conftest import REPO
from tilewright.config.rules import QUALITY_RULES, RULES, STAGES

WRITTEN = "\n".join(path.read_text() for path in sorted((REPO / "workflow/rules").glob("*.smk")))


def test_the_table_holds_the_rules_of_the_workflow() -> None:
    written = set(re.findall(r"^rule (\w+):", WRITTEN, re.M))
    assert written == {name for name in RULES if not name.startswith("qc_")}


def test_each_rule_has_a_script_of_its_name_and_quality_rules_share_one() -> None:
    scripts = {path.stem for path in (REPO / "workflow/scripts").glob("*.py")}
    assert scripts == {name for name in RULES if not name.startswith("qc_")} | {"quality"}
    assert set(re.findall(r"scripts/(\w+)\.py", WRITTEN)) == scripts


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_inputs_and_a_module_that_judges_them(stage: str) -> None:
    (rule,) = [name for name, stages in QUALITY_RULES.items() if stage in stages]
    assert re.search(rf'^    "{rule}": {{', WRITTEN, re.M)
    module = import_module(f"tilewright.report.quality.{stage}")
    assert callable(module.findings)
    assert callable(module.draw)
    assert module.CAPTION.format(cycle=2) != module.CAPTION
