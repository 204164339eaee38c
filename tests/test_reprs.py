"""Tests that each public object prints what it is, as text and as HTML for notebooks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.small_models import data, network

import neonlite as nl
from neonlite import NervanaObject, callbacks, data as datasets, layers, messages, models, optimizers, transforms
from neonlite.backend import Backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Linear, Sequential, check_layer
from neonlite.layers.container import LayerList
from neonlite.transforms import CrossEntropyMulti, Softmax

PACKAGES = ["", "backend", "callbacks", "data", "initializers", "layers", "models", "optimizers", "transforms"]
ODD = '<b>"&\a'  # must be escaped; the control character is forbidden in XML

# the required arguments of constructors, by name
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "activ_rec": lambda: transforms.Tanh(),
    "activ_rec_gate": lambda: transforms.Logistic(),
    "c": lambda: 3,
    "costfunc": lambda: CrossEntropyMulti(),
    "costs": lambda: [layers.GeneralizedCost(CrossEntropyMulti())],
    "decay": lambda: 0.5,
    "depth": lambda: 3,
    "discriminator": lambda: Linear(1, Gaussian()),
    "embed_dim": lambda: 4,
    "embedding_dim": lambda: 4,
    "epochs": lambda: 3,
    "eval_set": data,
    "files": lambda: [np.ones((4, 3))],
    "fshape": lambda: (3, 3, 4),
    "generator": lambda: Linear(2, Gaussian()),
    "gradient": lambda: "dW",
    "heads": lambda: 2,
    "hidden": lambda: 8,
    "index": lambda: 0,
    "interval": lambda: 2,
    "k": lambda: 2,
    "labels": lambda: ["a", "b", "c"],
    "layers": lambda: [Linear(2, Gaussian())],
    "learning_rate": lambda: 0.1,
    "length": lambda: 4,
    "max_pixels": lambda: 1,
    "max_steps": lambda: 4,
    "merge": lambda: "stack",
    "metric": lambda: transforms.Accuracy(),
    "model": lambda: models.Model(network()),
    "momentum_coef": lambda: 0.9,
    "name": lambda: "W",
    "nhidden": lambda: 4,
    "noise_dim": lambda: 2,
    "nout": lambda: 3,
    "num_classes": lambda: 3,
    "optimizer": lambda: optimizers.Adam(),
    "optimizer_mapping": lambda: {"default": optimizers.Adam()},
    "output_size": lambda: 3,
    "power": lambda: 2,
    "rec_layer": lambda: layers.GRU,
    "reshape": lambda: (2, 3),
    "seq_len_max": lambda: 5,
    "seq_len_min": lambda: 1,
    "shape": lambda: (2, 3),
    "stop_func": lambda: lambda state, value: (state, False),
    "step_config": lambda: [1, 2],
    "task": lambda: datasets.CopyTask(4),
    "text": lambda: "she sells sea shells",
    "time_steps": lambda: 2,
    "total_epochs": lambda: 3,
    "transform": lambda: transforms.Rectlin(),
    "val": lambda: np.ones((2, 2)),
    "vec_size": lambda: 2,
    "vocab_size": lambda: 10,
    "width": lambda: 4,
    "X": lambda: np.arange(40.0).reshape(20, 2),
    "change": lambda: [0.1, 0.01],
    "cost": lambda: transforms.MeanSquared(),
    "folder": lambda: "logs",
    "path": lambda: "training.csv",
    "min_delta": lambda: 0.0,
    "mode": lambda: "min",
    "monitor": lambda: "loss",
    "patience": lambda: 3,
    "scale": lambda: 0.5,
    "schedule": lambda: optimizers.CosineSchedule(3),
}
ARGUMENTS |= {"activation": lambda: transforms.Tanh(), "gate_activation": lambda: transforms.Logistic()}
ARGUMENTS |= dict.fromkeys(["init", "init_embed", "init_ff", "init_rec", "init_const"], lambda: Gaussian(scale=0.1))
OTHERS: dict[str, Callable[[], Any]] = {
    "Autodiff": lambda: nl.Autodiff(tree(), nl.NervanaObject.be),
    "Benchmark": lambda: models.Benchmark(models.Model(network())),
    "BeamSearch": lambda: models.BeamSearch(seq2seq()),
    "Block": lambda: nl.Block.minibatch,
    "Callbacks": lambda: callbacks.Callbacks(models.Model(network(), name="net"), eval_set=data()),
    "CheckpointError": lambda: models.CheckpointError("no file"),
    "Decoder": lambda: seq2seq().decoder,
    "GAN": lambda: models.GAN(
        layers.GenerativeAdversarial(Linear(2, Gaussian()), Linear(1, Gaussian())), noise_dim=2, name="gan"
    ),
    "NervanaObject": lambda: NervanaObject("thing"),
    "OneCycleSchedule": lambda: optimizers.OneCycleSchedule(10),
    "OpTreeNode": lambda: tree(),
    "PixelwiseSoftmax": lambda: transforms.PixelwiseSoftmax(3),
    "Plan": lambda: nl.NervanaObject.be.plan(tree()),
    "PowerSchedule": lambda: optimizers.PowerSchedule(2, 0.5),
    "Seq2Seq": lambda: seq2seq(),
    "Tensor": lambda: nl.NervanaObject.be.ones((2, 2), name="x"),
    "Text": lambda: datasets.Text(2, text="she sells sea shells"),
    "Backend": lambda: nl.NervanaObject.be,
    "Convolution_bias": lambda: layers.Convolution_bias((3, 3, 4), init=Gaussian(), bias=Constant(0)),
    "MultiLabelStatsCallback": lambda: callbacks.MultiLabelStatsCallback(
        data(), ["a", "b", "c"], transforms.PrecisionRecall(3)
    ),
}
FILES = {  # need files; tests/data creates some of them
    *["CIFAR10", "Corpus", "Dataset", "HDF5Iterator", "HDF5IteratorAutoencoder", "HDF5IteratorOneHot", "HutterPrize"],
    *["IMDB", "MNIST", "PTB", "Shakespeare", "TextNMT"],
    *["HistoryFileCallback", "SaveBestStateCallback", "SerializeModelCallback", "GANPlotCallback"],
}
NAMED_BY_CONTENT = {"History", "OpTreeNode", "Plan", "Block", "Backend"}  # print what they are without their class name


def public_classes() -> dict[str, type]:
    modules = [import_module(f"neonlite.{name}" if name else "neonlite") for name in PACKAGES]
    return {name: x for m in modules for name in m.__all__ if isinstance(x := getattr(m, name), type)}


RECURRENT = layers.Recurrent, layers.GRU, layers.LSTM, layers.DeepBiRNN, layers.DeepBiLSTM
GATED = layers.GRU, layers.LSTM, layers.DeepBiLSTM

CLASSES = public_classes()
every_class = each("name", [name for name in CLASSES if name not in FILES])
PARTS = models.Model, callbacks.Callbacks  # show their parts instead of settings
OBJECTS = [name for name, x in CLASSES.items() if name not in FILES and issubclass(x, NervanaObject)]
WITH_SETTINGS = [name for name in OBJECTS if not issubclass(CLASSES[name], PARTS)]
PRINTED_WITH_SETTINGS = [name for name in WITH_SETTINGS if not issubclass(CLASSES[name], layers.Layer)]


@pytest.fixture(autouse=True)
def be() -> Backend:
    return nl.gen_backend("cpu", rng_seed=0, batch_size=4)


def tree() -> Any:
    x = nl.NervanaObject.be.ones((2, 2), name="x")
    return nl.NervanaObject.be.tanh(x) * x


def seq2seq() -> layers.Seq2Seq:
    def gru() -> layers.GRU:
        return layers.GRU(8, Gaussian(), activation=transforms.Tanh(), gate_activation=transforms.Logistic())

    return layers.Seq2Seq([[gru()], [gru(), Affine(5, Gaussian(), activation=Softmax())]])


def create(name: str) -> Any:
    """Return a simple instance of a public class."""
    if name in OTHERS:
        return OTHERS[name]()
    parameters = inspect.signature(CLASSES[name]).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    required += ["activation"] if issubclass(CLASSES[name], RECURRENT) else []
    required += ["gate_activation"] if issubclass(CLASSES[name], GATED) else []
    return CLASSES[name](**{argument: ARGUMENTS[argument]() for argument in required})


def parse(html: str) -> ElementTree.Element:
    """Parse HTML, which must be well-formed and contain no script, style sheet, color or external resource."""
    assert not re.search(r"<script|<style|<link|<img|https?:|color:|url\(|javascript|\son\w+=", html)
    return ElementTree.fromstring(f"<div>{html}</div>")


def text_of(html: str) -> str:
    return "".join(parse(html).itertext())


# --- every public class ----------------------------------------------------------------------------------------------


@every_class
def test_the_repr_of_a_public_object_says_what_it_is_in_one_line_or_a_table(name):
    thing = create(name)
    text = repr(thing)
    assert " at 0x" not in text
    assert "<neonlite" not in text
    assert name in text or name in NAMED_BY_CONTENT
    assert all(len(line) < 500 for line in text.splitlines())
    assert "\n" not in text or name in {"Array", "Model", "GAN", "Plan", "Tensor"}


@each("name", sorted(PRINTED_WITH_SETTINGS))
def test_the_repr_of_a_public_object_has_its_settings(name):
    thing = create(name)
    settings = nl.backend.objects.stored_arguments(thing)
    assert all(f"{argument}=" in repr(thing) for argument in settings)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_class_that_needs_files_has_a_repr(name):
    assert CLASSES[name].__repr__ is not object.__repr__


@every_class
def test_the_html_of_a_public_object_is_well_formed_and_names_its_class(name):
    thing = create(name)
    if isinstance(thing, NervanaObject | LayerList):
        assert text_of(thing._repr_html_()).split()[0].rstrip(",") == type(thing).__name__
    if hasattr(thing, "_repr_html_"):
        assert type(thing._repr_html_()) is str  # marimo does not display subclasses
        parse(thing._repr_html_())


@each("name", sorted(WITH_SETTINGS))
def test_the_html_of_a_public_object_has_its_settings(name):
    thing = create(name)
    rows = {row[0].text for row in parse(thing._repr_html_()).iter("tr") if len(row)}
    settings = nl.backend.objects.stored_arguments(thing)
    assert {argument for argument, x in settings.items() if not isinstance(x, list | tuple)} <= rows


@each("name", sorted(OBJECTS))
def test_names_are_escaped_in_html(name):
    thing = create(name)
    thing.name = ODD
    html = thing._repr_html_()
    parse(html)
    assert '<b>"' not in html


# --- layers and models -----------------------------------------------------------------------------------------------


def test_a_network_opens_its_layers_with_shapes_and_numbers_of_parameters():
    net = Sequential(network(), name="net")
    before = text_of(net._repr_html_())
    assert before.startswith("Sequential 'net', 6 layers, not configured")
    net.configure(2)
    net.allocate()
    after = parse(net._repr_html_())
    titles = ["".join(x.itertext()) for x in after.iter("summary")]
    assert titles[0] == "Sequential 'net', 6 layers, 2 -> 3, 48 parameters"  # 8 * 2 + 8 + 3 * 8
    assert "Linear 'hidden', 2 -> 8, 16 parameters" in titles
    assert "Gaussian" in "".join(titles)


def test_a_model_shows_its_cost_optimizer_and_layers():
    model = models.Model(network(), optimizer=optimizers.Adam(learning_rate=0.25), name=ODD)
    model.initialize(data(), CrossEntropyMulti())
    text = text_of(model._repr_html_())
    for part in ("GeneralizedCost", "CrossEntropyMulti", "Adam", "0.25", "Linear 'hidden', 2 -> 8, 16 parameters"):
        assert part in text


def test_a_compound_layer_prints_its_class_and_layers():
    layer = Affine(3, Gaussian(), bias=Constant(0), name="fc")
    assert repr(layer) == "Affine([Linear('fc', not configured), Bias('fc_bias', not configured)])"
    assert "Bias 'fc_bias', not configured" in text_of(layer._repr_html_())


def test_a_data_set_shows_rows_shape_and_classes():
    assert text_of(data()._repr_html_()).startswith("ArrayIterator 'blobs', 60 rows of shape 2, 3 classes")


def test_callbacks_show_their_history_and_each_callback():
    model = models.Model(network(), name="net")
    shown = callbacks.Callbacks(model, eval_set=data(), progress_bar=False)
    text = text_of(shown._repr_html_())
    assert text.startswith("Callbacks 'net'")
    assert all(type(x).__name__ in text for x in shown.callbacks)


def test_an_object_that_contains_itself_ends():
    schedule = optimizers.Schedule()
    adam = optimizers.Adam(schedule=schedule)
    schedule.step_config = adam
    assert "..." in text_of(adam._repr_html_())


# --- reports and plans -----------------------------------------------------------------------------------------------


def cells(html: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parse(html).iter("tr")]


def test_the_html_of_a_plan_has_a_row_for_each_stage(be):
    plan = be.plan(be.sum(tree(), axis=1))
    rows = cells(plan._repr_html_())
    assert rows[0] == ["", "stage", "shape", "ops", "reads", "writes"]
    assert len(rows) == 1 + len(plan.stages)
    assert text_of(plan._repr_html_()).startswith(repr(plan).splitlines()[0])
    assert repr(plan).splitlines()[-1].strip() in text_of(plan._repr_html_())


def test_the_html_of_a_gradient_report_has_the_rows_and_the_verdict(be):
    x = be.array([[0.5, 2.0]], name=ODD)
    report = be.check_grad(be.exp(x) * x)
    rows = cells(report._repr_html_())
    assert rows[0][:5] == ["op", "with respect to", "analytic", "numeric", "error"]
    assert len(rows) == 1 + len(report.rows)
    assert any("<b>" in cell for row in rows for cell in row)
    assert repr(report).splitlines()[-1] in text_of(report._repr_html_())


def test_the_html_of_a_layer_report_has_the_rows_and_the_verdict():
    report = check_layer(Linear(2, Gaussian()), 3)
    rows = cells(report._repr_html_())
    assert rows[0][:7] == ["", "shape", "index", "layer", "formula", "numerical", "error"]
    assert [row[0] for row in rows[1:]] == [row.name for row in report.rows]
    assert "check_layer: passed" in text_of(report._repr_html_())


def test_the_html_of_a_summary_has_the_layers_and_the_memory():
    net = Sequential([Linear(2, Gaussian(), name="<b>")])
    page = net.summary(3)._repr_html_()
    assert any(row[0].strip() == "<b> (Linear)" for row in cells(page))
    assert "Memory of training with minibatches of 4:" in text_of(page)


def test_numbers_are_right_aligned_and_text_is_not():
    assert messages.table([("1,5", "-2.5e-07", "a")]).count("text-align: left") == 1
