"""``tilewright view``: the registered image in a browser."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from pathlib import Path

import typer

from tilewright.viewer.scene import ViewError, build_scene, find_samples
from tilewright.viewer.server import ViewerServer


def show_view(results: Path, sample: str | None, port: int, *, browser: bool) -> None:
    """Serve a results folder until Ctrl-C, and open the browser on it."""
    try:
        samples = _chosen_first(find_samples(results), sample)
        build_scene(results, samples[0])  # what cannot be shown is said before a browser opens
        server = ViewerServer(results, samples, port)
    except (ViewError, OSError) as error:
        typer.echo(f"tilewright view: {error}", err=True)
        raise typer.Exit(2) from error
    with server:
        typer.echo(f"{results} is shown at {server.url}")
        if not _has_display():
            at = server.server_address[1]
            host = socket.gethostname()
            typer.echo(f"from your own machine: ssh -L {at}:127.0.0.1:{at} {host}")
        elif browser and not webbrowser.open(server.opening_url):
            typer.echo("no browser could be opened here; open the address yourself")
        try:
            typer.echo("Ctrl-C ends it")
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")


def _chosen_first(samples: list[str], sample: str | None) -> list[str]:
    if sample is None:
        return samples
    if sample not in samples:
        raise ViewError(f"--sample is {sample!r}; there are images of {', '.join(samples)}")
    return [sample, *(name for name in samples if name != sample)]


def _has_display() -> bool:
    """Return whether a browser has a window here; without one a text browser would be started."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform != "linux" or any(os.environ.get(name) for name in names)
