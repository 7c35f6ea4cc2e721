"""``tilewright view``: the registered image in a browser."""

from __future__ import annotations

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
        typer.echo(f"tilewright view: {_said(error, port)}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"viewer of {results}: {server.url}")
    typer.echo("Ctrl-C ends it")
    if browser and not webbrowser.open(server.url):
        typer.echo("no browser could be opened here; open the address above yourself")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        server.server_close()


def _chosen_first(samples: list[str], sample: str | None) -> list[str]:
    if sample is None:
        return samples
    if sample not in samples:
        raise ViewError(f"--sample is {sample!r}; there are images of {', '.join(samples)}")
    return [sample, *(name for name in samples if name != sample)]


def _said(error: Exception, port: int) -> str:
    if isinstance(error, ViewError):
        return str(error)
    return f"port {port} of 127.0.0.1: {error}; give another --port, or 0 for any"
