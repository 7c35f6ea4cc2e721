"""``tilewright view`` as a user starts and ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.viewer.viewed_results import add_quality, make_image
from tilewright.cli import app
from tilewright.viewer.server import ViewerServer

INSTALLED = pytest.mark.skipif(
    find_spec("neuroglancer") is None, reason="neuroglancer is not installed: pip install .[test]"
)


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["view", *arguments, "--no-browser"])
    assert done.exit_code == 2
    assert done.output.startswith("tilewright view: ")
    assert done.output.count("\n") == 1
    return done.output


@INSTALLED
def test_it_opens_the_browser_serves_the_image_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    for sample in ("lymph", "tonsil"):
        make_image(tmp_path, sample)
    add_quality(tmp_path, "tonsil")
    script, asked = tmp_path / "browser", tmp_path / "asked"
    script.write_text(f'#!/bin/sh\necho "$1" > {asked}\n')
    script.chmod(0o755)
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    with subprocess.Popen(
        [sys.executable, "-m", "tilewright.cli", "view", str(tmp_path), "--sample", "tonsil"],
        env={**kept, "BROWSER": str(script)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores the signal for what it starts in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            (line,) = iter(process.stdout.readline, "Ctrl-C ends it\n")
            url, opened = line.split()[-1], asked.read_text().strip()
            # What the browser is asked for leads to the image once: every user sees it in a list
            # of processes.
            assert opened != url
            with urllib.request.urlopen(opened, timeout=300) as answer:
                assert answer.url == url
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(opened, timeout=300)
            # A stream that is open does not keep it from ending.
            stream = urllib.request.urlopen(f"{url}events/image", timeout=300)
            config = json.loads(stream.readline().removeprefix(b"data: "))
            with urllib.request.urlopen(f"{url}start.json", timeout=300) as answer:
                start = json.load(answer)
            process.send_signal(signal.SIGINT)
            assert (process.wait(300), process.stderr.read()) == (0, "")
        finally:
            process.kill()
    stream.close()
    assert config["k"] == "c"
    assert config["s"]["showUIControls"] is False
    assert start["samples"] == ["tonsil", "lymph"]
    assert start["first"]["sample"] == "tonsil"


@INSTALLED
def test_the_address_is_printed_where_no_browser_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: ViewerServer) -> None:
        raise KeyboardInterrupt

    asked: list[str] = []
    monkeypatch.setattr(ViewerServer, "serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", asked.append)  # None: it could not be opened
    make_image(tmp_path, "tonsil")
    nowhere = {"DISPLAY": None, "WAYLAND_DISPLAY": None, "BROWSER": None}
    for options, browser, said in (
        ([], None, r"from your own machine: ssh -L \1:127.0.0.1:\1 .*\n"),
        (["--no-browser"], "some", ""),
        ([], "some", "no browser could be opened here; .*\n"),
    ):
        assert not asked
        env = {**nowhere, "BROWSER": browser}
        done = CliRunner().invoke(app, ["view", str(tmp_path), *options], env=env)
        assert done.exit_code == 0
        assert re.fullmatch(rf".* is shown at \S+:(\d+)/\S*\n{said}Ctrl-C ends it\n\n", done.output)
    assert len(asked) == 1


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run `snakemake registration` first" in refused(str(tmp_path))
    make_image(tmp_path, "tonsil")
    assert "there are images of tonsil" in refused(str(tmp_path), "--sample", "liver")
    monkeypatch.setitem(sys.modules, "neuroglancer", None)  # as if not installed
    assert "pip install 'tilewright[view]'" in refused(str(tmp_path))


@INSTALLED
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1: " in refused(str(tmp_path), "--port", port)
