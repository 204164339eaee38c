"""The progress bar on terminals, in notebooks and in files."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from helpers.small_models import Stop, data, fit, start

from neonlite.callbacks import Callback, Callbacks, ProgressBarCallback
from neonlite.transforms import Accuracy

# --- the bar ---------------------------------------------------------------------------------------------------------

LEARN = """
import sys
sys.path.insert(0, TESTS)
from helpers.small_models import *
from neonlite.callbacks import Callback, Callbacks
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti
model = start()
callbacks = Callbacks(model, eval_set=data(), metric=Accuracy())
callbacks.callbacks[3].update_thresh_s = 0
model.fit(data(), CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
""".replace("TESTS", repr(str(Path(__file__).parents[1])))


def screen(text: str) -> list[str]:
    """Return the visible lines of a text in which carriage returns overwrite."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return [line for line in lines if line]


def on_a_terminal(width: int) -> str:
    """Return the output on a terminal of some characters per line."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    run = subprocess.Popen([sys.executable, "-c", LEARN], stdout=theirs, stderr=theirs)
    os.close(theirs)
    results = b""
    with os.fdopen(ours, "rb", buffering=0) as file:
        try:
            while part := file.read(4096):
                results += part
        except OSError:  # the end of a terminal
            pass
    assert run.wait() == 0
    return results.decode()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_bar_is_updated_in_one_line_of_a_terminal(width):
    text = on_a_terminal(width)
    parts = [part.rstrip("\n") for part in text.split("\r")]
    assert max(map(len, parts)) < width
    assert len(parts) > 3 * 7  # updated for each minibatch
    assert len({part.count("█") for part in parts}) > 5
    lines = screen(text)
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all("[Accuracy 0." in line and "val_loss " in line for line in lines)
    assert all(("7/7 batches" in line) == (width > 80) for line in lines[1:2])
    assert all(line.endswith("]") for line in lines)


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("arguments", "drawn"), [({}, 8), ({"minibatch_freq": 3}, 2), ({"update_thresh_s": 1e9}, 0)])
def test_the_bar_is_updated_as_often_as_its_arguments_say(arguments, drawn):
    model, out = start(), Terminal()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(ProgressBarCallback(file=out, **{"update_thresh_s": 0, **arguments}))
    fit(model, callbacks, 1)
    assert out.getvalue().count("\r") == drawn + 1


@pytest.mark.long
def test_the_bar_is_one_line_an_epoch_in_a_notebook():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [LEARN, "print('after')", "callbacks.history", "import matplotlib; callbacks.history.plot()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=500, startup_timeout=500).execute()
    (bar,), _, table, plot = ([dict(x) for x in cell.outputs] for cell in notebook.cells)
    assert bar["output_type"] == "display_data"  # one, and nothing on standard error
    lines = bar["data"]["text/plain"].split("\n")
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all("batches" in line and "[Accuracy 0." in line for line in lines)
    assert "\\r" not in nbformat.writes(notebook)
    assert bar["data"]["text/html"].startswith(
        '<pre style="white-space: pre; overflow: auto">Epoch 1/3 '
    )  # does not wrap
    assert "<th>loss</th>" in table[0]["data"]["text/html"]
    assert "image/png" in plot[0]["data"]


def test_the_bar_is_updated_in_one_output_of_a_notebook_which_shows_the_last_epochs(monkeypatch):
    seen: list[Any] = []

    class Handle:
        def update(self, data, raw):
            assert raw
            seen.append(data["text/plain"].split("\n"))

    def display(data, raw, display_id):
        assert raw
        assert display_id
        seen.append(None)  # another output
        Handle().update(data, raw)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr("neonlite.callbacks.loggers.MAX_LINES", 3)
    model, out = start(), type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(ProgressBarCallback(file=out, update_thresh_s=0))
    fit(model, callbacks, 5)
    assert out.getvalue() == ""
    assert seen.count(None) == 1
    assert len(seen) > 5 * 7
    assert [line.split()[1] for line in seen[12]] == ["1/5", "2/5"]
    assert [line.split()[1] for line in seen[-1]] == ["2/5", "3/5", "4/5", "5/5"]
    fit(model, callbacks, 6)
    assert seen.count(None) == 2
    assert [line.split()[1] for line in seen[-1]] == ["6/6"]


def test_the_bar_is_printed_once_an_epoch_where_it_cannot_be_updated():
    model = start()
    callbacks, out = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False), io.StringIO()
    callbacks.add_callback(ProgressBarCallback(file=out), insert_pos=0)
    fit(model, callbacks)
    assert "\r" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    for epoch, line in enumerate(lines):
        n = (8, 7, 8)[epoch]
        cost, loss, accuracy = (callbacks.history[x][epoch] for x in ("loss", "val_loss", "Accuracy"))
        assert line.startswith(f"Epoch {epoch + 1}/3 [Train |{'█' * 20}| {n}/{n} batches, loss {cost:.4g}, 0.")
        assert f"s] [val_loss {loss:.4g}, 0." in line
        assert f"s] [Accuracy {accuracy:.4g}, 0." in line


def test_the_bar_of_an_interrupted_epoch_shows_the_complete_minibatches():
    model, out = start(), io.StringIO()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(ProgressBarCallback(file=out))
    callbacks.add_callback(Stop(1, 2))
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks)
    first, second = out.getvalue().splitlines()
    assert first.startswith("Epoch 1/3 ")
    assert second.startswith("Epoch 2/3 ")
    assert "| 3/7 batches, " in second


def test_the_bar_is_ascii_where_blocks_cannot_be_encoded_and_accepts_any_name():
    model = start()
    callbacks, out = Callbacks(model, progress_bar=False), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    callbacks.add_callback(ProgressBarCallback(file=out, epoch_freq=2))

    class Braces(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.record("{a} %s", epoch + 1, 1)

    callbacks.add_callback(Braces())
    fit(model, callbacks, 2)
    (line,) = out.buffer.getvalue().decode().splitlines()
    assert line.startswith(f"Epoch 2/2 [Train |{'#' * 20}| 7/7 batches")
    assert line.endswith("s] [{a} %s 1]")
