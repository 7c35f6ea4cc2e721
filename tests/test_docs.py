"""What `mkdocs build --strict` does not see: whether pages say what the code is."""

import functools
import json
import re
from pathlib import Path

import pytest

from docs import generate, hooks, keys, reason_pictures
from snakemake_scheduler_plugin_tilewright import cli as placement
from tests.conftest import REPO
from tilewright import cli
from tilewright.quality.results import METRICS

PAGES = sorted((REPO / "docs").glob("*.md"))
TEXTS = [*PAGES, *(REPO / page for page in hooks.PAGES if page != "CHANGELOG.md")]
_PATH = re.compile(r"`((?:src|tests|workflow|benchmarks|profiles|scheduler-plugin)/[\w./-]+)`")
_TEST = re.compile(r"`(test_\w+[a-z0-9])`")
_MODULE = re.compile(r"python -m ((?:benchmarks|tests|docs)\.[\w.]+)")
_DEFINED = re.compile(r"def (test_\w+)\(")
_COMMAND = re.compile(r"(?:`|<code>)(tilewright|tilewright-placement) ([a-z][a-z-]+)\b")
_KEY = re.compile(r"`(\w+)\.(?!md|csv|json|smk)(\w+)\b")
_GENERATED = re.compile(r"<!-- ([^>]*?): written by make docs -->.*?<!-- end of \1 -->", re.DOTALL)
_APPS = {"tilewright": cli.app, "tilewright-placement": placement.app}


def text_of(path: str) -> str:
    return (REPO / path).read_text(encoding="utf-8")


def test_pages_are_read_in_minutes() -> None:
    pages = [*PAGES, REPO / "README.md", REPO / "config/README.md"]
    by_hand = (_GENERATED.sub("", page.read_text(encoding="utf-8")) for page in pages)
    # a word has a letter or a digit: bars of tables and operators of equations are none
    words = {
        page: sum(bool(re.search(r"\w", token)) for token in text.split())
        for page, text in zip(pages, by_hand, strict=True)
    }
    notes = {page: count for page, count in words.items() if page.name.startswith("design-")}
    assert not [page for page, count in notes.items() if count > 2400]
    assert not [page for page in words.keys() - notes.keys() if words[page] > 1500]
    assert sum(words.values()) <= 16_000


@pytest.mark.parametrize("page", sorted({page for page, _ in generate.BLOCKS.values()}))
def test_what_is_generated_says_what_the_code_says(page: str) -> None:
    text = text_of(page)
    assert text == generate.rewritten(page, text), "run make docs"
    with pytest.raises(ValueError, match=r"marks of .* once"):
        generate.rewritten(page, "# Page without its marks")


def test_pictures_belong_to_reasons_and_are_small() -> None:
    folder = REPO / "docs/images/reasons"
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    assert {path.stem for path in folder.glob("*.webp")} == set(sentences)
    assert set(sentences) == set(reason_pictures.PICTURES) <= {m.reason for m in METRICS.values()}
    pictures = [*folder.glob("*.webp"), *(REPO / "docs/images/demo").glob("*.webp")]
    assert sum(path.stat().st_size for path in pictures) <= 600_000


def _is_there(path: str) -> bool:
    return (REPO / path).exists() or (REPO / f"{path}.py").exists()


@functools.cache
def _tests() -> set[str]:
    files = (REPO / "tests").rglob("*.py")
    return {name for path in files for name in _DEFINED.findall(path.read_text(encoding="utf-8"))}


@functools.cache
def _commands() -> set[tuple[str, str]]:
    return {(program, word) for program, app in _APPS.items() for word in generate.commands(app)}


def test_a_command_that_the_program_names_is_there() -> None:
    kinds = (".py", ".html", ".smk", ".yaml")
    folders = ("src", "scheduler-plugin/src", "workflow", "profiles")
    files = (
        path for folder in folders for path in (REPO / folder).rglob("*") if path.suffix in kinds
    )
    named = {name for path in files for name in _COMMAND.findall(path.read_text("utf-8"))}
    assert ("tilewright", "devices") in named
    assert named <= _commands()


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(REPO)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = [module.replace(".", "/") for module in _MODULE.findall(text)]
    assert not [path for path in _PATH.findall(text) + modules if not _is_there(path)]
    assert not {*_TEST.findall(text)} - _tests()
    assert {*_COMMAND.findall(text)} <= _commands()
    known = keys.sections()
    named = [(section, key) for section, key in _KEY.findall(text) if section in known]
    assert not [f"{s}.{k}" for s, k in named if k not in known[s].model_fields]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme = text_of("README.md")
    table = readme.split("## Five figures")[1].split("\n\n")[2]
    figures = re.findall(r"\d+\.\d+|1/\d+", table)
    benchmarks = text_of("docs/benchmarks.md")
    assert len(figures) > 15
    assert not [figure for figure in figures if figure not in benchmarks]
