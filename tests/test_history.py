"""The history of a training is a table, curves, data, and a file."""

from __future__ import annotations

import io
import json
import math
import sys
from typing import Any

import numpy as np
import pytest

from neonlite.callbacks import History


def history(epochs: int = 3) -> History:
    made = History()
    for epoch in range(1, epochs + 1):
        made.note("cost, train", epoch, 1 / epoch)
        if epoch % 2 == 0:
            made.note("cost, validation", epoch, 2 / epoch)
        made.note("Accuracy", epoch, 1 - 1 / (epoch + 1))
        made.note("a/b {x} 100%", epoch, 10 * epoch)
        made.note_histogram("fc.W", epoch, [0, epoch, 2, 0], offset=-2)
    return made


def test_a_note_for_the_same_moment_is_replaced():
    found = History()
    for epochs, value in [(1, 5), (2, 6), (3, 7), (2, 8)]:
        found.note("x", epochs, value)
        found.note_histogram("x", epochs, [value], 0)
    assert found["x"] == [(1.0, 5.0), (2.0, 8.0)]
    assert found.histograms["x"] == [(1.0, [5]), (2.0, [8])]
    assert math.isnan(found.last("y"))
    with pytest.raises(KeyError, match="nothing of the name 'y' was noted; there are x"):
        found["y"]


def test_it_is_a_table():
    assert repr(history(2)).splitlines() == [
        "epochs  cost, train  Accuracy  a/b {x} 100%  cost, validation",
        "1       1            0.5       10",
        "2       0.5          0.6667    20            1",
    ]
    assert repr(History()) == "a history without notes"
    assert len(repr(history(500)).splitlines()) == 21
    assert repr(history(500)).splitlines()[-1].split()[0] == "500"
    found = History()
    found.note("cost, minibatches", 0.5, 1)
    found.note("<b>", 1, 2)
    assert found._repr_html_() == (
        "<table><tr><td>epochs</td><td>&lt;b&gt;</td></tr><tr><td>1</td><td>2</td></tr></table>"
    )


def test_it_is_a_plain_dict():
    found = history(3).to_dict()
    assert found["cost, validation"] == {"epochs": [2.0], "values": [1.0]}
    assert found["cost, train"] == {"epochs": [1.0, 2.0, 3.0], "values": [1.0, 0.5, 1 / 3]}


def test_its_state_goes_through_json_with_nan_and_infinity():
    saved = history()
    saved.note("x", 1, math.nan)
    saved.note("x", 2, -math.inf)
    saved.note("x", 2.125, 1 / 3)
    taken = history(7)
    taken.set_state(json.loads(json.dumps(saved.get_state())))
    assert json.dumps(taken.get_state()) == json.dumps(saved.get_state())
    assert math.isnan(taken["x"][0][1])
    assert taken.notes.keys() == saved.notes.keys()
    assert taken.histograms == saved.histograms
    assert (taken["Accuracy"], taken.offset) == (saved["Accuracy"], -2)


WRONG: list[Any] = [
    None,
    [],
    {},
    {"notes": {}, "histograms": {}},
    {"notes": [], "histograms": {}, "offset": 0},
    {"notes": {"x": 1}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[1]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[1, "2"]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[1, True]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[1, 10**400]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[2, 1], [2, 1]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": [[math.nan, 1]]}, "histograms": {}, "offset": 0},
    {"notes": {"x": []}, "histograms": {}, "offset": 0},
    {"notes": {1: [[1, 1]]}, "histograms": {}, "offset": 0},
    {"notes": {}, "histograms": {"x": [[1, 2]]}, "offset": 0},
    {"notes": {}, "histograms": {"x": [[1, [0.5]]]}, "offset": 0},
    {"notes": {}, "histograms": {"x": [[1, [1]], [2, [1, 2]]]}, "offset": 0},
    {"notes": {}, "histograms": {}, "offset": "0"},
]


@pytest.mark.parametrize("state", WRONG)
def test_what_is_no_state_is_refused_and_nothing_is_changed(state):
    taken = history()
    before = json.dumps(taken.get_state())
    with pytest.raises(ValueError, match="a history is a dict of notes and histograms"):
        taken.set_state(state)
    assert json.dumps(taken.get_state()) == before


# --- as a file -------------------------------------------------------------------------------------------------------


def test_it_is_written_to_hdf5_in_neons_groups_and_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    saved, path = history(), tmp_path / "h.h5"
    for name in (".", "", "cost, a/b", "a%2Fb", "metrics", "ärger"):
        saved.note(name, 1, math.nan)
    saved.write(path)
    with h5py.File(path) as file:
        assert set(file) == {"config", "cost", "metrics", "hist"}
        assert file["config"].attrs["total_epochs"] == 3
        assert file["cost/train"][()].tolist() == [[1, 1], [2, 0.5], [3, 1 / 3]]
        assert file["cost/validation"][()].tolist() == [[2, 1]]
        assert file["metrics/Accuracy"].shape == (3, 2)
        assert file["hist/fc.W"][1].tolist() == [2, 0, 2, 2, 0]
    found = History.read(path)
    assert {k: json.dumps(x) for k, x in found.notes.items()} == {k: json.dumps(x) for k, x in saved.notes.items()}
    assert (found.histograms, found.offset) == (saved.histograms, -2)
    before = path.read_bytes()
    saved.write(path)
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_a_write_that_fails_leaves_the_file_before(tmp_path):
    pytest.importorskip("h5py")
    saved, path = history(), tmp_path / "h.h5"
    saved.write(path)
    before = path.read_bytes()
    saved.notes["bad"] = [(1.0, "x")]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="x"):
        saved.write(path)
    assert path.read_bytes() == before
    del saved.notes["bad"]
    saved.write(path)
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_what_is_no_history_is_told(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "text").write_text("epochs")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("input", data=np.zeros(3))
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file.create_group("config").attrs["hist_offset"] = 0
        file.create_dataset("cost/train", data=np.zeros(3)).attrs["name"] = "cost, train"
    for name in ("text", "other.h5", "odd.h5"):
        with pytest.raises(ValueError, match=f"{name} is no history; one is written by History.write"):
            History.read(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such file"):
        History.read(tmp_path / "nowhere")


def test_what_has_to_be_installed_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        History().write(tmp_path / "h")
    with pytest.raises(ImportError, match=r'pip install "neonlite\[viz\]"'):
        History().plot()


# --- as curves -------------------------------------------------------------------------------------------------------


def test_it_is_drawn_costs_fractions_other_numbers_and_histograms(tmp_path):
    pytest.importorskip("matplotlib")
    figure = history(4).plot(tmp_path / "h.png")
    costs, fractions, others, weights, bar = figure.axes
    assert costs.get_legend_handles_labels()[1] == ["cost, train", "cost, validation"]
    assert (costs.get_title(), costs.get_xlabel(), costs.get_ylabel()) == ("cost", "epochs", "cost")
    assert (fractions.get_title(), fractions.get_ylabel()) == ("Accuracy", "%")
    line = fractions.get_lines()[0]
    np.testing.assert_allclose(line.get_xydata(), [[e, 100 - 100 / (e + 1)] for e in (1, 2, 3, 4)])
    assert others.get_legend_handles_labels()[1] == ["a/b {x} 100%"]
    assert weights.get_title().startswith("fc.W")
    assert weights.get_ylabel() == "log2 |weight|"
    assert weights.collections[0].get_array().tolist() == [[1, 2, 3, 4], [2, 2, 2, 2]]
    assert weights.get_ylim() == (-1.5, 0.5)  # bins 1 and 2 of those from 2^-2
    assert bar.get_ylabel() == "weights"
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_drawing_leaves_no_trace():
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    history().plot(io.BytesIO())
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_a_history_without_notes_or_with_one_is_drawn_too():
    pytest.importorskip("matplotlib")
    assert len(History().plot().axes) == 1
    assert len(history(1).plot().axes) == 5
