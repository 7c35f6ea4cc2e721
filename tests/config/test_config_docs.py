from __future__ import annotations

import pytest
import yaml

from tests.conftest import REPO
from tilewright.config.settings import Section, Settings


def _keys() -> list[str]:
    keys = []
    for name, field in Settings.model_fields.items():
        keys.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            keys.extend(field.annotation.model_fields)
    return keys


@pytest.mark.parametrize("key", _keys())
def test_every_key_is_documented(key: str) -> None:
    assert f"`{key}`" in (REPO / "config/README.md").read_text()


def test_template_shows_every_key_with_its_default() -> None:
    template = yaml.safe_load((REPO / "config/config.yaml").read_text())
    shown = Settings.model_validate(template)
    assert set(template) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            assert set(template[name]) == set(field.annotation.model_fields)
            if name not in ("acquisition", "optics"):
                assert getattr(shown, name) == field.annotation()
