"""Files whose parts contradict each other are refused: encoders, network, arrays, optimizer states, positions."""

from __future__ import annotations

import copy
import cProfile
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import cleanup_backend, gen_backend
from neonlite.callbacks import EarlyStop
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Conv, Deconv, LookupTable, Pooling, RecurrentMean, Sequential
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam
from neonlite.transforms import Softmax

Change = Callable[[Any, Any], object]  # of a description and the arrays

TEXTS = ["a good film", "a bad film", "good", "bad plot"]
TABLE = {"size": [1.0, 2.0, 4.0, 3.0], "color": ["red", "green", "red", "blue"]}


def dense(n: int, activation: Any = None, name: str = "out") -> Any:
    return Affine(n, Gaussian(), bias=Constant(0), activation=activation, name=name)


def text() -> Model:
    return fitted([LookupTable(8, 3, name="table"), RecurrentMean(), dense(3, Softmax())], TEXTS, [3, 5, 9, 3])


def table() -> Model:
    return fitted([dense(3, Softmax())], TABLE, ["x", "y", "z", "x"])


def numbers() -> Model:
    X = np.arange(12.0).reshape(4, 3)
    return fitted([dense(2)], X, X[:, :2] * 5 + 1, validation_split=0.25, callbacks=[EarlyStop(9)])


def labels() -> Model:
    return fitted([dense(2, "logistic")], np.arange(12.0).reshape(4, 3), np.array([[0, 1], [1, 1], [0, 0], [1, 0]]))


def images() -> Model:
    X = np.zeros((4, 1, 5, 5), np.uint8)
    layers = [Conv((3, 3, 2), Gaussian(), padding=1, dilation=1, name="conv"), Pooling("all", op="avg")]
    return fitted([*layers, dense(2, Softmax())], X, [0, 1, 0, 1], layout="NCHW")


def fitted(layers: Any, X: Any, y: Any, **options: Any) -> Model:
    gen_backend("cpu", rng_seed=1)
    model = Model(layers)
    model.fit(X, y, epochs=1, optimizer=Adam(), progress_bar=False, **options)
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Any]]:
    """Yield the contents of a file of each model."""
    path, found = tmp_path_factory.mktemp("files") / "m", {}
    for create in (text, table, numbers, labels, images):
        create().save_params(path)
        found[create] = read_checkpoint(path)
    yield found
    cleanup_backend()


def write(files: Any, path: Path, create: Any, change: Change) -> Path:
    description, arrays = copy.deepcopy(files[create])
    change(description, arrays)
    write_checkpoint(path, description, arrays)
    return path


def config(description: Any, name: str) -> Any:
    """Return the arguments of an encoder."""
    return description["encoders"][name]["config"]


def put(name: str, **values: Any) -> Change:
    """Return a change of arguments of an encoder."""
    return lambda d, a: config(d, name).update(values)


def training(*path: Any, value: Any) -> Change:
    def change(d: Any, a: Any) -> None:
        part = d["training"]
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value

    return change


def cast(name: str, dtype: str) -> Change:
    return lambda d, a: a.update({name: a[name].astype(dtype)})


def text_length(n: int) -> Change:
    def change(d: Any, a: Any) -> None:
        config(d, "inputs")["length"] = n
        d["in_shape"] = [1, n]

    return change


def layer(**values: Any) -> Change:
    return lambda d, a: d["layers"]["config"]["layers"][0]["config"].update(values)


FAULTS: dict[str, tuple[Any, str, Change]] = {  # the model, the entry that the message names, and the change
    "a class more than outputs": (text, "encoders: .*targets: .*4 outputs", put("targets", classes=[3, 5, 9, 7])),
    "a class less than outputs": (text, "encoders: .*targets: .*2 outputs", put("targets", classes=[3, 5])),
    "a class twice": (table, "encoders.targets: .*different values for classes", put("targets", classes=list("xyx"))),
    "a class of another type": (text, "encoders.targets: .*classes", put("targets", classes=[3, 5, True])),
    "classes beyond uint64": (text, "encoders.targets: ", put("targets", classes=[3, 5, 2**64])),
    "negative and large classes": (text, "encoders.targets: ", put("targets", classes=[-3, 5, 2**63])),
    "classes of another dtype": (text, "encoders.targets: .*classes", put("targets", dtype="str")),
    "labels for one-hot data": (text, "encoders.targets: .*one-hot", put("targets", one_hot=True)),
    "a mean for two outputs": (numbers, "encoders: .*targets", put("targets", mean=[1.0], deviation=[1.0])),
    "means without deviations": (numbers, "encoders.targets: ", put("targets", deviation=None)),
    "a vector of two outputs": (numbers, "encoders.targets: ", put("targets", is_vector=True)),
    "a missing argument": (
        numbers,
        "encoders.targets: .*arguments",
        lambda d, a: config(d, "targets").pop("is_vector"),
    ),
    "three names for two outputs": (labels, "encoders: .*targets", put("targets", names=list("abc"))),
    "two names that are equal": (labels, "encoders.targets: .*names", put("targets", names=["a", "a"])),
    "encoders of no use": (numbers, "encoders: .*got other", lambda d, a: d["encoders"].update(other={})),
    "a token twice": (text, "encoders.inputs: .*vocab", lambda d, a: config(d, "inputs")["vocabulary"].append("film")),
    "a vocabulary larger than the table": (
        *(text, "encoders: .*inputs: .*LookupTable"),
        lambda d, a: config(d, "inputs")["vocabulary"].extend("uvwxyz"),
    ),
    "columns of one name": (table, "encoders.inputs: .*names of columns", lambda d, a: rename_column(d)),
    "features more than the network has": (
        *(table, "encoders: .*inputs"),
        lambda d, a: config(d, "inputs")["columns"][1]["categories"].append("more"),
    ),
    "moments of images": (images, "encoders.inputs: .*layout", put("inputs", mean=[], deviation=[])),
    "deviations without means": (numbers, "encoders.inputs: ", put("inputs", mean=None)),
    "a text of a gigabyte": (text, "encoders: .*inputs: .*at most 1024 tokens", text_length(10**9)),
    "weights of int8": (numbers, "arrays: weights/out.W: expected float32, got int8", cast("weights/out.W", "int8")),
    "weights of bool": (numbers, "arrays: weights/out.W: .*got bool", cast("weights/out.W", "bool")),
    "weights of fewer bits": (numbers, "arrays: weights/out.W: .*got float16", cast("weights/out.W", "float16")),
    "states of int64": (numbers, "arrays: states/out/0/1: .*got int64", cast("states/out/0/1", "int64")),
    "a state of two": (numbers, "states: out: expected the states mean, ", lambda d, a: a.pop("states/out/0/1")),
    "no states of an updated parameter": (
        *(numbers, "states: out: expected the states mean, mean_square, got 0"),
        lambda d, a: [a.pop(f"states/out/0/{i}") for i in range(2)],
    ),
    "a kind that is none": (numbers, "states: ", training("updates", "out", value=[["Adam(mean", 1]])),
    "a minibatch beyond the data": (numbers, "training.data: ", training("data", "minibatch", value=10**6)),
    "a seed of 200 bits": (numbers, "training.data: ", training("data", "seed", value=2**200)),
    "two positions in the epoch": (
        *(numbers, "training: expected minibatch_index = data.minibatch, got 99 and 0"),
        training("minibatch_index", value=99),
    ),
    "a cost that is a boolean": (
        *(numbers, "training.total_cost: unexpected type bool"),
        training("total_cost", value=True),
    ),
    "a seed that is a word": (numbers, "training.data: ", training("data", "seed", value="x")),
    "a padding of a million pixels": (images, "layers, in_shape: conv: .*at most 65536 elements", layer(padding=10**6)),
    "strides without weights": (
        *(images, "layers, in_shape: up1: expected at most 65536 elements for a row, got 25934402"),
        lambda d, a: large_network(d),
    ),
    "a dilation with its padding": (images, "layers, in_shape: conv: ", layer(padding=10**6, dilation=10**6)),
}


def large_network(d: Any) -> None:
    """Replace the convolution by transposed ones, whose few weights make large images."""
    layers = [Deconv((1, 1, 2), Gaussian(), strides=30, name=f"up{i}") for i in range(2)]
    d["layers"]["config"]["layers"][:1] = Sequential(layers).get_description()["config"]["layers"]


def rename_column(d: Any) -> None:
    for column in config(d, "inputs")["columns"]:
        column["name"] = "size"


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_contradicts_itself_is_refused_with_the_name_of_the_entry(tmp_path, files, name):
    create, entry, change = FAULTS[name]
    gen_backend("cpu", rng_seed=1)
    path = write(files, tmp_path / "m", create, change)
    with pytest.raises(CheckpointError, match=f"^{path}: {entry}"):
        Model(path)
    Model(write(files, path, create, lambda d, a: None))  # the original is loaded


def test_weights_of_an_early_stop_that_are_not_those_of_the_network_are_refused_by_fit(tmp_path, files):
    X = np.arange(12.0).reshape(4, 3)
    for change in (cast("callbacks/0", "bool"), lambda d, a: a.update({"callbacks/0": np.zeros((3, 9), np.float32)})):
        gen_backend("cpu", rng_seed=1)
        model = Model(write(files, tmp_path / "m", numbers, change))
        before = model.get_weights()
        with pytest.raises(CheckpointError, match=r"m: training.callbacks: "):
            model.fit(X, X[:, :2], epochs=1, validation_split=0.25, callbacks=[EarlyStop(9)], progress_bar=False)
        assert all(np.array_equal(x, before[name]) for name, x in model.get_weights().items())


@pytest.mark.long
def test_a_network_with_outputs_of_any_size_is_loaded_into_one_that_was_created_in_python(tmp_path):
    def create() -> Model:
        return Model([Deconv((1, 1, 1), Gaussian(), strides=64, name="up"), Pooling("all", op="avg"), dense(2)])

    gen_backend("cpu", rng_seed=1)
    model, X = create(), np.ones((2, 1, 5, 5), np.float32)
    model.fit(X, np.eye(2), epochs=1, layout="NCHW", progress_bar=False)
    model.save_params(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"up: expected at most 65536 elements.*load_params"):
        Model(tmp_path / "m")
    loaded = create()
    loaded.layers.configure((1, 5, 5))
    loaded.load_params(tmp_path / "m")
    assert np.array_equal(loaded.predict(X), model.predict(X))


def test_a_text_may_have_as_many_tokens_as_the_network_has_parameters():
    for vocabulary, fits in ((1000, True), (10, False)):
        gen_backend("cpu", rng_seed=1)
        model = Model([LookupTable(vocabulary, 3), RecurrentMean(), dense(2, Softmax())])
        fit = lambda model=model: model.fit(TEXTS, [0, 1, 0, 1], epochs=1, text_length=1500, progress_bar=False)  # noqa: E731
        if fits:
            fit()
        else:
            with pytest.raises(ValueError, match="fit: inputs: expected texts of at most 1024 tokens"):
                fit()


def calls(path: Path) -> int:
    """Return the number of calls of functions while a file is loaded, without those of the garbage collector."""
    gen_backend("cpu", rng_seed=1)
    profile = cProfile.Profile()
    gc.disable()
    profile.enable()
    Model(path)
    profile.disable()
    gc.enable()
    return sum(entry.callcount for entry in profile.getstats())


def layers_of_one_name(d: Any, a: Any, n: int) -> None:
    layers = d["layers"]["config"]["layers"]
    layers[-1:] = [{"type": "Activation", "config": {"transform": "relu", "name": "same"}}] * n + layers[-1:]


def more_columns(d: Any, a: Any, n: int) -> None:
    config(d, "inputs")["columns"] += [{"name": f"{i}", "mean": 0.0, "deviation": 1.0} for i in range(n)]
    resize(d, a, 4 + n)


def more_categories(d: Any, a: Any, n: int) -> None:
    config(d, "inputs")["columns"][1]["categories"] += [f"{i}" for i in range(n)]
    resize(d, a, 4 + n)


def resize(d: Any, a: Any, n: int) -> None:
    """Set the number of inputs."""
    d["in_shape"] = n
    a.update({key: np.zeros((3, n), np.float32) for key in ("weights/out.W", "states/out/0/0", "states/out/0/1")})


@pytest.mark.parametrize("add", [layers_of_one_name, more_columns, more_categories])
def test_loading_takes_calls_in_proportion_to_the_entries(tmp_path, files, add):
    counts = [calls(write(files, tmp_path / "m", table, lambda d, a, n=n: add(d, a, n))) for n in (0, 200, 400)]
    assert counts[2] - counts[1] <= 1.1 * (counts[1] - counts[0])


def test_equal_names_of_layers_are_numbered_with_those_of_their_biases():
    gen_backend("cpu", rng_seed=1)
    net = Sequential([Affine(2, Gaussian(), bias=Constant(0), name=name) for name in ("a", "a_1", "a", "a")])
    names = [layer.name for layer in net.leaves()]
    assert names == ["a", "a_bias", "a_1", "a_1_bias", "a_2", "a_2_bias", "a_3", "a_3_bias"]
