"""What a file says of itself is not believed: it is loaded whole and true, or refused, and then nothing has changed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from test_models import CLASSES, Interrupting, blobs, data, network, same, start

from neonlite import NervanaObject, cleanup_backend, gen_backend
from neonlite.callbacks import Listener
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Conv, Dropout, Linear, Pooling
from neonlite.models import CheckpointError, Model
from neonlite.models.checkpoint import read_checkpoint, write_checkpoint
from neonlite.models.state import State
from neonlite.optimizers import Adam, GradientDescentMomentum, MultiOptimizer, PowerSchedule
from neonlite.transforms import CrossEntropyMulti, MeanSquared, Rectlin, Softmax

HUGE = 10**12
DEEP = 100_000  # of nested lists

Files = dict[str, bytes]


def trained(optimizer: Any = None) -> Model:
    """A model in the middle of a training."""
    model = start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer or Adam(), 3, callbacks=Interrupting(model, 4))
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """A file that is in order."""
    path = tmp_path_factory.mktemp("whole") / "m"
    trained().save_params(path)
    yield path.read_bytes()
    cleanup_backend()


@pytest.fixture(scope="module")
def model(whole: bytes) -> Model:
    """A model that files are loaded into."""
    model = start()
    model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0.5), 2)
    return model


def told(model: Model) -> Any:
    """All that there is to a model."""
    description, arrays = State.of(model)
    return description, {name: (x.dtype, x.shape, x.tobytes()) for name, x in arrays.items()}


def refused(model: Model, path: Any, *words: str, acts: Any = None) -> None:
    """Assert that a file is refused, that the error names it and has some words, and that nothing has changed."""
    before, mode = told(model), model.be.compat_mode
    for act in acts or (model.load_params, Model):
        with pytest.raises(CheckpointError) as error:
            act(path)
        assert str(error.value).startswith(f"{path}: ")
        assert len(str(error.value)) < 2000
        for word in words:
            assert word in str(error.value)
        assert told(model) == before
        assert model.be.compat_mode == mode


def changed(whole: bytes, path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Path:
    """Write a file with another description and other arrays, and checksums that are right."""
    path.write_bytes(whole)
    description, arrays = read_checkpoint(path)
    change(description, arrays)
    write_checkpoint(path, description, arrays)
    return path


# --- what is no checkpoint ------------------------------------------------------------------------------------------

NO_CHECKPOINTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "one byte": lambda whole: b"\n",
    "half": lambda whole: whole[: len(whole) // 2],
    "longer": lambda whole: whole + bytes(8),
    "pickle": lambda whole: b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "zip": lambda whole: b"PK\x03\x04" + bytes(100),
    "gz": gzip.compress,
    "html": lambda whole: b"<html><body>404</body></html>",
    "text": lambda whole: b"{}" * 100,
    "another version": lambda whole: whole.replace(b"neonlite 1", b"neonlite 2"),
    "arrays alone": lambda whole: save({"x": np.zeros(3)}),
    "arrays with notes": lambda whole: save({"x": np.zeros(3)}, {"format": "pt"}),
    "header as long as can be": lambda whole: struct.pack("<Q", 2**64 - 1) + b"{}",
    "header longer than the file": lambda whole: struct.pack("<Q", len(whole)) + whole[8:],
    "header of 99 MB": lambda whole: struct.pack("<Q", 99_000_000) + b"{}",
    "header without end": lambda whole: struct.pack("<Q", 0) + whole[8:],
    "header of lists": lambda whole: raw(b"[" * DEEP),
    "header of dicts": lambda whole: raw(b'{"a":' * DEEP),
}


SAYING = {
    "another version": ["it says neonlite 2 of itself, and not 'neonlite 1'"],
    "arrays alone": ["it says nothing of itself"],
    "arrays with notes": ["it says format of itself"],
}


@pytest.mark.parametrize("name", NO_CHECKPOINTS)
def test_what_is_no_checkpoint_is_named(tmp_path, whole, model, name):
    path = tmp_path / name
    path.write_bytes(NO_CHECKPOINTS[name](whole))
    refused(model, path, "it is no checkpoint, or it was cut short", *SAYING.get(name, []))


def test_what_is_no_file_is_named(tmp_path, whole, model):
    """A pipe would be waited for, and a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "device", Path("/dev/zero")):
        refused(model, path, "it is no regular file")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("nowhere", "lost", "round"):
        with pytest.raises(FileNotFoundError, match=f"{name}: there is no such file"):
            Model(tmp_path / name)


def test_a_link_to_a_file_is_followed(tmp_path, whole):
    (tmp_path / "m").write_bytes(whole)
    (tmp_path / "link").symlink_to("m")
    assert Model(tmp_path / "link").minibatch_index == 5


def test_a_file_that_was_cut_short_anywhere_is_refused(tmp_path, whole, model):
    path, before = tmp_path / "m", told(model)
    for n in range(0, len(whole), 64):
        path.write_bytes(whole[:n])
        with pytest.raises(CheckpointError, match=r"m: .*it was cut short"):
            model.load_params(path)
    assert told(model) == before


def test_a_file_with_a_wrong_byte_is_refused_or_says_the_same(tmp_path, whole, model):
    path, rng, before = tmp_path / "m", np.random.default_rng(0), told(model)
    path.write_bytes(whole)
    description, arrays = read_checkpoint(path)
    same_still = 0
    for _ in range(300):
        spoiled = bytearray(whole)
        spoiled[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(spoiled)
        try:
            found, values = read_checkpoint(path)
        except CheckpointError:
            with pytest.raises(CheckpointError, match="m: "):
                model.load_params(path)
        else:  # a space in the header is another one
            assert found == description
            assert same(values, arrays)
            same_still += 1
    assert same_still < 10
    assert told(model) == before


@pytest.mark.parametrize("name", ["weights/hidden.W", "weights/hidden_bias.W", "states/hidden/0/1"])
def test_an_array_with_a_wrong_bit_is_named(tmp_path, whole, model, name):
    size = struct.unpack("<Q", whole[:8])[0]
    first, last = json.loads(whole[8 : 8 + size])[name]["data_offsets"]
    for place in (first, last - 1):
        spoiled = bytearray(whole)
        spoiled[8 + size + place] ^= 1
        (tmp_path / "m").write_bytes(spoiled)
        refused(model, tmp_path / "m", f"m: {name}: the bytes are not those that were written")


@pytest.mark.parametrize(("old", "new"), [(b"[8,2]", b"[2,8]"), (b'"F32"', b'"I32"'), (b"hidden.W", b"hidden.V")])
def test_an_array_with_another_head_is_named(tmp_path, whole, model, old, new):
    (tmp_path / "m").write_bytes(whole.replace(old, new, 1))
    refused(model, tmp_path / "m", "hidden", "the bytes are not those that were written")


# --- what the header says --------------------------------------------------------------------------------------------


def raw(header: Any, arrays: bytes = b"") -> bytes:
    """A file of a header and bytes."""
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
    "notes that are no text": ({"__metadata__": {"neonlite 1": {"layers": 1}}}, "header"),
    "notes that are a list": ({"__metadata__": ["neonlite 1"]}, "header"),
    "no description": ({"__metadata__": {"neonlite 1": ""}}, "description"),
    "a description that is no dict": ({"__metadata__": {"neonlite 1": "[]"}}, "description"),
    "a description of lists": ({"__metadata__": {"neonlite 1": "[" * DEEP}}, "description"),
    "a description of dicts": ({"__metadata__": {"neonlite 1": '{"a":' * DEEP}}, "description"),
    "a description with a number without end": ({"__metadata__": {"neonlite 1": "9" * 10**5}}, "description"),
    "no checksums": ({"__metadata__": {"neonlite 1": "{}"}}, "crc32"),
    "checksums that are a list": ({"__metadata__": {"neonlite 1": '{"crc32": []}'}}, "crc32"),
    "checksums that are wrong": ({"__metadata__": {"neonlite 1": '{"crc32": {"description": NaN}}'}}, "description"),
    "checksums of other arrays": (
        {"__metadata__": {"neonlite 1": json.dumps({"crc32": {"description": zlib.crc32(b"{}"), "weights/x": 1}})}},
        "weights/x: the bytes are not those that were written",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path, model, name):
    header, word = HEADERS[name]
    if isinstance(header, dict) and "__metadata__" not in header:
        header = {**header, "__metadata__": {"neonlite 1": "{}"}}
    (tmp_path / "m").write_bytes(raw(header, bytes(8)) if "x" in str(header)[:9] else raw(header))
    refused(model, tmp_path / "m", word)


# --- what the description says ---------------------------------------------------------------------------------------


class Tempting(NervanaObject):
    """What a file is not to make."""

    made = 0

    def __init__(self, path: str = "") -> None:
        super().__init__()
        Tempting.made += 1


def put(*path: Any, value: Any) -> Callable[[Any, Any], None]:
    """A change of the description: another value at a path."""

    def change(description: Any, arrays: Any) -> None:
        for key in path[:-1]:
            description = description[key]
        description[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any, Any], None]:
    """A change of the description: what is at a path is left out."""

    def change(description: Any, arrays: Any) -> None:
        for key in path[:-1]:
            description = description[key]
        del description[path[-1]]

    return change


def thing(kind: str, **config: Any) -> dict[str, Any]:
    return {"type": kind, "config": config}


def nested(n: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(n):
        found = [found]
    return found


NETWORK = ("layers", "config", "layers")  # the path of the layers; the first is Linear, "hidden"
FIRST = (*NETWORK, 0, "config")
SGD = "neonlite.optimizers.rules.GradientDescentMomentum"

DESCRIPTIONS: dict[str, tuple[str, Any]] = {  # which field -> what is there
    "no layers": ("layers", drop("layers")),
    "layers that are a list": ("layers", put("layers", value=[])),
    "layers of no class": ("layers", put("layers", "type", value="os.system")),
    "layers of a class without a name": ("layers", put("layers", "type", value=7)),
    "layers that run a program": ("layers", put("layers", value=thing("subprocess.Popen", args="id"))),
    "an optimizer for layers": ("layers", put("layers", value=thing("neonlite.optimizers.rules.Adam"))),
    "one layer for a network": ("layers", put("layers", value=thing("neonlite.layers.linear.Linear", nout=3, init=0))),
    "a model for layers": ("layers", put("layers", value=thing("neonlite.models.model.Model", layers="m"))),
    "data in a layer": (
        "layers",
        put(*FIRST, "init", value=thing("neonlite.data.hdf5.HDF5Iterator", hdf_filename="/dev/zero")),
    ),
    "a callback in a layer": (
        "layers",
        put(*FIRST, "init", value=thing("neonlite.callbacks.SerializeModelCallback", save_path="x")),
    ),
    "a backend in a layer": ("layers", put(*FIRST, "init", value=thing("neonlite.backend.backend.Backend"))),
    "a class of yours in a layer": ("layers", put(*FIRST, "init", value=thing("test_checkpoints.Tempting"))),
    "a class of yours deep in a layer": (
        "layers",
        put(*FIRST, "init", value=[{"x": [thing("test_checkpoints.Tempting")]}]),
    ),
    "an optimizer in a layer": ("layers", put(*FIRST, "init", value=thing("neonlite.optimizers.rules.Adam"))),
    "no arguments": ("layers", put(*FIRST, value={})),
    "arguments too many": ("layers", put(*FIRST, "more", value=1)),
    "arguments that are a list": ("layers", put(*FIRST, value=[])),
    "lists in lists": ("layers", put(*FIRST, "init", value=nested(700))),
    "no outputs": ("layers", put(*FIRST, "nout", value=0)),
    "outputs below 0": ("layers", put(*FIRST, "nout", value=-8)),
    "outputs that are no number": ("layers", put(*FIRST, "nout", value="8")),
    "outputs without end": ("layers", put(*FIRST, "nout", value=float("inf"))),
    "a name for two": ("layers", put(*FIRST, "name", value="out")),
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
    "no optimizer": ("training.optimizer", drop("training", "optimizer")),
    "an optimizer of no class": ("training.optimizer", put("training", "optimizer", value=thing("os.system"))),
    "a layer for an optimizer": (
        "training.optimizer",
        put("training", "optimizer", value=thing("neonlite.layers.linear.Linear", nout=1, init=None)),
    ),
    "a class of yours for an optimizer": (
        "training.optimizer",
        put("training", "optimizer", value=thing("test_checkpoints.Tempting")),
    ),
    "a class of yours for a schedule": (
        "training.optimizer",
        put("training", "optimizer", "config", "schedule", value=thing("test_checkpoints.Tempting")),
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
    "steps that are not told": ("training.optimizer_state", put("training", "optimizer_state", value={})),
    "steps below 0": ("training.optimizer_state", put("training", "optimizer_state", value={"t": -1})),
    "steps beyond all": ("training.optimizer_state", put("training", "optimizer_state", value={"t": 10**400})),
    "steps that are no number": ("training.optimizer_state", put("training", "optimizer_state", value={"t": None})),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_network_that_is_none_is_not_made(tmp_path, whole, model, name):
    field, change = DESCRIPTIONS[name]
    Tempting.made = 0
    path = changed(whole, tmp_path / "m", change)
    refused(model, path, acts=[Model])
    with pytest.raises(CheckpointError, match=f"m: (the description has no |layers, |){field}( |:|$)"):
        Model(path)
    assert Tempting.made == 0
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_is_none_is_not_gone_on_with(tmp_path, whole, model, name):
    field, change = TRAININGS[name]
    Tempting.made = 0
    path = changed(whole, tmp_path / "m", change)
    refused(model, path, field)
    assert Tempting.made == 0
    assert Model(path, weights_only=True).epoch_index == 0  # the network alone is in order


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
    "of no kind": ("m: others/x: arrays are weights", lambda d, a: a.update({"others/x": np.zeros(3)})),
    "of an empty name": ("m: : arrays are weights", lambda d, a: a.update({"": np.zeros(3)})),
    "of a file's name": ("m: ../../x: arrays are weights", lambda d, a: a.update({"../../x": np.zeros(3)})),
    "a state of no layer": ("m: states: .*new/0/0", lambda d, a: a.update({"states/new/0/0": np.zeros(3)})),
    "a state behind a gap": ("m: states: .*hidden/0/9", lambda d, a: a.update({"states/hidden/0/9": np.zeros(3)})),
    "a state of another shape": ("m: states: .*hidden", lambda d, a: a.update({"states/hidden/0/1": np.zeros((2, 8))})),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(tmp_path, whole, model, name):
    words, change = ARRAYS[name]
    path = changed(whole, tmp_path / "m", change)
    refused(model, path)
    fresh = Model(network())
    for act in (model.load_params, fresh.load_params):
        with pytest.raises(CheckpointError, match=f"(?s){words}"):
            act(path)
    path.write_bytes(whole)
    fresh.load_params(path)  # what was refused has left nothing behind
    assert same(fresh.get_weights(), Model(path).get_weights())


def test_a_network_without_weights_stays_so_when_a_file_is_refused(tmp_path, whole, model):
    path = changed(whole, tmp_path / "m", ARRAYS["one too many"][1])
    fresh = Model(network())
    with pytest.raises(CheckpointError):
        fresh.load_params(path)
    with pytest.raises(RuntimeError, match="it has no weights yet"):
        fresh.save_params(tmp_path / "n")
    fresh.initialize(5)  # other inputs than the file's
    assert fresh.get_weights()["hidden.W"].shape == (8, 5)


def test_a_network_of_a_file_stays_as_it_is_when_another_is_refused(tmp_path):
    gen_backend("cpu", rng_seed=1, batch_size=2)

    def wide(n: int) -> Model:  # one weight, for images of any size
        model = Model([Conv((1, 1, 1), Gaussian(), name="conv")])
        model.initialize((1, n, n))
        return model

    wide(3).save_params(tmp_path / "m")
    loaded, X = Model(tmp_path / "m"), np.ones((4, 1, 3, 3))
    expected = loaded.predict(X)
    loaded = Model(tmp_path / "m")
    other = wide(5)
    other.be.compat_mode = "caffe"
    other.save_params(tmp_path / "other")
    other.be.compat_mode = None
    wrong = changed((tmp_path / "other").read_bytes(), tmp_path / "other", ARRAYS["one too many"][1])
    for act in (loaded.load_params, Model([Linear(8, Gaussian())]).load_params, Model):
        with pytest.raises(CheckpointError):
            act(wrong)
        assert loaded.be.compat_mode is None
    assert loaded.layers.in_shape == (1, 3, 3)
    assert loaded.layers.out_shape == (1, 3, 3)
    assert np.array_equal(loaded.predict(X), expected)


def test_a_model_of_a_file_goes_forward_and_back(tmp_path, whole):
    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    (tmp_path / "m").write_bytes(whole)
    model, X = Model(tmp_path / "m"), np.ones((8, 2), np.float32)
    y = model.fprop(be.array(X.T), inference=True).get()
    np.testing.assert_allclose(y.T, model.predict(X), rtol=1e-6)
    model.fprop(be.array(X.T))
    model.bprop(be.array(np.eye(CLASSES, 8)))
    assert model.layers.gradients[0].get().any()


def test_weights_of_another_network_are_told_in_a_table(tmp_path, whole):
    (tmp_path / "m").write_bytes(whole)
    gen_backend("cpu", rng_seed=1, batch_size=8)
    other = Model([Affine(5, Gaussian(), name="hidden"), Affine(CLASSES, Gaussian(), name="new")])
    other.initialize(2)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=r"(?s)m: .*hidden.*\(5, 2\).*\(8, 2\).*new.*nothing"):
        other.load_params(tmp_path / "m", load_states=False)
    assert same(other.get_weights(), before)


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


# --- what a file may cost --------------------------------------------------------------------------------------------


def cost_of(act: Callable[[], Any]) -> int:
    """The most bytes that Python and NumPy had at once, above what there was."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LARGE = 10**7  # 40 MB of float32, which there is; nothing of HUGE is anywhere

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
def test_a_file_cannot_ask_for_more_than_it_has(tmp_path, whole, model, name):
    path = changed(whole, tmp_path / "m", GIANTS[name])
    if name == "a large table":
        path = changed(path.read_bytes(), path, put(*NETWORK, 0, "type", value="neonlite.layers.embedding.LookupTable"))
    acts = [Model] if "input" not in name else [Model, Model(network()).load_params]
    assert cost_of(lambda: refused(model, path, "m: ", acts=acts)) < 1_000_000 + 40 * len(whole)


@pytest.mark.parametrize("sizes", [(LARGE, 1), (1, LARGE), (10**6, 10**6), (HUGE, HUGE)])
def test_images_of_a_file_take_no_memory_before_there_are_some(tmp_path, sizes):
    """The weights of a convolution are in order, whatever the size of images is said to be."""
    be = gen_backend("cpu", rng_seed=1, batch_size=2)
    net = [Conv((1, 1, 3), Gaussian(), batch_norm=True, name="conv"), Pooling("all", op="avg", name="pool")]
    model = Model(net)
    X = np.ones((4, 1, 5, 5), np.float32)
    model.fit(ArrayIterator(X, np.ones((4, 3)), make_onehot=False), MeanSquared(), Adam(), 1)
    description = model.get_description(keep_states=True)
    assert json.loads(json.dumps(description)) == description
    model.save_params(tmp_path / "m")
    whole, before = (tmp_path / "m").read_bytes(), be.memory().total
    path = changed(whole, tmp_path / "m", put("in_shape", value=[1, *sizes]))
    assert cost_of(lambda: Model(path)) < 1_000_000 + 40 * len(whole)
    other = Model(path)
    assert be.memory().total - before < 40 * len(whole)
    assert same(other.get_weights(), model.get_weights())
    assert np.array_equal(other.get_outputs(ArrayIterator(X)), model.get_outputs(ArrayIterator(X)))


LISTS: dict[str, Any] = {
    "numbers of a layer": put(*FIRST, "init", value=[[0.0] * 1000] * 200),
    "a word that is none": put(*FIRST, "nout", value="8" * 10**6),
    "a schedule": put("training", "optimizer", "config", "schedule", value=[0.0] * 200_000),
    "a state": put("training", "callbacks", value=[{}] * 200_000),
    "what is not asked for": put("more", value=[[]] * 200_000),
    "arrays": lambda d, a: a.update({f"weights/{i}": np.zeros(0) for i in range(20_000)}),
}


@pytest.mark.parametrize("name", LISTS)
def test_what_is_long_in_a_file_takes_as_much_as_it_is_long(tmp_path, whole, model, name):
    path = changed(whole, tmp_path / "m", LISTS[name])

    def load() -> None:
        with contextlib.suppress(CheckpointError):
            Model(path)

    assert cost_of(load) < 40 * path.stat().st_size


# --- what goes on from a file ----------------------------------------------------------------------------------------


class Keeping(Listener):
    """Keeps what it hears of; that it is to begin with is not to be known when it is told of its state."""

    def __init__(self, heard: Any = None) -> None:
        self.heard = heard or []

    def on_train_begin(self, epochs):
        self.heard.append("begin")

    def on_epoch_end(self, epoch):
        self.heard.append(epoch)

    def get_state(self):
        return {"heard": list(self.heard)}

    def set_state(self, state):
        if not isinstance(state, dict) or state.keys() != {"heard"}:
            raise ValueError(f"a state has what was heard; got {state!r}")
        self.heard = state["heard"]


def learn(model: Model, epochs: int, listener: Listener | None = None) -> Listener:
    listener = listener or Keeping()
    model.fit(data(shuffle=True), CrossEntropyMulti(), model.optimizer or Adam(), epochs, listener)
    return listener


def test_what_a_listener_keeps_goes_on_from_a_file(tmp_path):
    model = start()
    learn(model, 2)
    model.save_params(tmp_path / "m")
    filled = start()
    filled.load_params(tmp_path / "m")
    for made in (filled, Model(tmp_path / "m")):
        assert made.callbacks_state == {"heard": ["begin", 0, 1]}
        assert learn(made, 3).heard == ["begin", 0, 1, "begin", 2]
        assert learn(made, 4).heard == ["begin", 3]  # the next is told nothing


def test_a_model_that_was_loaded_keeps_what_the_listener_had(tmp_path):
    model = start()
    learn(model, 2)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    again.save_params(tmp_path / "n")
    assert (tmp_path / "n").read_bytes() == (tmp_path / "m").read_bytes()
    model.load_params(tmp_path / "n")  # in the place of what its own listener had
    learn(model, 3, Keeping(["other"]))
    assert model.callbacks_state == {"heard": ["begin", 0, 1, "begin", 2]}
    Model(tmp_path / "m", weights_only=True).save_params(tmp_path / "w")
    assert read_checkpoint(tmp_path / "w")[0]["training"]["callbacks"] is None


def test_a_training_that_was_stopped_ends_with_the_same_file(tmp_path):
    first = start()
    first.initialize(data())
    first.save_params(tmp_path / "first")  # what has no name gets another in each network
    straight = Model(tmp_path / "first")
    learn(straight, 3, Silent())
    straight.save_params(tmp_path / "straight")
    stopped = Model(tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        learn(stopped, 3, Stopping(stopped, 9, tmp_path / "m"))
    gen_backend("cpu", rng_seed=99, batch_size=8)
    again = Model(tmp_path / "m")
    learn(again, 3, Silent())
    again.save_params(tmp_path / "again")
    assert again.callbacks_state == {"heard": [0, 1, 2]}
    assert (tmp_path / "again").read_bytes() == (tmp_path / "straight").read_bytes()


class Silent(Keeping):
    """Does not keep when it began."""

    def on_train_begin(self, epochs):
        pass


class Stopping(Interrupting, Silent):
    """Stops in the middle of a step, and keeps the model behind it."""

    def __init__(self, model, at, path):
        Interrupting.__init__(self, model, at)
        Silent.__init__(self)
        self.path = path

    def on_interrupt(self):
        self.model.save_params(self.path)


@pytest.mark.parametrize("at", [1, 2])
def test_an_optimizer_like_that_of_the_file_goes_on_as_that_one(tmp_path, at):
    def fit(model: Model, epochs: int) -> Any:
        optimizer = Adam(learning_rate=0.05)
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer, epochs)
        assert model.optimizer is optimizer
        return model.get_weights(), optimizer.t

    expected = fit(start(), 3)
    stopped = start()
    fit(stopped, at)
    stopped.save_params(tmp_path / "m")
    model = Model(tmp_path / "m")
    weights, t = fit(model, 3)
    assert same(weights, expected[0])
    assert t == expected[1]
    assert fit(model, 4)[1] < t  # another one later on begins anew


@pytest.mark.parametrize("names", [[None] * 3, ["out", "drop", "hidden"], ["a.b", "c/0/1", "d"]], ids=str)
def test_layers_of_other_names_take_weights_and_states_by_order(tmp_path, names):
    def learn(model: Model, epochs: int, optimizer: Any = None) -> Any:
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer or model.optimizer, epochs)
        return list(model.get_weights().values())

    def named(first: Any, second: Any, third: Any) -> Model:
        return Model([
            Affine(8, Gaussian(scale=0.5), bias=Constant(0), activation=Rectlin(), name=first),
            Dropout(0.9, name=second),
            Affine(CLASSES, Gaussian(scale=0.5), activation=Softmax(), name=third),
        ])  # fmt: skip

    straight = start()
    expected = learn(straight, 3, Adam())
    stopped = start()
    learn(stopped, 2, Adam())
    stopped.save_params(tmp_path / "m")
    model = named(*names)
    model.load_params(tmp_path / "m")
    assert all(map(np.array_equal, learn(model, 3), expected))
    alone = named(*names)
    alone.load_params(tmp_path / "m", load_states=False)
    assert all(map(np.array_equal, alone.get_weights().values(), stopped.get_weights().values()))


def test_layers_of_the_same_names_take_weights_by_name_and_others_are_of_the_same_kind(tmp_path):
    class Other(Linear):
        """Another kind of layer, whose weights have the same shape."""

    gen_backend("cpu", rng_seed=1, batch_size=8)
    model, swapped = (Model([Linear(2, Gaussian(), name=name) for name in names]) for names in ("ab", "ba"))
    model.initialize(2)
    model.save_params(tmp_path / "m")
    swapped.load_params(tmp_path / "m")
    assert same(swapped.get_weights(), model.get_weights())
    another = Model([Linear(2, Gaussian()), Other(2, Gaussian())])
    with pytest.raises(CheckpointError, match=r"weights: .* weights and layers do not fit"):
        another.load_params(tmp_path / "m")


def test_other_data_begins_anew(tmp_path, whole):
    (tmp_path / "m").write_bytes(whole)
    gen_backend("cpu", rng_seed=1, batch_size=8)
    X, y = blobs(40)
    other = ArrayIterator(X, y, nclass=CLASSES)
    with pytest.raises(CheckpointError, match=r"ndata = 60, here 40; .*; Model\(path, weights_only=True\) begins anew"):
        Model(tmp_path / "m").fit(other, CrossEntropyMulti(), Adam(), 1)
    model = Model(tmp_path / "m", weights_only=True)
    model.fit(other, CrossEntropyMulti(), Adam(), 1)
    assert model.epoch_index == 1


def test_a_file_of_before_listeners_had_states_is_loaded(tmp_path, whole):
    gen_backend("cpu", rng_seed=1, batch_size=8)
    model = Model(changed(whole, tmp_path / "m", drop("training", "callbacks")))
    assert learn(model, 1).heard == ["begin", 0]


STATES: dict[str, tuple[Any, str]] = {
    "of another listener": (put("training", "callbacks", value=[1]), "m: training.callbacks: a state has what was"),
    "of data of another size": (put("training", "data", "ndata", value=61), "m: training.data: blobs: .*ndata = 61"),
    "of data far beyond": (put("training", "data", "minibatch", value=10**9), "m: training.data: .*within the data"),
    "of data without a seed": (put("training", "data", "seed", value=None), "m: training.data: .*seed = None"),
    "of other data": (put("training", "data", value={}), "m: training.data: blobs: a state is the dict"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_something_else_is_refused_by_fit_and_nothing_is_learned(tmp_path, whole, name):
    change, words = STATES[name]
    gen_backend("cpu", rng_seed=1, batch_size=8)
    model = Model(changed(whole, tmp_path / "m", change))
    before = told(model)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=words):
            learn(model, 1)
        assert told(model) == before


def test_states_of_several_optimizers_are_kept(tmp_path):
    rates = PowerSchedule(1, 0.5)
    model = trained(MultiOptimizer({"default": Adam(), "Bias": GradientDescentMomentum(0.1, 0.9, schedule=rates)}))
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert told(again) == told(model)
    wrong = changed((tmp_path / "m").read_bytes(), tmp_path / "w", drop("training", "optimizer_state", "Bias"))
    refused(model, wrong, "training.optimizer_state: it has default, Bias")


def test_a_mode_goes_with_its_network(tmp_path):
    X = np.ones((8, 2), np.float32)
    outputs = []
    for mode in (None, "caffe"):
        gen_backend("cpu", rng_seed=1, batch_size=8, compat_mode=mode)
        model = Model(network())
        model.initialize(2)
        model.save_params(tmp_path / f"{mode}")
        outputs.append(model.predict(X))
    assert not np.array_equal(*outputs)
    for mode, expected in zip((None, "caffe"), outputs, strict=True):
        gen_backend("cpu", rng_seed=1, batch_size=8, compat_mode="caffe" if mode is None else None)
        assert np.array_equal(Model(tmp_path / f"{mode}").predict(X), expected)


# --- how it is written -----------------------------------------------------------------------------------------------


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
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m"]  # what was left over was used


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("", IsADirectoryError, "model.save_params is a file to be written; {folder} is a folder"),
        (
            "no/m",
            FileNotFoundError,
            "model.save_params: {folder}/no/m can not be written: there is no folder {folder}/no",
        ),
        ("closed/m", PermissionError, "model.save_params: {folder}/closed/m can not be written: .* read-only for you"),
    ],
)
def test_where_no_file_can_be_is_told(tmp_path, monkeypatch, path, kind, words):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))
    model = start()
    model.initialize(data())
    with pytest.raises(kind, match=words.format(folder=tmp_path)):
        model.save_params(tmp_path / path)


def test_numbers_that_are_none_come_back(tmp_path):
    """A training that went wrong can be looked at."""
    model = start()
    model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0.5), 1)
    model.layers.layers[0].W[:] = np.nan
    model.total_cost = float("nan")
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert np.isnan(again.total_cost)
    assert np.isnan(again.get_weights()["hidden.W"]).all()
