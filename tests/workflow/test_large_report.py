"""The report of several samples in headless Chromium; LONG: of four, nine cycles each."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.report_pages import Page
from tests.support.runs import Run
from tests.workflow.large_report import BAD, CHANNELS, write_large_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: run make test as root on Debian"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="pip install .[test]"),
]
FLAGS = "--no-sandbox --use-angle=swiftshader --enable-unsafe-swiftshader --no-first-run"
SCREEN = {"width": 1400, "height": 900}


class Report(NamedTuple):
    """A page, and of how many samples and cycles."""

    path: Path
    samples: int
    cycles: int


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((("tonsil_A", "tonsil_B"), 3), id="small"),
        pytest.param(
            (("tonsil_A", "tonsil_B", "lymph_node", "spleen"), 9),
            id="large",
            marks=pytest.mark.long,
        ),
    ],
)
def report(
    request: pytest.FixtureRequest, tiny_run: Run, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    samples, cycles = request.param
    folder = tmp_path_factory.mktemp("large")
    path = write_large_report(tiny_run.results, folder, samples, cycles)
    return Report(path, len(samples), cycles)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, report: Report) -> Iterator[Any]:
    """The page as a reader without JavaScript has it."""
    context = browser.new_context(viewport=SCREEN, java_script_enabled=False)
    opened = context.new_page()
    opened.set_default_timeout(300_000)
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report.path.as_uri())
    yield opened
    context.close()
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []


def test_the_file_can_be_sent_by_mail_and_has_all_numbers(report: Report) -> None:
    assert report.path.stat().st_size < 12.5e6 * report.samples / 4
    text = Page(report.path.read_text(encoding="utf-8")).text
    assert f"{report.samples} samples" in text
    assert all(stage in text for stage in ("Illumination", "Stitching", "Registration"))


def test_it_is_light_and_prints(browser: Any, report: Report) -> None:
    opened = browser.new_page(viewport=SCREEN)
    opened.set_default_timeout(300_000)
    opened.goto(report.path.as_uri())
    elements = opened.evaluate("document.querySelectorAll('*').length")
    assert elements < 440 * report.samples * report.cycles
    opened.emulate_media(media="print")
    # What is folded is left out, but who made it and how.
    assert opened.locator("#provenance ~ details pre").is_visible()
    assert not opened.locator("details.stage:not([open], .printed)").first.is_visible()
    pdf = opened.pdf(prefer_css_page_size=True)
    opened.close()
    pages = pdf.count(b"/Type /Page\n") or pdf.count(b"/Type /Page")
    assert 5 < pages < 40


def test_matrix_and_the_worst_problem_are_on_the_first_of_twelve_screens(
    page: Any, report: Report
) -> None:
    body = page.locator("body").bounding_box()
    assert body["height"] < 12 * SCREEN["height"]
    assert body["width"] <= SCREEN["width"]
    cells = page.locator(".markers tbody td")
    assert cells.count() == report.samples * report.cycles * CHANNELS
    last = cells.last.bounding_box()
    assert last["x"] + last["width"] < SCREEN["width"]
    problem = page.locator(".problem").first
    assert problem.bounding_box()["y"] + 200 < SCREEN["height"]
    assert "fail" in problem.get_attribute("class")
    # A failed registration is that of all markers, one of a marker its own.
    assert page.locator(".markers td.fail").count() == CHANNELS + 1
    assert len({(key[0], key[4]) for key in BAD}) == page.locator(".problem").count()
    for box in (page.locator(".scroll").nth(k).bounding_box() for k in range(3)):
        assert box["x"] + box["width"] <= SCREEN["width"]
    crops = page.locator(".problem img")
    for crop in (crops.nth(k) for k in range(crops.count())):  # none is cut off
        shown = crop.bounding_box()
        size = [int(crop.get_attribute(name)) for name in ("width", "height")]
        assert [shown["width"], shown["height"]] == size


def test_what_does_not_warn_unfolds_and_pictures_become_large_without_script(
    page: Any, report: Report
) -> None:
    assert page.locator("details.stage:not(.printed)").count() == report.samples * 6
    unfolded = page.locator("details.stage[open]")
    assert unfolded.count() == len({key[:2] for key in BAD})
    figure = unfolded.locator(".multiples figure").first
    before = figure.bounding_box()["width"]
    figure.locator("img").click()
    assert figure.bounding_box()["width"] > 2.5 * before
    figure.locator("a.smaller").click()
    assert figure.bounding_box()["width"] == before
    folded = page.locator("details.stage:not([open]):has(.multiples)").first
    assert not folded.locator("img").first.is_visible()
    folded.locator("summary").first.click()
    assert unfolded.count() == len({key[:2] for key in BAD}) + 1
