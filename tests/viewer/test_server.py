"""The viewer's server on a real socket: what it serves, and above all what it does not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.viewer.viewed_results import add_quality, make_image, served
from tilewright.viewer.server import ViewerServer

pytestmark = pytest.mark.skipif(
    find_spec("neuroglancer") is None, reason="neuroglancer is not installed: pip install .[test]"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerServer]:
    folder = tmp_path_factory.mktemp("served") / "results"
    image = make_image(folder, "tonsil")
    make_image(folder, "not chosen")
    add_quality(folder, "tonsil")
    secret = folder.parent / "secret.txt"
    secret.write_text("secret")
    (image / "out").symlink_to(secret)
    (image / "folder").symlink_to(folder.parent)
    (image / "circle").symlink_to("circle")
    with served(folder, ["tonsil"]) as made:
        yield made


def asked(server: ViewerServer, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    """GET a path below the token as it stands: clients such as urllib would tidy it up."""
    address = server.server_address
    connection = http.client.HTTPConnection(str(address[0]), int(address[1]), timeout=300)
    connection.request("GET", f"/{server.token}/{path}", headers={"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_page_client_image_and_report_are_served(server: ViewerServer) -> None:
    assert b"page/viewer.js" in asked(server, "")[1]
    assert asked(server, "page/viewer.js")[0] == asked(server, "page/viewer.css")[0] == 200
    assert b"<title>neuroglancer" in asked(server, "v/image/")[1]
    image = server.results / "tonsil/registration/tonsil.ome.zarr"
    for name in (".zattrs", "0/.zarray", "0/3/2/3"):
        assert asked(server, f"image/tonsil/{name}") == (200, (image / name).read_bytes())
    assert b"report" in asked(server, "report.html")[1]
    start = json.loads(asked(server, "start.json")[1])
    assert (start["samples"], start["report"]) == (["tonsil"], True)
    assert start["first"] == json.loads(asked(server, "scenes/tonsil")[1])


FORBIDDEN = """image/tonsil/../../../secret.txt image/tonsil/../tonsil.ome.zarr/.zattrs
    image/tonsil/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt image/tonsil/../markers.csv
    image/tonsil/out image/tonsil/folder/secret.txt"""
ABSENT = """image/tonsil//etc/passwd image/tonsil/ image/tonsil/0 image/tonsil/%00
    image/tonsil/circle image/not%20chosen/.zattrs image/../qc.json v/image/../../server.py
    v/image/.. page/index.html/../../server.py scenes/not%20chosen qc.json tonsil"""


@pytest.mark.parametrize(("status", "paths"), [(403, FORBIDDEN), (404, ABSENT)])
def test_nothing_else_is(server: ViewerServer, status: int, paths: str) -> None:
    for path in paths.split():
        found, body = asked(server, path)
        assert found == status, path
        assert b"secret" not in body


def test_only_those_who_know_the_address_on_this_machine(server: ViewerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert asked(server, "", host="localhost:8000")[0] == 200  # through ssh -L
    assert asked(server, "", host="elsewhere.example")[0] == 403
    assert asked(server, "", host="[")[0] == 400
    # On one connection, as browsers ask.
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=300)  # type: ignore[arg-type]
    for path in ("/", "/start.json", f"/{server.token[:-1]}/start.json"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b"404 Not Found\n")
    connection.request("POST", f"/{server.token}/start.json", body=b"{}")
    assert connection.getresponse().status == 501
    connection.close()
