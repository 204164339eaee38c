"""The scripts of examples/: the service that predicts over HTTP."""

from __future__ import annotations

import json
import runpy
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from neonlite.layers import Affine
from neonlite.models import Model

SERVICE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "predict_service.py"))
ROWS = [{"area": 50.0, "city": "Bonn"}, {"area": 80.0, "city": "Ulm"}, {"area": 120, "city": "Ulm"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = Model([Affine(2, activation="softmax")])
    model.fit({name: [row[name] for row in ROWS * 8] for name in ROWS[0]}, ["a", "b", "b"] * 8, progress_bar=False)
    model.save_params(tmp_path_factory.mktemp("service") / "m.neon")
    return model, tmp_path_factory.getbasetemp() / "service0" / "m.neon"


@pytest.fixture(scope="module")
def port(model):
    with SERVICE["make_server"](model[1], 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def request(port: int, content: bytes | None, size: int | None = None) -> tuple[int, Any]:
    """Return the status and the content of the response to a POST request, or to GET without content."""
    connection = HTTPConnection("127.0.0.1", port)
    headers = {} if size is None else {"Content-Length": str(size)}
    connection.request("GET" if content is None else "POST", "/", content, headers)
    response = connection.getresponse()
    result = response.status, json.load(response)
    connection.close()
    return result


def test_the_service_describes_its_network_and_predicts_the_rows_of_a_request(model, port):
    assert request(port, None) == (200, {"columns": ["area", "city"], "classes": ["a", "b"]})
    labels = [str(model[0].predict_classes(row)) for row in ROWS]
    assert request(port, json.dumps(ROWS).encode()) == (200, labels)
    assert request(port, json.dumps([{"city": "Ulm", "id": 3, "area": 70}]).encode())[0] == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a Content-Length of 1 to 1048576, got 0"),
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode byte 0xff"),
        (b"[" * 100_000, "recursion"),
        (b"{}", "expected a list of rows"),
        (b"[]", "expected a list of rows"),
        (b"[[1, 2]]", "expected a list of rows"),
        (b'[{"area": 1}]', "expected a column 'city'"),
        (b'[{"area": 1, "city": "Ulm"}, {"area": 1}]', "row 1: expected the columns area, city, got area"),
        (b'[{"area": 1, "city": "Rome"}]', "Rome"),
        (b'[{"area": null, "city": "Ulm"}]', "area"),
        (b'[{"area": {}, "city": "Ulm"}]', "area"),
        (b'[{"area": 1e999, "city": "Ulm"}]', "area"),
    ],
)
def test_an_invalid_request_is_answered_with_an_error(port, content, words):
    status, answer = request(port, content)
    assert status == 400
    assert words in answer["error"]
    assert request(port, json.dumps(ROWS).encode())[0] == 200


def test_a_request_that_is_too_large_is_not_read(port):
    error = "expected a Content-Length of 1 to 1048576, got 1048577"
    assert request(port, b"", (1 << 20) + 1) == (400, {"error": error})


def test_a_model_of_other_data_is_refused_before_the_server_starts(tmp_path):
    model = Model([Affine(1)])
    model.fit([[1.0], [2.0]], [1.0, 2.0], epochs=1, progress_bar=False)
    model.save_params(tmp_path / "m.neon")
    with pytest.raises(ValueError, match=r"m\.neon: expected a network that was trained on a table, got another one"):
        SERVICE["make_server"](tmp_path / "m.neon", 0)
