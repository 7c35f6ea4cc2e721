"""``tilewright view`` as a user starts and ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.viewed_results import add_quality, make_image
from tilewright.cli import app

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
def test_it_prints_the_address_serves_it_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    for sample in ("lymph", "tonsil"):
        make_image(tmp_path, sample)
    add_quality(tmp_path, "tonsil")
    command = [sys.executable, "-m", "tilewright.cli", "view", str(tmp_path), "--no-browser"]
    with subprocess.Popen(
        [*command, "--sample", "tonsil"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            k: v
            for k, v in os.environ.items()
            if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        },
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1]
        port = url.split(":")[2].split("/")[0]
        assert f"ssh -L {port}:127.0.0.1:{port} " in process.stdout.readline()
        # A stream that is open does not keep it from ending.
        with urllib.request.urlopen(f"{url}events/image", timeout=10) as stream:
            config = json.loads(stream.readline().removeprefix(b"data: "))
            with urllib.request.urlopen(f"{url}start.json", timeout=10) as answer:
                start = json.load(answer)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        assert process.stderr.read() == ""
    assert config["k"] == "c"
    assert config["s"]["showUIControls"] is False
    assert start["samples"] == ["tonsil", "lymph"]
    assert start["first"]["sample"] == "tonsil"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "run `snakemake registration` first" in refused(str(tmp_path))
    make_image(tmp_path, "tonsil")
    assert "there are images of tonsil" in refused(str(tmp_path), "--sample", "liver")


def test_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_image(tmp_path, "tonsil")
    monkeypatch.setitem(sys.modules, "neuroglancer", None)  # as if not installed
    assert "pip install 'tilewright[view]'" in refused(str(tmp_path))


@INSTALLED
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    make_image(tmp_path, "tonsil")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1: " in refused(str(tmp_path), "--port", port)
