"""Predict over HTTP, with a network that was trained on a table; of Python's standard library and neonlite alone.

Usage::

    neonlite train flowers.csv --target species --save flowers.neon
    python examples/predict_service.py flowers.neon --port 8000
    curl localhost:8000 -d '[{"petal": 1.4, "sepal": 5.1}, {"petal": 4.7, "sepal": 6.2}]'

The request is a JSON list of rows, each an object with a value for each column. The response is a JSON list with a
label or number for each row. An error is {"error": TEXT}, with status 400. GET returns the columns and the classes.

The server listens on the loopback address. It has no encryption, authentication or limit on the number of connections:
for others than the user of this computer, put a web server that has them in front.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import neonlite as nl

MAX_REQUEST_BYTES = 1 << 20
TIMEOUT_SECONDS = 30  # for a request to arrive


def predict(model: Any, rows: Any) -> list[Any]:
    """Return a label or a number for each row, a dict of the values of its columns."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError('expected a list of rows, such as [{"petal": 1.4, "sepal": 5.1}]')
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            raise ValueError(f"row {number}: expected the columns {', '.join(names)}, got {', '.join(row) or 'none'}")
    table = {name: [row[name] for row in rows] for name in names}
    outputs = model.predict(table) if model.classes is None else model.predict_classes(table)
    result: list[Any] = outputs.tolist()
    return result


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; ``model`` is an attribute of the class that ``make_server`` creates."""

    model: Any
    timeout = TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Describe the network."""
        columns = [column["name"] for column in self.model.input_encoder.columns]
        self.respond(200, {"columns": columns, "classes": self.model.classes})

    def do_POST(self) -> None:
        """Predict the rows of the request."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 < size <= MAX_REQUEST_BYTES:
                raise ValueError(f"expected a Content-Length of 1 to {MAX_REQUEST_BYTES}, got {size}")
            self.respond(200, predict(self.model, json.loads(self.rfile.read(size))))
        except (ValueError, TypeError, RecursionError) as error:
            self.close_connection = True
            self.respond(400, {"error": str(error)})

    def respond(self, status: int, content: object) -> None:
        """Send JSON."""
        body = json.dumps(content, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def make_server(path: str, port: int) -> ThreadingHTTPServer:
    """Return a server, with one thread for each connection, for a checkpoint of ``neonlite train data.csv --save``."""
    model: Any = nl.Model(path, weights_only=True)  # any number of threads may call its predict
    if not hasattr(model.input_encoder, "columns"):
        raise ValueError(f"{path}: expected a network that was trained on a table, got another one")
    return ThreadingHTTPServer(("127.0.0.1", port), type("ModelHandler", (Handler,), {"model": model}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", help="a checkpoint of: neonlite train data.csv --save FILE")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    with make_server(arguments.file, arguments.port) as server:
        print(f"http://127.0.0.1:{server.server_port}")
        server.serve_forever()
