"""Checkpoints: valid files are loaded completely; invalid ones are rejected, and nothing changes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.allocations import peak
from helpers.checkpoint_files import assert_rejected, drop, full_state, put, write_changed
from helpers.small_models import CLASSES, data, network, same, start
from safetensors.numpy import save

from neonlite import NervanaObject, gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Activation, Affine, Conv, Dropout, Linear, Pooling
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti, MeanSquared, Softmax

HUGE = 10**12
DEEP = 100_000  # of nested lists

# --- files that are not checkpoints ----------------------------------------------------------------------------------

NO_CHECKPOINTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda valid_file: b"",
    "one byte": lambda valid_file: b"\n",
    "half": lambda valid_file: valid_file[: len(valid_file) // 2],
    "longer": lambda valid_file: valid_file + bytes(8),
    "pickle": lambda valid_file: b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "zip": lambda valid_file: b"PK\x03\x04" + bytes(100),
    "gz": gzip.compress,
    "html": lambda valid_file: b"<html><body>404</body></html>",
    "text": lambda valid_file: b"{}" * 100,
    "another version": lambda valid_file: valid_file.replace(b"neonlite 2", b"neonlite 3"),
    "arrays alone": lambda valid_file: save({"x": np.zeros(3)}),
    "arrays with notes": lambda valid_file: save({"x": np.zeros(3)}, {"format": "pt"}),
    "header as long as can be": lambda valid_file: struct.pack("<Q", 2**64 - 1) + b"{}",
    "header longer than the file": lambda valid_file: struct.pack("<Q", len(valid_file)) + valid_file[8:],
    "header of 99 MB": lambda valid_file: struct.pack("<Q", 99_000_000) + b"{}",
    "header without end": lambda valid_file: struct.pack("<Q", 0) + valid_file[8:],
    "header of lists": lambda valid_file: raw(b"[" * DEEP),
    "header of dicts": lambda valid_file: raw(b'{"a":' * DEEP),
}
MESSAGES = {
    "another version": ["expected the format 'neonlite 2', got neonlite 3"],
    "arrays alone": ["expected the format 'neonlite 2', got nothing"],
    "arrays with notes": ["expected the format 'neonlite 2', got format"],
}


@pytest.mark.parametrize("name", NO_CHECKPOINTS)
def test_a_file_that_is_not_a_checkpoint_is_named(tmp_path, valid_file, model, name):
    path = tmp_path / name
    path.write_bytes(NO_CHECKPOINTS[name](valid_file))
    assert_rejected(
        model, path, "The file is truncated, or was not written by Model.save_params", *MESSAGES.get(name, [])
    )


def test_a_path_that_is_not_a_regular_file_is_named(tmp_path, valid_file, model):
    """Reading a pipe blocks, and a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "device", Path("/dev/zero")):
        assert_rejected(model, path, "expected a regular file")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("nowhere", "lost", "round"):
        with pytest.raises(FileNotFoundError, match=f"{name}: there is no such file"):
            Model(tmp_path / name)


def test_a_link_to_a_file_is_followed(tmp_path, valid_file):
    (tmp_path / "m").write_bytes(valid_file)
    (tmp_path / "link").symlink_to("m")
    assert Model(tmp_path / "link").minibatch_index == 5


def test_a_truncated_file_is_rejected_at_any_length(tmp_path, valid_file, model):
    path, before = tmp_path / "m", full_state(model)
    for n in range(0, len(valid_file), 64):
        path.write_bytes(valid_file[:n])
        with pytest.raises(CheckpointError, match=r"m: .*The file is truncated"):
            model.load_params(path)
    assert full_state(model) == before


def test_a_file_with_a_wrong_byte_is_rejected_or_equal(tmp_path, valid_file, model):
    path, rng, before = tmp_path / "m", np.random.default_rng(0), full_state(model)
    path.write_bytes(valid_file)
    description, arrays = read_checkpoint(path)
    num_equal = 0
    for _ in range(300):
        corrupted = bytearray(valid_file)
        corrupted[rng.integers(len(valid_file))] ^= 1 << rng.integers(8)
        path.write_bytes(corrupted)
        try:
            result, values = read_checkpoint(path)
        except CheckpointError:
            with pytest.raises(CheckpointError, match="m: "):
                model.load_params(path)
        else:  # whitespace in the header
            assert result == description
            assert same(values, arrays)
            num_equal += 1
    assert num_equal < 10
    assert full_state(model) == before


@pytest.mark.parametrize("name", ["weights/hidden.W", "weights/hidden_bias.W", "states/hidden/0/1"])
def test_an_array_with_a_wrong_bit_is_named(tmp_path, valid_file, model, name):
    size = struct.unpack("<Q", valid_file[:8])[0]
    first, last = json.loads(valid_file[8 : 8 + size])[name]["data_offsets"]
    for position in (first, last - 1):
        corrupted = bytearray(valid_file)
        corrupted[8 + size + position] ^= 1
        (tmp_path / "m").write_bytes(corrupted)
        assert_rejected(model, tmp_path / "m", f"m: {name}: the checksum does not match")


@pytest.mark.parametrize(("old", "new"), [(b"[8,2]", b"[2,8]"), (b'"F32"', b'"I32"'), (b"hidden.W", b"hidden.V")])
def test_an_array_with_another_dtype_or_shape_is_named(tmp_path, valid_file, model, old, new):
    (tmp_path / "m").write_bytes(valid_file.replace(old, new, 1))
    assert_rejected(model, tmp_path / "m", "hidden", "the checksum does not match")


# --- the header ------------------------------------------------------------------------------------------------------


def raw(header: Any, arrays: bytes = b"") -> bytes:
    """Return the bytes of a file with a header and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + arrays


def tensor(dtype: Any = "F32", shape: Any = (2,), first: Any = 0, last: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


HEADERS: dict[str, tuple[Any, str]] = {
    "a type that there is not": ({"x": tensor("F31")}, "F31"),
    "a type that NumPy has not": ({"x": tensor("F8_E4M3", (8,))}, "x: "),
    "a type that is none": ({"x": tensor(7)}, "header"),
    "a shape below 0": ({"x": tensor(shape=(-1, -2))}, "-1"),
    "a shape of fractions": ({"x": tensor(shape=(0.5, 4))}, "0.5"),
    "a shape larger than the bytes": ({"x": tensor(shape=(HUGE,))}, "header"),
    "a shape beyond all numbers": ({"x": tensor(shape=(2**62, 2**62))}, "overflow"),
    "a number beyond all numbers": ({"x": tensor(shape=(10**40,))}, "header"),
    "a shape that is none": ({"x": tensor(shape="2")}, "header"),
    "a shape of many sizes": ({"x": tensor(shape=[1] * 99 + [2])}, "x: "),
    "bytes beyond the end": ({"x": tensor(shape=(4,), last=16)}, "header"),
    "bytes that begin at their end": ({"x": tensor(first=8, last=0)}, "x"),
    "a hole between arrays": ({"x": tensor(shape=(1,), last=4), "y": tensor(shape=(0,), first=8)}, "y"),
    "two arrays in one place": ({"x": tensor(), "y": tensor()}, "header"),
    "arrays that overlap": ({"x": tensor(shape=(1,), last=4), "y": tensor(shape=(1,), first=2, last=6)}, "header"),
    "two arrays of one name": (b'{"x": %a, "x": %a}' % ({}, {}), "header"),
    "notes that are no text": ({"__metadata__": {"neonlite 2": {"layers": 1}}}, "header"),
    "notes that are a list": ({"__metadata__": ["neonlite 2"]}, "header"),
    "no description": ({"__metadata__": {"neonlite 2": ""}}, "description"),
    "a description that is no dict": ({"__metadata__": {"neonlite 2": "[]"}}, "description"),
    "a description of lists": ({"__metadata__": {"neonlite 2": "[" * DEEP}}, "description"),
    "a description of dicts": ({"__metadata__": {"neonlite 2": '{"a":' * DEEP}}, "description"),
    "a description with a number without end": ({"__metadata__": {"neonlite 2": "9" * 10**5}}, "description"),
    "no checksums": ({"__metadata__": {"neonlite 2": "{}"}}, "crc32"),
    "checksums that are a list": ({"__metadata__": {"neonlite 2": '{"crc32": []}'}}, "crc32"),
    "checksums that are wrong": ({"__metadata__": {"neonlite 2": '{"crc32": {"description": NaN}}'}}, "description"),
    "checksums of other arrays": (
        {"__metadata__": {"neonlite 2": json.dumps({"crc32": {"description": zlib.crc32(b"{}"), "weights/x": 1}})}},
        "weights/x: the checksum does not match",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_inconsistent_header_is_rejected(tmp_path, model, name):
    header, word = HEADERS[name]
    if isinstance(header, dict) and "__metadata__" not in header:
        header = {**header, "__metadata__": {"neonlite 2": "{}"}}
    (tmp_path / "m").write_bytes(raw(header, bytes(8)) if "x" in str(header)[:9] else raw(header))
    assert_rejected(model, tmp_path / "m", word)


# --- the description -------------------------------------------------------------------------------------------------


class Forbidden(NervanaObject):
    """A class that a file must not instantiate."""

    created = 0

    def __init__(self, path: str = "") -> None:
        super().__init__()
        Forbidden.created += 1


def described(kind: str, **config: Any) -> dict[str, Any]:
    return {"type": kind, "config": config}


def nested(n: int) -> Any:
    """Return nested lists."""
    result: Any = []
    for _ in range(n):
        result = [result]
    return result


NETWORK = ("layers", "config", "layers")  # the path of the layers; the first is Linear, "hidden"
FIRST = (*NETWORK, 0, "config")
DESCRIPTIONS: dict[str, tuple[str, Any]] = {  # name -> the field, and its value
    "no layers": ("layers", drop("layers")),
    "layers that are a list": ("layers", put("layers", value=[])),
    "layers of no class": ("layers", put("layers", "type", value="os.system")),
    "layers of a class without a name": ("layers", put("layers", "type", value=7)),
    "layers that run a program": ("layers", put("layers", value=described("subprocess.Popen", args="id"))),
    "an optimizer for layers": ("layers", put("layers", value=described("neonlite.optimizers.rules.Adam"))),
    "one layer for a network": (
        "layers",
        put("layers", value=described("neonlite.layers.linear.Linear", nout=3, init=0)),
    ),
    "a model for layers": ("layers", put("layers", value=described("neonlite.models.model.Model", layers="m"))),
    "data in a layer": (
        "layers",
        put(*FIRST, "init", value=described("neonlite.data.file_formats.HDF5Iterator", hdf_filename="/dev/zero")),
    ),
    "a callback in a layer": (
        "layers",
        put(*FIRST, "init", value=described("neonlite.callbacks.SerializeModelCallback", save_path="x")),
    ),
    "a backend in a layer": ("layers", put(*FIRST, "init", value=described("neonlite.backend.backend.Backend"))),
    "a class of yours in a layer": ("layers", put(*FIRST, "init", value=described("test_training_state.Tempting"))),
    "a class of yours deep in a layer": (
        "layers",
        put(*FIRST, "init", value=[{"x": [described("test_training_state.Tempting")]}]),
    ),
    "an optimizer in a layer": ("layers", put(*FIRST, "init", value=described("neonlite.optimizers.rules.Adam"))),
    "no arguments": ("layers", put(*FIRST, value={})),
    "arguments too many": ("layers", put(*FIRST, "more", value=1)),
    "arguments that are a list": ("layers", put(*FIRST, value=[])),
    "lists in lists": ("layers", put(*FIRST, "init", value=nested(700))),
    "no outputs": ("layers", put(*FIRST, "nout", value=0)),
    "outputs below 0": ("layers", put(*FIRST, "nout", value=-8)),
    "outputs that are no number": ("layers", put(*FIRST, "nout", value="8")),
    "outputs without end": ("layers", put(*FIRST, "nout", value=float("inf"))),
    "a name for two": ("weights", put(*FIRST, "name", value="out")),
    "a name that is a list": ("layers", put(*FIRST, "name", value=[])),
    "a fraction that is no number": ("layers", put(*NETWORK, 3, "config", "keep", value=float("nan"))),
    "no layer at all": ("layers", put(*NETWORK, value=[])),
    "layers without an order": ("layers", put(*NETWORK, value={})),
    "another shape": ("weights", put("in_shape", value=3)),
    "no shape": ("in_shape", drop("in_shape")),
    "a shape that is a word": ("in_shape", put("in_shape", value="2")),
    "a shape that is true": ("in_shape", put("in_shape", value=True)),
    "a shape below 0": ("in_shape", put("in_shape", value=-2)),
    "a shape of fractions": ("in_shape", put("in_shape", value=[0.5, 4])),
    "a shape without end": ("in_shape", put("in_shape", value=[float("inf")])),
    "a shape of shapes": ("in_shape", put("in_shape", value=[[2], [3]])),
    "a shape deep in lists": ("in_shape", put("in_shape", value=nested(700))),
    "no backend": ("backend", drop("backend")),
    "a mode that there is not": ("backend.compat_mode", put("backend", "compat_mode", value="neon")),
    "a name that is no word": ("name", put("name", value=7)),
}
TRAININGS: dict[str, tuple[str, Any]] = {
    "a training that is a list": ("training", put("training", value=[])),
    "an epoch that is a word": ("training.epoch_index", put("training", "epoch_index", value="1")),
    "an epoch that is a fraction": ("training.epoch_index", put("training", "epoch_index", value=0.5)),
    "an epoch that is no number": ("training.epoch_index", put("training", "epoch_index", value=float("nan"))),
    "an epoch below 0": ("training.epoch_index", put("training", "epoch_index", value=-1)),
    "an epoch beyond all": ("training.epoch_index", put("training", "epoch_index", value=10**300)),
    "no minibatch": ("training.minibatch_index", drop("training", "minibatch_index")),
    "a minibatch that is true": ("training.minibatch_index", put("training", "minibatch_index", value=True)),
    "a cost beyond all": ("training.epoch_cost", put("training", "epoch_cost", value=10**400)),
    "chance that is too short": ("training.rng_state", put("training", "rng_state", value=[1])),
    "chance below 0": ("training.rng_state", put("training", "rng_state", 1, value=-1)),
    "chance of another kind": ("training.rng_state", put("training", "rng_state", 0, value="mt19937")),
    "chance that is a dict": ("training.rng_state", put("training", "rng_state", value={})),
    "data that are a list": ("training.data", put("training", "data", value=[])),
    "data far beyond": ("training.data", put("training", "data", "minibatch", value=10**9)),
    "a row beyond the data": ("training.data", put("training", "data", "start", value=60)),
    "a seed that is a fraction": ("training.data", put("training", "data", "seed", value=0.5)),
    "a flag that is a number": ("training.data", put("training", "data", "shuffle", value=1)),
    "no optimizer": ("training.optimizer", drop("training", "optimizer")),
    "an optimizer of no class": ("training.optimizer", put("training", "optimizer", value=described("os.system"))),
    "a layer for an optimizer": (
        "training.optimizer",
        put("training", "optimizer", value=described("neonlite.layers.linear.Linear", nout=1, init=None)),
    ),
    "a class of yours for an optimizer": (
        "training.optimizer",
        put("training", "optimizer", value=described("test_training_state.Tempting")),
    ),
    "a class of yours for a schedule": (
        "training.optimizer",
        put("training", "optimizer", "config", "schedule", value=described("test_training_state.Tempting")),
    ),
    "a rate that is no number": (
        "training.optimizer",
        put("training", "optimizer", "config", "learning_rate", value=float("nan")),
    ),
    "a rate without end": (
        "training.optimizer",
        put("training", "optimizer", "config", "learning_rate", value=float("inf")),
    ),
    "arguments that it has not": ("training.optimizer", put("training", "optimizer", "config", "run", value="id")),
    "steps that are missing": ("training.optimizer_state", put("training", "optimizer_state", value={})),
    "steps below 0": ("training.optimizer_state", put("training", "optimizer_state", value={"t": -1})),
    "steps beyond all": ("training.optimizer_state", put("training", "optimizer_state", value={"t": 10**400})),
    "steps that are no number": ("training.optimizer_state", put("training", "optimizer_state", value={"t": None})),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_an_invalid_network_is_not_created(tmp_path, valid_file, model, name):
    field, change = DESCRIPTIONS[name]
    Forbidden.created = 0
    path = write_changed(valid_file, tmp_path / "m", change)
    assert_rejected(model, path, acts=[Model])
    with pytest.raises(CheckpointError, match=f"m: (expected the field |layers, |){field}(,| |:|$)"):
        Model(path)
    assert Forbidden.created == 0
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", TRAININGS)
def test_an_invalid_training_state_is_not_resumed(tmp_path, valid_file, model, name):
    field, change = TRAININGS[name]
    Forbidden.created = 0
    path = write_changed(valid_file, tmp_path / "m", change)
    assert_rejected(model, path, field)
    assert Forbidden.created == 0
    assert Model(path, weights_only=True).epoch_index == 0  # the network is valid


ARRAYS: dict[str, tuple[str, Any]] = {
    "one is missing": ("m: weights: .*hidden_bias.*W.*nothing", lambda d, a: a.pop("weights/hidden_bias.W")),
    "none is there": ("m: weights", lambda d, a: a.clear()),
    "one too many": ("m: weights: .*new.V.*nothing", lambda d, a: a.update({"weights/new.V": np.zeros(3)})),
    "another shape": (
        r"m: weights: .*\(8, 2\).*\(2, 8\)",
        lambda d, a: a.update({"weights/hidden.W": np.zeros((2, 8))}),
    ),
    "another size": ("m: weights: ", lambda d, a: a.update({"weights/hidden.W": np.zeros((8, 3))})),
    "complex numbers": ("m: weights: ", lambda d, a: a.update({"weights/hidden.W": np.zeros((8, 2), "c8")})),
    "many axes": ("m: weights: ", lambda d, a: a.update({"weights/hidden.W": np.zeros((1, 1, 8, 2))})),
    "of no kind": ("m: expected arrays weights/.*, got others/x", lambda d, a: a.update({"others/x": np.zeros(3)})),
    "of an empty name": ("m: expected arrays weights/.*, got $", lambda d, a: a.update({"": np.zeros(3)})),
    "of a file's name": ("m: expected arrays weights/.*, got ../../x", lambda d, a: a.update({"../../x": np.zeros(3)})),
    "a state of no layer": ("m: states: .*new/0/0", lambda d, a: a.update({"states/new/0/0": np.zeros(3, "float32")})),
    "a state behind a gap": (
        "m: states: .*hidden/0/9",
        lambda d, a: a.update({"states/hidden/0/9": np.zeros(3, "float32")}),
    ),
    "a state of another shape": (
        "m: states: .*hidden",
        lambda d, a: a.update({"states/hidden/0/1": np.zeros((2, 8), "float32")}),
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_match_are_rejected(tmp_path, valid_file, model, name):
    messages, change = ARRAYS[name]
    path = write_changed(valid_file, tmp_path / "m", change)
    assert_rejected(model, path)
    fresh = Model(network())
    for act in (model.load_params, fresh.load_params):
        with pytest.raises(CheckpointError, match=f"(?s){messages}"):
            act(path)
    path.write_bytes(valid_file)
    fresh.load_params(path)  # the rejected file changed nothing
    assert same(fresh.get_weights(), Model(path).get_weights())


def test_a_network_without_weights_is_unchanged_when_a_file_is_rejected(tmp_path, valid_file, model):
    path = write_changed(valid_file, tmp_path / "m", ARRAYS["one too many"][1])
    fresh = Model(network())
    with pytest.raises(CheckpointError):
        fresh.load_params(path)
    with pytest.raises(RuntimeError, match="expected a configured network, got none"):
        fresh.save_params(tmp_path / "n")
    fresh.initialize(5)  # other inputs than in the file
    assert fresh.get_weights()["hidden.W"].shape == (8, 5)


def test_a_loaded_network_is_unchanged_when_another_file_is_rejected(tmp_path):
    gen_backend("cpu", rng_seed=1, batch_size=2)

    def convolutional(n: int) -> Model:  # one weight, for images of any size
        model = Model([Conv((1, 1, 1), Gaussian(), name="conv")])
        model.initialize((1, n, n))
        return model

    convolutional(3).save_params(tmp_path / "m")
    loaded, X = Model(tmp_path / "m"), np.ones((4, 1, 3, 3))
    expected = loaded.predict(X)
    loaded = Model(tmp_path / "m")
    other = convolutional(5)
    other.be.compat_mode = "caffe"
    other.save_params(tmp_path / "other")
    other.be.compat_mode = None
    wrong = write_changed((tmp_path / "other").read_bytes(), tmp_path / "other", ARRAYS["one too many"][1])
    for act in (loaded.load_params, Model([Linear(8, Gaussian())]).load_params, Model):
        with pytest.raises(CheckpointError):
            act(wrong)
        assert loaded.be.compat_mode is None
    assert loaded.layers.in_shape == (1, 3, 3)
    assert loaded.layers.out_shape == (1, 3, 3)
    assert np.array_equal(loaded.predict(X), expected)


def test_a_loaded_model_runs_forward_and_backward(tmp_path, valid_file):
    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    (tmp_path / "m").write_bytes(valid_file)
    model, X = Model(tmp_path / "m"), np.ones((8, 2), np.float32)
    y = model.fprop(be.array(X.T), inference=True).get()
    np.testing.assert_allclose(y.T, model.predict(X), rtol=1e-6)
    model.fprop(be.array(X.T))
    model.bprop(be.array(np.eye(CLASSES, 8)))
    assert model.layers.gradients[0].get().any()


@pytest.mark.parametrize("initialized", [True, False])
@pytest.mark.parametrize(
    ("layers", "table"),
    [
        (
            lambda: [Affine(5, name="hidden"), Linear(CLASSES, name="new")],
            ["hidden W (5, 2) (8, 2)", "hidden_bias W (5, 1) (8, 1)", "new W (3, 5) (3, 8)"],
        ),
        (
            lambda: [Affine(8, name="a"), Linear(CLASSES, name="b"), Affine(4, name="c")],
            ["c W (4, 3) nothing", "c_bias W (4, 1) nothing"],
        ),
        (lambda: [Linear(8, name="a"), Linear(CLASSES, name="b")], ["b W (3, 8) nothing"]),
    ],
    ids=["sizes", "more", "types"],
)
def test_weights_of_another_network_are_compared_by_order_in_a_table(tmp_path, valid_file, layers, table, initialized):
    (tmp_path / "m").write_bytes(valid_file)
    gen_backend("cpu", rng_seed=1, batch_size=8)
    other = Model(layers())
    if initialized:
        other.initialize(2)
        before = other.get_weights()
    with pytest.raises(CheckpointError) as error:
        other.load_params(tmp_path / "m", load_states=False)
    assert not initialized or same(other.get_weights(), before)
    assert "none was changed; layers are matched by name, or else" in str(error.value)
    rows = [" ".join(line.split()) for line in str(error.value).splitlines()[2:]]
    assert [row for row in rows if "the file's" not in row] == table


def test_layers_with_weights_are_matched_by_order_if_other_layers_differ(tmp_path, valid_file):
    (tmp_path / "m").write_bytes(valid_file)
    loaded = Model(tmp_path / "m")
    for names in (("a", "b"), ("hidden", "out")):
        layers = [Affine(8, activation="tanh", name=names[0]), Dropout(0.5), Linear(CLASSES, name=names[1])]
        other = Model([*layers, Activation(Softmax())])
        other.load_params(tmp_path / "m")
        assert next(iter(other.get_weights())) == f"{names[0]}.W"
        for w, expected in zip(other.get_weights().values(), loaded.get_weights().values(), strict=True):
            np.testing.assert_array_equal(w, expected)
        assert other.optimizer.get_description() == loaded.optimizer.get_description()


def test_layers_are_matched_by_name_in_another_order_if_other_layers_differ():
    gen_backend("cpu", rng_seed=1, batch_size=2)
    saved = Model([Linear(2, name="a"), Linear(2, name="b")])
    saved.initialize(2)
    other = Model([Linear(2, name="b"), Dropout(0.5), Linear(2, name="a")])
    other.load_params(saved.serialize())
    assert same(other.get_weights(), {name: saved.get_weights()[name] for name in ("b.W", "a.W")})


def test_a_name_is_never_a_path(tmp_path):
    gen_backend("cpu", rng_seed=1, batch_size=2)
    names = ["../../up", "/etc/passwd", "a/b", "a.b", "", "\x1b[31m"]
    model = Model([Linear(2, Gaussian(), name=name) for name in names])
    model.fit(ArrayIterator(np.eye(2)), MeanSquared(), Adam(), 1)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert same(again.get_weights(), model.get_weights())
    assert [x.name for x in again.layers.leaves()] == names
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


# --- memory ----------------------------------------------------------------------------------------------------------


LARGE = 10**7  # 40 MB of float32, which exist; HUGE exists nowhere
GIANTS: dict[str, Any] = {
    "a large layer": put(*FIRST, "nout", value=LARGE),
    "a huge layer": put(*FIRST, "nout", value=HUGE),
    "a large input": put("in_shape", value=LARGE),
    "a huge input": put("in_shape", value=HUGE),
    "huge images": put("in_shape", value=[1, HUGE, HUGE]),
    "a layer as no computer has": put(*FIRST, "nout", value=10**400),
    "a large table": put(*FIRST, value={"vocab_size": LARGE, "embedding_dim": 8, "init": 0, "name": "hidden"}),
}


@pytest.mark.parametrize("name", GIANTS)
def test_a_file_cannot_allocate_more_memory_than_its_size(tmp_path, valid_file, model, name):
    path = write_changed(valid_file, tmp_path / "m", GIANTS[name])
    if name == "a large table":
        path = write_changed(
            path.read_bytes(), path, put(*NETWORK, 0, "type", value="neonlite.layers.attention.LookupTable")
        )
    acts = [Model] if "input" not in name else [Model, Model(network()).load_params]
    assert peak(lambda: assert_rejected(model, path, "m: ", acts=acts)) < 1_000_000 + 40 * len(valid_file)


@pytest.mark.parametrize("sizes", [(LARGE, 1), (1, LARGE), (10**6, 10**6), (HUGE, HUGE)])
def test_a_loaded_network_allocates_no_buffers_before_there_are_images(tmp_path, sizes):
    """The weights of a convolution do not depend on the declared size of images."""
    be = gen_backend("cpu", rng_seed=1, batch_size=2)
    net = [Conv((1, 1, 3), Gaussian(), batch_norm=True, name="conv"), Pooling("all", op="avg", name="pool")]
    model = Model(net)
    X = np.ones((4, 1, 5, 5), np.float32)
    model.fit(ArrayIterator(X, np.ones((4, 3)), make_onehot=False), MeanSquared(), Adam(), 1)
    description = model.get_description(keep_states=True)
    assert json.loads(json.dumps(description)) == description
    model.save_params(tmp_path / "m")
    valid_file, before = (tmp_path / "m").read_bytes(), be.memory().total
    path = write_changed(valid_file, tmp_path / "m", put("in_shape", value=[1, *sizes]))
    assert peak(lambda: Model(path)) < 1_000_000 + 40 * len(valid_file)
    other = Model(path)
    assert be.memory().total - before < 40 * len(valid_file)
    assert same(other.get_weights(), model.get_weights())
    assert np.array_equal(other.get_outputs(ArrayIterator(X)), model.get_outputs(ArrayIterator(X)))


LISTS: dict[str, Any] = {
    "numbers of a layer": put(*FIRST, "init", value=[[0.0] * 1000] * 50),
    "a word that is none": put(*FIRST, "nout", value="8" * 10**6),
    "a schedule": put("training", "optimizer", "config", "schedule", value=[0.0] * 50_000),
    "a state": put("training", "callbacks", value=[{}] * 50_000),
    "what is not asked for": put("more", value=[[]] * 50_000),
    "arrays": lambda d, a: a.update({f"weights/{i}": np.zeros(0) for i in range(5_000)}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LISTS)
def test_long_values_in_a_file_take_memory_in_proportion(tmp_path, valid_file, model, name):
    path = write_changed(valid_file, tmp_path / "m", LISTS[name])

    def load() -> None:
        with contextlib.suppress(CheckpointError):
            Model(path)

    assert peak(load) < 40 * path.stat().st_size


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    model = start()
    model.initialize(data())
    path = tmp_path / "m"
    model.save_params(path)
    before = path.read_bytes()
    model.layers.layers[0].W[:] = 5

    def full(file: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        model.save_params(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    model.save_params(path)
    assert path.read_bytes() != before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize(
    ("path", "kind", "messages"),
    [
        ("", IsADirectoryError, "model.save_params: expected the path of a file, got the folder {folder}"),
        (
            "no/m",
            FileNotFoundError,
            "model.save_params: {folder}/no/m can not be written: there is no folder {folder}/no",
        ),
        ("closed/m", PermissionError, "model.save_params: {folder}/closed/m can not be written: .* read-only for you"),
    ],
)
def test_a_path_that_cannot_be_written_is_reported(tmp_path, monkeypatch, path, kind, messages):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))
    model = start()
    model.initialize(data())
    with pytest.raises(kind, match=messages.format(folder=tmp_path)):
        model.save_params(tmp_path / path)


def test_nan_and_infinity_are_saved_and_loaded(tmp_path):
    """A failed training can be inspected."""
    model = start()
    model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0.5), 1)
    model.layers.layers[0].W[:] = np.nan
    model.total_cost = float("nan")
    with pytest.warns(RuntimeWarning, match=r"hidden.W contain NaN or infinity. Saved to .*m\.nan instead of"):
        model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m.nan")
    assert np.isnan(again.total_cost)
    assert np.isnan(again.get_weights()["hidden.W"]).all()


def test_layers_that_were_given_one_name_are_not_saved(tmp_path, model):
    first, second = model.layers.leaves()[:2]
    second.name = first.name
    with pytest.raises(ValueError, match=f"expected unique layer names to save, got {first.name} twice"):
        model.save_params(tmp_path / "m")
    assert not [*tmp_path.iterdir()]
