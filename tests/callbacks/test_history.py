"""History: records, tables, plots, states, and HDF5 files."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import History
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.transforms import F1, MeanSquared, Misclassification


def history(epochs: int = 3) -> History:
    created = History()
    for epoch in range(1, epochs + 1):
        created.record("loss", epoch, 1 / epoch)
        if epoch % 2 == 0:
            created.record("val_loss", epoch, 2 / epoch)
        created.record("Accuracy", epoch, 1 - 1 / (epoch + 1))
        created.record("a/b {x} 100%", epoch, 10 * epoch)
        created.record_histogram("fc.W", epoch, [0, epoch, 2, 0], offset=-2)
    return created


def test_a_record_of_the_same_time_is_replaced():
    result = History()
    for epochs, value in [(1, 5), (2, 6), (3, 7), (2, 8)]:
        result.record("x", epochs, value)
        result.record_histogram("x", epochs, [value], 0)
    assert (result["x"], result.epochs("x"), result.records["x"]) == ([5.0, 8.0], [1.0, 2.0], [(1.0, 5.0), (2.0, 8.0)])
    assert result.histograms["x"] == [(1.0, [5]), (2.0, [8])]
    assert math.isnan(result.last("y"))
    with pytest.raises(KeyError, match=r"expected a recorded name, got 'y'\. Recorded: x"):
        result["y"]


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        ("accuracy", True),
        ("misclassification", True),
        ("f1_micro", True),
        ("log_loss", True),
        ("roc_auc", True),
        (MeanSquared(), True),
        (Misclassification(), True),
        (F1("weighted"), True),
        ("top5", False),  # three values, under their own names
    ],
    ids=str,
)
def test_a_metric_is_found_under_the_name_that_evaluate_returns(metric, found):
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 6
    gen_backend("cpu", rng_seed=0)
    model = Model([Affine(6, activation="softmax")])
    result = model.fit(X, y, epochs=1, validation_data=(X, y), metrics=[metric], progress_bar=False)
    ((name, value),) = model.evaluate(X, y, [metric]).items()
    assert (name in result) == found
    if found:
        assert result[name] == [pytest.approx(value, rel=1e-6)]
        assert (result.last(name), result.epochs(name)) == (result[name][0], [1.0])
    else:
        assert list(result)[2:] == ["LogLoss", "Top1Misclass", "Top5Misclass"]
    restored = History()
    restored.set_state(json.loads(json.dumps(result.get_state())))
    assert restored.records == result.records
    assert (name in restored) == found


def test_a_value_recorded_under_a_short_name_is_found_before_that_of_the_metric():
    result = History()
    result.record("Accuracy", 1, 0.5)
    result.record("accuracy", 1, 0.25)
    assert (result["accuracy"], result["Accuracy"]) == ([0.25], [0.5])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acuracy", "Did you mean 'Accuracy'"),
        ("val_accuracy", "Did you mean 'Accuracy'"),
        ("los", "Did you mean 'loss'"),
        ("val_loss", "pass validation_split=0.2 to fit"),
        ("mse", "Recorded: loss, Accuracy, F1_micro, Top1Misclass.$"),
        ("val_f1_micro", "Did you mean 'F1_micro'"),
        ("val_misclassification", "Did you mean 'Top1Misclass'"),
    ],
)
def test_the_error_for_an_unknown_name_has_the_nearest_one(name, hint):
    result = History()
    result.record("loss", 1, 1)
    for metric in ("Accuracy", "F1_micro", "Top1Misclass"):
        result.record(metric, 1, 0.5)
    with pytest.raises(KeyError) as error:
        result[name]
    assert re.search(hint, error.value.args[0])


def test_a_history_prints_as_a_table():
    assert repr(history(2)).splitlines() == [
        "epochs  loss  Accuracy  a/b {x} 100%  val_loss",
        "1       1     0.5       10",
        "2       0.5   0.6667    20            1",
    ]
    assert repr(History()) == "an empty history"
    assert len(repr(history(500)).splitlines()) == 21
    assert repr(history(500)).splitlines()[-1].split()[0] == "500"
    result = History()
    result.record("loss_minibatches", 0.5, 1)
    result.record("<b>", 1, 2)
    assert result._repr_html_() == (
        "<table><tr><th>epochs</th><th>&lt;b&gt;</th></tr><tr><td>1</td><td>2</td></tr></table>"
    )


def test_a_history_converts_to_a_dict():
    result = history(3).to_dict()
    assert result["val_loss"] == {"epochs": [2.0], "values": [1.0]}
    assert result["loss"] == {"epochs": [1.0, 2.0, 3.0], "values": [1.0, 0.5, 1 / 3]}


def test_the_state_survives_json_with_nan_and_infinity():
    saved = history()
    saved.record("x", 1, math.nan)
    saved.record("x", 2, -math.inf)
    saved.record("x", 2.125, 1 / 3)
    taken = history(7)
    taken.set_state(json.loads(json.dumps(saved.get_state())))
    assert json.dumps(taken.get_state()) == json.dumps(saved.get_state())
    assert math.isnan(taken["x"][0])
    assert taken.records.keys() == saved.records.keys()
    assert taken.histograms == saved.histograms
    assert (taken["Accuracy"], taken.histogram_offset) == (saved["Accuracy"], -2)


WRONG: list[Any] = [
    None,
    [],
    {},
    {"records": {}, "histograms": {}},
    {"records": [], "histograms": {}, "histogram_offset": 0},
    {"records": {"x": 1}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[1]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[1, "2"]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[1, True]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[1, 10**400]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[2, 1], [2, 1]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": [[math.nan, 1]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {"x": []}, "histograms": {}, "histogram_offset": 0},
    {"records": {1: [[1, 1]]}, "histograms": {}, "histogram_offset": 0},
    {"records": {}, "histograms": {"x": [[1, 2]]}, "histogram_offset": 0},
    {"records": {}, "histograms": {"x": [[1, [0.5]]]}, "histogram_offset": 0},
    {"records": {}, "histograms": {"x": [[1, [1]], [2, [1, 2]]]}, "histogram_offset": 0},
    {"records": {}, "histograms": {}, "histogram_offset": "0"},
]


@pytest.mark.parametrize("state", WRONG)
def test_an_invalid_state_is_rejected_and_nothing_changes(state):
    taken = history()
    before = json.dumps(taken.get_state())
    with pytest.raises(ValueError, match="expected a dict of records and histograms"):
        taken.set_state(state)
    assert json.dumps(taken.get_state()) == before


# --- HDF5 file -------------------------------------------------------------------------------------------------------


def test_a_history_is_written_to_hdf5_in_neons_groups_and_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    saved, path = history(), tmp_path / "h.h5"
    for name in (".", "", "loss_a/b", "losses", "cost, train", "a%2Fb", "metrics", "ärger"):
        saved.record(name, 1, math.nan)
    saved.write(path)
    with h5py.File(path) as file:
        assert set(file) == {"config", "cost", "metrics", "hist"}
        assert file["config"].attrs["total_epochs"] == 3
        assert file["cost/train"][()].tolist() == [[1, 1], [2, 0.5], [3, 1 / 3]]
        assert file["cost/validation"][()].tolist() == [[2, 1]]
        assert file["metrics/Accuracy"].shape == (3, 2)
        assert file["hist/fc.W"][1].tolist() == [2, 0, 2, 2, 0]
    result = History.read(path)
    assert {k: json.dumps(x) for k, x in result.records.items()} == {k: json.dumps(x) for k, x in saved.records.items()}
    assert (result.histograms, result.histogram_offset) == (saved.histograms, -2)
    before = path.read_bytes()
    saved.write(path)
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_a_failed_write_leaves_the_previous_file(tmp_path):
    pytest.importorskip("h5py")
    saved, path = history(), tmp_path / "h.h5"
    saved.write(path)
    before = path.read_bytes()
    saved.records["bad"] = [(1.0, "x")]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="x"):
        saved.write(path)
    assert path.read_bytes() == before
    del saved.records["bad"]
    saved.write(path)
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_a_file_that_is_not_a_history_is_rejected(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "text").write_text("epochs")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("input", data=np.zeros(3))
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file.create_group("config").attrs["hist_offset"] = 0
        file.create_dataset("cost/train", data=np.zeros(3)).attrs["name"] = "loss"
    for name in ("text", "other.h5", "odd.h5"):
        with pytest.raises(ValueError, match=f"{name}: expected a file written by History.write"):
            History.read(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such file"):
        History.read(tmp_path / "nowhere")


def test_a_damaged_or_inconsistent_history_file_is_rejected(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "h.h5"

    def odd(shape=(1, 2), dtype="f8", name="loss", offset=0, **options):
        with h5py.File(path, "w") as file:
            file.create_group("config").attrs["hist_offset"] = offset
            created = file.create_dataset("cost/train", shape, dtype, **options)
            created.attrs["name"] = name
            if "chunks" in options and created.nbytes < 1000:
                created[...] = 1
                chunk = created.id.get_chunk_info(0)
        if "chunks" in options and np.prod(shape) < 1000:
            whole = bytearray(path.read_bytes())
            whole[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
            path.write_bytes(whole)

    odd()
    assert History.read(path).records["loss"] == [(0.0, 0.0)]
    for options in (
        {"shape": (10**10, 2), "chunks": (1000, 2)},
        {"shape": (4, 2), "chunks": (4, 2), "compression": "gzip"},
        {"dtype": "S3"},
        {"dtype": [("a", "f8")]},
        {"dtype": "c16"},
        {"name": 3},
        {"name": np.zeros(2)},
        {"offset": "x"},
        {"shape": (2, 2)},  # of one time
        {"shape": ()},
        {"shape": (1, 3)},
    ):
        odd(**options)
        with pytest.raises(ValueError, match=r"h.h5: expected a file written by History.write"):
            History.read(path)


def test_the_error_names_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        History().write(tmp_path / "h")
    with pytest.raises(ImportError, match=r'pip install "neonlite\[viz\]"'):
        History().plot()


# --- plot ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_costs_fractions_other_values_and_histograms_are_plotted(tmp_path):
    pytest.importorskip("matplotlib")
    figure = history(4).plot(tmp_path / "h.png")
    costs, fractions, others, weights, bar = figure.axes
    assert costs.get_legend_handles_labels()[1] == ["loss", "val_loss"]
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


@pytest.mark.long
def test_plotting_changes_no_global_state():
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    history().plot(io.BytesIO())
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_an_empty_history_and_one_of_a_single_record_are_plotted():
    pytest.importorskip("matplotlib")
    assert len(History().plot().axes) == 1
    assert len(history(1).plot().axes) == 5
