"""Prediction: separate buffers, several threads, preprocessing, and the layout of rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from neonlite import Backend, gen_backend
from neonlite.backend.tensor import Tensor
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator, HDF5Iterator, NervanaDataIterator
from neonlite.data.minibatches import Preprocessing
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    GRU,
    LRN,
    LSTM,
    Activation,
    Affine,
    BiBNRNN,
    BiLSTM,
    BranchNode,
    Conv,
    Deconv,
    Dropout,
    Layer,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    MultiHeadAttention,
    Pooling,
    RecurrentLast,
    Reshape,
    Seq2Seq,
    SingleOutputTree,
    SkipNode,
    Tree,
)
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import TrainingState, read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import Accuracy, CrossEntropyMulti, Identity, Logistic, MeanSquared, Rectlin, Softmax, Tanh

N = 8
init = GlorotUniform()


def residual() -> list[Any]:
    way = [Conv((3, 3, 4), init, padding=1, batch_norm=True, activation=Rectlin())]
    return [Conv((3, 3, 4), init, padding=1), MergeSum([way, SkipNode()]), Activation(Rectlin()), Affine(3, init)]


def streams() -> list[Any]:
    message = [LookupTable(50, 6, init), Reshape((1, 6, 7)), Conv((6, 3, 4), init), Reshape(-1)]
    autoencoder = [Conv((3, 3, 4), init, strides=2), Deconv((3, 3, 1), init, strides=2)]
    inception = MergeBroadcast([Conv((1, 1, 2), init), Pooling(3, strides=1, padding=1)], merge="depth")
    return [MergeMultistream([message, [*autoencoder, inception]], merge="stack"), Affine(2, init)]


def branches() -> Any:
    node = BranchNode("node")
    trunk = [Affine(9, init, activation=Tanh()), node, Affine(2, init, activation=Softmax())]
    return SingleOutputTree([trunk, [node, Affine(1, init, activation=Logistic())]])


def decoder() -> list[Any]:
    return [LSTM(5, init, activation=Tanh(), gate_activation=Logistic()), Affine(4, init, activation=Softmax())]


def recurrent(kind: Any, **more: Any) -> Any:
    return kind(5, init, activation=Tanh(), **more)


gates = {"gate_activation": Logistic()}

# name -> the shape of the inputs, and a function that returns the layers
NETWORKS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "mlp": (6, lambda: [Affine(9, init, bias=Constant(0.1), activation=Rectlin()), Dropout(0.5), Affine(3, init)]),
    "images": (
        (2, 9, 9),
        lambda: [
            *(Conv((3, 3, 4), init, bias=Constant(0), activation=Rectlin()), LRN(5, ascale=0.1), Pooling(2)),
            *(Conv((3, 3, 4), init, batch_norm=True), Affine(3, init, activation=Softmax())),
        ],
    ),
    "residual": ((2, 6, 6), residual),
    "streams": ([7, (1, 9, 9)], streams),
    "branches": (6, branches),
    "lstm": ((4, 5), lambda: [recurrent(LSTM, **gates), recurrent(GRU, **gates), Affine(3, init)]),
    "identity lstm": ((4, 5), lambda: [LSTM(5, init, activation=Identity(), gate_activation=Logistic())]),
    "both ways": ((4, 5), lambda: [recurrent(BiLSTM, **gates), recurrent(BiBNRNN), RecurrentLast(), Affine(3, init)]),
    "attention": ((4, 5), lambda: [MultiHeadAttention(2, init, causal=True), Affine(3, init, activation=Softmax())]),
    "tokens": ((1, 5), lambda: [LookupTable(7, 4, init), recurrent(LSTM, **gates), RecurrentLast(), Affine(3, init)]),
    "translation": ([(4, 5), (4, 3)], lambda: Seq2Seq([decoder()[:1], decoder()])),
}


def shapes_of(shape: Any) -> list[tuple[int, ...]]:
    """Return the shape of each input as a tuple."""
    return [x if isinstance(x, tuple) else (x,) for x in (shape if isinstance(shape, list) else [shape])]


def rows_of(name: str, n: int, seed: int = 0) -> Any:
    """Return rows for a network, or a list of arrays for several inputs."""
    rng, shape = np.random.default_rng(seed), NETWORKS[name][0]
    takes_ids = name in ("tokens", "streams")
    rows = [
        rng.integers(0, 7, (n, *x)) if takes_ids and i == 0 else rng.normal(size=(n, *x)).astype(np.float32)
        for i, x in enumerate(shapes_of(shape))
    ]
    return rows if isinstance(shape, list) else rows[0]


def started(name: str) -> Model:
    """Return a model with values in its training buffers and running statistics."""
    shape, layers = NETWORKS[name]
    model = Model(layers())
    model.initialize(shape)
    arguments = rows_of(name, model.be.bsz, seed=1)
    data = ArrayIterator(arguments, lshape=shape)
    x, _ = next(iter(data))
    y = model.fprop(x)
    errors = [model.be.ones(each.shape) for each in (y if isinstance(y, list) else [y])]
    model.bprop(errors if isinstance(y, list) else errors[0])
    return model


def tensors_of(thing: Any) -> list[Tensor]:
    """Return all tensors that are reachable from a network."""
    seen: dict[int, Any] = {}
    rest, result = [thing], []
    while rest:
        x = rest.pop()
        if id(x) in seen or isinstance(x, Backend):
            continue
        seen[id(x)] = x
        if isinstance(x, Tensor):
            result.append(x)
        elif isinstance(x, dict):
            rest += [*x, *x.values()]
        elif isinstance(x, list | tuple | set):
            rest += list(x)
        elif type(x).__module__.startswith(("neonlite.layers", "neonlite.transforms", "test_")) and hasattr(
            x, "__dict__"
        ):
            rest += list(vars(x).values())
    return result


# --- separate buffers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_are_those_of_fprop_and_change_no_tensor_of_training(be, name):
    be.bsz, n = N, 2 * N + 3
    model = started(name)
    X = rows_of(name, n)
    network, memory = model.layers, [(t, t.get()) for t in tensors_of(model.layers)]
    attributes = [(layer, dict(vars(layer))) for layer in [network, *network.leaves()]]
    result = model.predict(X)
    again, first = model.predict(X), model.predict([x[:1] for x in X] if isinstance(X, list) else X[:1])
    assert be.bsz == N
    assert all(np.array_equal(t.get(), before, equal_nan=True) for t, before in memory)
    for layer, before in attributes:
        assert vars(layer).keys() == before.keys()
        assert all(vars(layer)[key] is x for key, x in before.items())
    assert np.array_equal(result, again)
    np.testing.assert_allclose(first[0], result[0], rtol=1e-4, atol=1e-6)
    for i in (0, n - 1):  # one by one, by the network itself
        model.set_batch_size(1)
        for layer in network.leaves():
            layer.set_state({})
        x = [
            be.array(x[i].reshape(len(x[i]) if x[i].ndim == 2 else -1, x.shape[2] if x[i].ndim == 2 else 1))
            for x in inputs(X)
        ]
        y = model(x if isinstance(X, list) else x[0]).get()
        np.testing.assert_allclose(result[i], y if y.shape[1] > 1 else y[:, 0], rtol=1e-4, atol=1e-6)


def inputs(X: Any) -> list[Any]:
    """Return the arrays of rows as a list."""
    return X if isinstance(X, list) else [X]


class Offset(Layer):
    """Adds an offset, and can fail."""

    def __init__(self, offset: float, name: str | None = None) -> None:
        super().__init__(name)
        self.offset, self.fails = offset, False

    def configure(self, in_obj: Any) -> Layer:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Any) -> Any:
        if self.fails:
            raise ZeroDivisionError("as requested")
        return x + self.offset


def test_a_call_of_a_model_is_inference_of_a_minibatch(be):
    be.bsz = N
    model = Model([Linear(2, Constant(1), name="fc"), Dropout(0.5, name="drop")], name="net")
    with pytest.raises(RuntimeError, match=r"net: expected a configured network, got none. Call initialize"):
        model(be.ones((3, N)))
    model.initialize(3)
    outputs = model(be.ones((3, N)))
    model(be.zeros((3, N)))  # does not overwrite them
    np.testing.assert_array_equal(outputs.get(), np.full((2, N), 1.5))
    assert repr(model).split("\n") == [
        "Model('net')",
        f"  {model.layers!r}",
        "    Linear('fc', 3 -> 2, 6 parameters)",
        "    Dropout('drop', 2 -> 2)",
    ]


def test_predictions_use_changes_of_layers_since_the_last_one(be):
    be.bsz = 4
    layer, X = Offset(1.0), np.zeros((3, 2))
    model = Model([layer])
    model.initialize(2)
    assert np.array_equal(model.predict(X), X + 1)
    layer.offset = 5.0
    assert np.array_equal(model.predict(X), X + 5)
    model.layers.layers.append(Offset(0.5).configure(layer))
    model.layers.allocate()
    assert np.array_equal(model.predict(X), X + 5.5)
    model.layers.layers.pop()
    assert np.array_equal(model.predict(X), X + 5)
    layer.fprop = lambda x, inference=False: x
    assert np.array_equal(model.predict(X), X)


def test_an_error_in_a_prediction_changes_neither_batch_size_nor_buffers_nor_the_next_prediction(be):
    be.bsz = 4
    layer, X = Offset(1.0), np.zeros((3, 2))
    model = Model([Linear(2, Constant(1)), layer])
    data = ArrayIterator(np.ones((8, 2)), np.ones((8, 2)), make_onehot=False)
    model.fit(data, MeanSquared(), GradientDescentMomentum(0.1, 0.0), 1)
    expected, layer.fails = model.predict(X), True
    for rows in (X, X[:1]):
        with pytest.raises(ZeroDivisionError):
            model.predict(rows)
    layer.fails = False
    assert be.bsz == 4
    assert np.array_equal(model.predict(X), expected)
    model.fit(data, MeanSquared(), GradientDescentMomentum(0.1, 0.0), 2)
    assert model.epoch_index == 2


def test_predictions_of_any_number_of_rows_keep_little_memory(cpu):
    cpu.bsz = 16
    model = started("images")
    X = rows_of("images", 40)
    outputs = cpu.memory().tensors
    model.predict(X[:16])
    of_one_minibatch = cpu.memory().tensors - outputs
    for n in [*range(1, 41), *range(40, 0, -1)]:
        model.predict(X[:n])
        assert cpu.memory().tensors - outputs <= 2.1 * of_one_minibatch


# --- several threads -------------------------------------------------------------------------------------------------


def points(n: int = 70) -> tuple[Any, Any]:
    """Return points, and the index of the quadrant of each."""
    X = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    return X, (X[:, 0] > 0) * 2 + (X[:, 1] > 0)


def data(**more: Any) -> ArrayIterator:
    X, y = points()
    return ArrayIterator(X, y, nclass=4, **more)


def layers() -> list[Any]:
    return [
        Affine(16, Gaussian(scale=0.5), batch_norm=True, activation=Rectlin(), name="hidden"),
        Dropout(0.9, name="drop"),
        Affine(4, Gaussian(scale=0.5), activation=Softmax(), name="out"),
    ]


def trained(epochs: int = 3, **more: Any) -> Model:
    gen_backend("cpu", rng_seed=2, batch_size=16)
    model = Model(layers())
    model.fit(data(**more), CrossEntropyMulti(), Adam(), epochs)
    return model


@contextlib.contextmanager
def threads(*works: Callable[[], Any]) -> Iterator[None]:
    """Run functions repeatedly in threads during the block, each at least once; raise their errors."""
    errors: list[BaseException] = []
    end, barrier = threading.Event(), threading.Barrier(len(works) + 1)

    def run(work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            work()
            while not end.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in running:
        thread.start()
    barrier.wait()
    try:
        yield
    finally:
        end.set()
        for thread in running:
            thread.join(300)
    assert not any(thread.is_alive() for thread in running)
    if errors:
        raise errors[0]


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.long
def test_a_fit_during_which_threads_evaluate_and_save_has_the_same_weights(tmp_path):
    epochs, expected = 6, trained(6, shuffle=True, partial_last=True).get_weights()
    gen_backend("cpu", rng_seed=2, batch_size=16)
    model, saved = Model(layers()), []
    train = data(shuffle=True, partial_last=True)
    model.initialize(train, CrossEntropyMulti())
    sets = [data(partial_last=True) for _ in range(3)]

    def save() -> None:
        model.save_params(tmp_path / "m")
        saved.append(TrainingState.read(tmp_path / "m").arrays)

    with threads(
        lambda: model.eval(sets[0], Accuracy()),
        lambda: model.eval_cost(sets[1]),
        lambda: model.get_outputs(sets[2]),
        model.summary,
        model.get_weights,
        save,
    ):
        model.fit(train, CrossEntropyMulti(), Adam(), epochs)
    assert same(model.get_weights(), expected)
    assert model.be.bsz == 16
    assert saved


def test_two_models_of_one_backend_train_in_two_threads_with_different_partial_minibatches():
    def pair() -> list[tuple[Model, ArrayIterator]]:
        gen_backend("cpu", rng_seed=2, batch_size=16)
        X, y = points()
        created = [ArrayIterator(X[:n], y[:n], nclass=4, partial_last=True) for n in (50, 70)]
        plain = [layers()[::2] for _ in created]
        return [(Model(net, train), train) for net, train in zip(plain, created, strict=True)]

    def fit(model: Model, train: ArrayIterator, epochs: int) -> None:
        model.fit(train, CrossEntropyMulti(), Adam(), epochs)

    (one, of_one), (two, of_two) = pair()
    fit(one, of_one, 10)
    fit(two, of_two, 10)
    expected = one.get_weights(), two.get_weights()
    (one, of_one), (two, of_two) = pair()
    other = threading.Thread(target=fit, args=(two, of_two, 10))
    other.start()
    fit(one, of_one, 10)
    other.join()
    assert same(one.get_weights(), expected[0])
    assert same(two.get_weights(), expected[1])


def test_a_model_predicts_during_the_fit_of_one_that_shares_its_layers():
    gen_backend("cpu", rng_seed=2, batch_size=16)
    train, (X, _) = data(partial_last=True), points()
    model = Model(layers()[::2], train)
    other, result = Model(model.layers), []
    right = [model.predict(X[:3])]

    class PredictionRecorder(CallbackBase):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            right.append(model.predict(X[:3]))

    with threads(lambda: result.append(other.predict(X[:3]))):
        model.fit(train, CrossEntropyMulti(), Adam(), 10, PredictionRecorder())
    known = {x.tobytes() for x in right}
    assert all(x.tobytes() in known for x in result)


def test_all_rows_of_a_prediction_during_fit_have_the_weights_of_one_step():
    gen_backend("cpu", rng_seed=2, batch_size=16)
    train, (X, _) = data(), points()
    model, found = Model(layers()[::2], train), []
    rows = np.repeat(X[:1], 50, axis=0)  # in 7 minibatches, one of them partial
    with threads(lambda: found.append(model.predict(rows, batch_size=8))):
        model.fit(train, CrossEntropyMulti(), Adam(), 20)
    for outputs in found:
        np.testing.assert_allclose(outputs, np.repeat(outputs[:1], 50, axis=0), rtol=1e-5)
    assert len({x[0].tobytes() for x in found}) > 1  # of several steps


def test_be_batch_size_sets_the_batch_size_of_one_thread(be):
    be.bsz = 8
    seen = []
    with be.batch_size(3):
        be.bsz = 4
        thread = threading.Thread(target=lambda: seen.append(be.bsz))
        thread.start()
        thread.join()
        with be.batch_size(5):
            seen.append(be.bsz)
        seen.append(be.bsz)
    assert [*seen, be.bsz] == [8, 5, 4, 8]


class BatchSizeRecorder(Offset):
    """Records the batch size in this thread and in another one, each time it runs."""

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        thread = threading.Thread(target=lambda: self.seen.add((bsz, self.be.bsz)))
        bsz = self.be.bsz
        thread.start()
        thread.join()
        return super().fprop(inputs, inference, beta)


def test_only_the_training_thread_sees_the_batch_size_of_a_partial_minibatch(be):
    be.bsz = 4
    layer = BatchSizeRecorder(0.0)
    layer.seen = set()
    data = ArrayIterator(np.ones((10, 2)), np.ones((10, 2)), make_onehot=False, partial_last=True)
    model = Model([Linear(2, Constant(1)), layer])
    model.fit(data, MeanSquared(), GradientDescentMomentum(0.1, 0.0), 1)
    assert layer.seen == {(4, 4), (2, 4)}
    layer.seen.clear()
    model.predict(np.ones((5, 2)))
    assert layer.seen == {(4, 4), (1, 4)}
    assert be.bsz == 4


# --- preprocessing ---------------------------------------------------------------------------------------------------


def pixels(n: int = 40) -> tuple[Any, Any]:
    """Return small images of bytes, and whether the left half is brighter."""
    X = np.random.default_rng(0).integers(0, 256, (n, 1, 4, 4)).astype(np.uint8)
    return X, (X[..., :2].mean((1, 2, 3)) > X[..., 2:].mean((1, 2, 3))).astype(int)


def scaled(dataset: Any) -> Model:
    model = Model(
        [Affine(6, init, activation=Tanh(), name="hidden"), Affine(2, init, activation=Softmax(), name="out")]
    )
    model.fit(dataset, CrossEntropyMulti(), Adam(), 2)
    return model


def numpy_outputs(model: Model, X: Any) -> Any:
    """Return the outputs of the network, computed by NumPy."""
    W = model.get_weights()
    z = W["out.W"] @ np.tanh(W["hidden.W"] @ X.reshape(len(X), -1).T.astype(np.float64))
    e = np.exp(z - z.max(axis=0))
    return (e / e.sum(axis=0)).T


@pytest.mark.parametrize("scale", [1 / 255.0, (2 / 255.0, -1.0)], ids=["factor", "factor and offset"])
def test_the_scale_of_the_training_data_is_that_of_predictions(be, tmp_path, scale):
    be.bsz = 8
    X, y = pixels()
    train = ArrayIterator(X, y, nclass=2, scale=scale)
    model = scaled(train)
    factor, offset = scale if isinstance(scale, tuple) else (scale, 0)
    x = factor * X.astype(np.float64) + offset
    expected = numpy_outputs(model, x)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    filled = Model([Affine(6, init, activation=Tanh()), Affine(2, init, activation=Softmax())])
    filled.initialize(train)
    filled.load_params(tmp_path / "m", load_states=False)
    for each in (model, again, Model(model.serialize()), filled):
        for rows in (X, X.reshape(40, 16), X.astype(np.int64), X.tolist()):
            np.testing.assert_allclose(each.predict(rows), expected, rtol=1e-4, atol=1e-6)
        larger = numpy_outputs(model, 9 * x)
        np.testing.assert_allclose(each.predict(9 * x, preprocessed=True), larger, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(each.predict(X * 1.0, preprocessed=False), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(each.predict(x.astype(np.float32)), expected, rtol=1e-4, atol=1e-6)
        with pytest.raises(
            ValueError, match=r"expected uint8 from 0 to 255, as in .* got float64 from 0 to 255. Pass preprocessed=F"
        ):
            each.predict(X * 1.0)
    rows = ArrayIterator(X, y, nclass=2, scale=scale, partial_last=True)
    assert np.array_equal(model.predict(rows), model.predict(X))  # an iterator preprocesses only once


def test_floats_with_a_scale_are_scaled_as_those_of_the_training(be):
    be.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X * 1.0, y, nclass=2, scale=1 / 255))
    np.testing.assert_allclose(model.predict(X * 1.0), numpy_outputs(model, X / 255), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        model.predict(X / 255, preprocessed=True), numpy_outputs(model, X / 255), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["int64", "uint16", "int32"])
def test_raw_floats_are_rejected_for_training_integers_of_any_size(be, tmp_path, dtype):
    be.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X.astype(dtype), y, nclass=2, scale=1 / 255))
    model.save_params(tmp_path / "m")
    for each in (model, Model(tmp_path / "m")):
        with pytest.raises(ValueError, match=rf"expected {dtype} from 0 to 255, .* got float64 from 0 to 255. Pass"):
            each.predict(X.astype(float))
        np.testing.assert_allclose(each.predict(X / 255), numpy_outputs(model, X / 255), rtol=1e-4, atol=1e-6)


def test_each_input_has_the_preprocessing_of_its_training_data(be, tmp_path):
    be.bsz = 8
    X, y = pixels()
    rows = X.reshape(40, -1)
    floats = rows[:, :5].astype(np.float32)
    model = Model(
        [MergeMultistream([[Affine(3, init)], [Affine(4, init)]], "stack"), Affine(2, init, activation=Softmax())]
    )
    model.fit(ArrayIterator([rows, floats], y, nclass=2, scale=1 / 255), CrossEntropyMulti(), Adam(), 1)
    expected = model.predict([rows / 255, floats / 255], preprocessed=True)
    model.save_params(tmp_path / "m")
    for each in (model, Model(tmp_path / "m")):
        for inputs in ([rows, floats], [rows / 255, floats]):  # floats of training data that were floats are scaled
            np.testing.assert_allclose(each.predict(inputs), expected, rtol=1e-4, atol=1e-6)
        with pytest.raises(ValueError, match=r"expected uint8 from 0 to 255, .* got float64 from 0 to 255"):
            each.predict([rows * 1.0, floats])


def test_an_array_of_columns_is_rejected_with_a_hint(be):
    be.bsz = 8
    X, y = pixels()
    X = X / 255
    model = scaled(ArrayIterator(X.reshape(40, -1), y, nclass=2))
    for columns in (X.reshape(40, -1).T, be.array(X.reshape(40, -1).T)):
        with pytest.raises(ValueError, match=r"got \(16, 40\): pass rows: X\.T"):
            model.predict(columns)
    with pytest.raises(ValueError, match=r"Use X\[None\] for one row, X\[:, None\] for n rows of one feature"):
        model.predict(X.reshape(40, -1)[0, :5])


def test_one_sample_without_the_axis_of_rows_gives_its_outputs_alone(be):
    be.bsz = 8
    X, y = pixels()
    X = X / 255
    model = scaled(ArrayIterator(X.reshape(40, -1), y, nclass=2))
    sample = X.reshape(40, -1)[0]
    for one in (sample, sample.tolist()):
        np.testing.assert_array_equal(model.predict(one), model.predict(sample[None])[0])
    model = scaled(ArrayIterator(X, y, nclass=2))
    np.testing.assert_array_equal(model.predict(X[0]), model.predict(X[:1])[0])  # an image of one channel


def test_without_a_scale_rows_are_used_unchanged(be):
    be.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X / 255, y, nclass=2))
    assert model.preprocessing is None
    np.testing.assert_allclose(model.predict(X / 255), numpy_outputs(model, X / 255), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 16], ids=["channels", "features"])
def test_the_mean_of_an_hdf5_file_is_that_of_predictions(be, tmp_path, size):
    h5py = pytest.importorskip("h5py")
    be.bsz = 8
    X, y = pixels()
    mean = np.linspace(90, 160, size).astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["input"], file["output"], file["mean"] = X.reshape(40, -1), np.eye(2)[y], mean
        file["input"].attrs["lshape"] = (1, 4, 4)
    model = scaled(HDF5Iterator(tmp_path / "x.h5"))
    model.save_params(tmp_path / "m")
    expected = numpy_outputs(model, X.reshape(40, -1) - mean.astype(np.float64))
    for each in (model, Model(tmp_path / "m")):
        np.testing.assert_allclose(each.predict(X), expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(each.predict(X.reshape(40, -1) - mean), expected, rtol=1e-3, atol=1e-5)
        with pytest.raises(ValueError, match=r"expected uint8 from 0 to 255, .* got float64 from 0 to 255"):
            each.predict(X * 1.0)


class Halved(NervanaDataIterator):
    """A custom data set that declares its preprocessing."""

    preprocessing = Preprocessing(factor=0.5)
    nbatches, ndata, shape = 1, 8, 16

    def __iter__(self) -> Iterator[Any]:
        x, t = self.be.ones((16, 8)), self.be.ones((2, 8))
        x[:] = 0.5 * x
        yield x, t


def test_a_custom_data_set_declares_its_preprocessing(be):
    be.bsz = 8
    model = scaled(Halved())
    np.testing.assert_allclose(model.predict(np.ones((3, 16))), numpy_outputs(model, np.full((3, 16), 0.5)), rtol=1e-4)


def test_the_last_data_set_that_was_trained_on_counts_and_one_that_is_evaluated_does_not(cpu):
    cpu.bsz = 8
    X, y = pixels()
    raw, floats = ArrayIterator(X, y, nclass=2, scale=1 / 255), ArrayIterator(X / 255, y, nclass=2)
    model = scaled(raw)
    model.eval(floats, Accuracy())
    assert model.preprocessing is raw.preprocessing
    model.fit(floats, CrossEntropyMulti(), Adam(), 3)
    assert model.preprocessing is None


def test_a_file_with_the_dtype_of_the_integers_alone_has_the_range_of_the_dtype(cpu, tmp_path):
    cpu.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X // 2, y, nclass=2, scale=1 / 255))
    model.save_params(tmp_path / "m")
    description, arrays = read_checkpoint(tmp_path / "m")
    description["preprocessing"]["integers"] = "uint8"
    write_checkpoint(tmp_path / "m", description, arrays)
    again = Model(tmp_path / "m")
    np.testing.assert_allclose(again.predict(X / 255), numpy_outputs(model, X / 255), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="expected uint8 from 0 to 255"):
        again.predict(X * 1.0)


def test_files_without_preprocessing_are_loaded(cpu, tmp_path):
    cpu.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X, y, nclass=2, scale=1 / 255))
    model.save_params(tmp_path / "m")
    description, arrays = read_checkpoint(tmp_path / "m")
    del description["preprocessing"]
    write_checkpoint(tmp_path / "old", description, arrays)
    assert Model(tmp_path / "old").preprocessing is None
    model.load_params(tmp_path / "old")
    assert model.preprocessing.factor == 1 / 255


INVALID_PREPROCESSING: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a list": ([1], {}, r"preprocessing: expected a dict with factor, offset, integers for preprocessing, got \[1\]"),
    "a word": ("scale", {}, "preprocessing: expected a dict with factor, offset, integers"),
    "a word more": (
        {"factor": 1.0, "offset": 0.0, "integers": "uint8", "code": "x"},
        {},
        "preprocessing: expected a dict with factor, offset, integers",
    ),
    "a text": (
        {"factor": "1", "offset": 0.0, "integers": "uint8"},
        {},
        "preprocessing: expected a number for factor, got '1'",
    ),
    "nan": (
        {"factor": float("nan"), "offset": 0.0, "integers": "uint8"},
        {},
        "preprocessing: expected a finite number for factor",
    ),
    "huge": ({"factor": 10**400, "offset": 0.0, "integers": "uint8"}, {}, "preprocessing: "),
    "another dtype": (
        {"factor": 1.0, "offset": 0.0, "integers": "float32"},
        {},
        "preprocessing: integers: expected None or one of uint8, .*, got 'float32'",
    ),
    "a range of two": (
        {"factor": 1.0, "offset": 0.0, "integers": [["uint8", 0]]},
        {},
        r"preprocessing: integers: expected None or \[dtype, low, high\] for each input, got \['uint8', 0\]",
    ),
    "a range beyond the dtype": (
        {"factor": 1.0, "offset": 0.0, "integers": [["uint8", 0, 256]]},
        {},
        "preprocessing: integers: expected None or",
    ),
    "ranges of two inputs": (
        {"factor": 1.0, "offset": 0.0, "integers": [None, None]},
        {},
        "preprocessing: integers: expected an entry for each of 1 inputs, got 2",
    ),
    "another mean": (
        {"factor": 1.0, "offset": 0.0, "integers": "uint8"},
        {"preprocessing/mean": np.zeros(3)},
        r"preprocessing: expected the mean to have a float for each of 16 features, got float64 \(3,\)",
    ),
    "a mean of integers": (
        {"factor": 1.0, "offset": 0.0, "integers": "uint8"},
        {"preprocessing/mean": np.zeros(16, int)},
        "preprocessing: expected the mean to have a float for each of 16 features, got int64",
    ),
    "a mean alone": (None, {"preprocessing/mean": np.zeros(16)}, "unexpected array preprocessing/mean"),
    "another array": (
        {"factor": 1.0, "offset": 0.0, "integers": "uint8"},
        {"preprocessing/code": np.zeros(16)},
        "unexpected array preprocessing/code",
    ),
}


@pytest.mark.parametrize("name", INVALID_PREPROCESSING)
def test_a_file_with_another_preprocessing_is_rejected_and_changes_nothing(cpu, tmp_path, name):
    preprocessing, more, message = INVALID_PREPROCESSING[name]
    cpu.bsz = 8
    X, y = pixels()
    model = scaled(ArrayIterator(X, y, nclass=2, scale=1 / 255))
    model.save_params(tmp_path / "m")
    description, arrays = read_checkpoint(tmp_path / "m")
    write_checkpoint(tmp_path / "m", {**description, "preprocessing": preprocessing}, {**arrays, **more})
    before = model.preprocessing
    for act in (Model, model.load_params):
        with pytest.raises(CheckpointError, match=message):
            act(tmp_path / "m")
    assert model.preprocessing is before


# --- one layout of rows ----------------------------------------------------------------------------------------------


def test_sequences_have_the_same_layout_as_inputs_and_as_outputs(be):
    be.bsz = 4
    model = Model([Linear(3, Gaussian())])
    model.initialize((2, 5))
    X = np.random.default_rng(0).normal(size=(6, 2, 5))
    y = model.predict(X)
    assert y.shape == (6, 3, 5)
    np.testing.assert_allclose(
        y, np.einsum("kf,nft->nkt", model.get_weights()[f"{model.layers.layers[0].name}.W"], X), 1e-4, 1e-6
    )
    np.testing.assert_array_equal(model.predict(X.reshape(6, 10)), y)
    data = ArrayIterator(X, y, lshape=(2, 5), make_onehot=False, partial_last=True)
    model.initialize(data, MeanSquared())
    assert model.eval_cost(data) < 1e-6  # so they have the layout of targets


LAYOUTS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "time steps first": ((2, 5), (6, 5, 2), r"features come before time steps: X.transpose\(0, 2, 1\)"),
    "other time steps": ((2, 5), (6, 2, 4), r"call model.set_seq_len\(4\) first"),
    "the same size": ((2, 6), (6, 3, 4), r"expected rows of shape \(2, 6\), an array \(6, 2, 6\), got \(6, 3, 4\)$"),
    "channels last": ((3, 4, 4), (6, 4, 4, 3), r"channels come first: X.transpose\(0, 3, 1, 2\)"),
    "other features": (7, (6, 8), r"expected rows of shape 7, an array \(6, 7\), got \(6, 8\)$"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_another_layout_are_rejected_with_a_hint(cpu, name):
    cpu.bsz = 4
    shape, arguments, message = LAYOUTS[name]
    model = Model(
        [Linear(3, Gaussian())] if not isinstance(shape, tuple) or len(shape) == 2 else [Conv((2, 2, 2), init)]
    )
    model.initialize(shape)
    with pytest.raises(
        ValueError, match=f"predict: expected rows of shape .*{message}" if "expected" not in message else message
    ):
        model.predict(np.zeros(arguments))


@pytest.mark.parametrize("name", ["time steps first", "channels last"])
def test_a_data_set_rejects_them_as_well(cpu, name):
    cpu.bsz = 4
    shape, arguments, message = LAYOUTS[name]
    with pytest.raises(ValueError, match=rf"expected lshape to have the axes of X of shape .*: {message}"):
        ArrayIterator(np.zeros(arguments), lshape=shape)


def test_several_inputs_are_a_list_of_arrays_of_equal_length(cpu):
    cpu.bsz = 4
    model = started("streams")
    tokens, images = rows_of("streams", 5)
    for arguments, message in (
        (tokens, r"expected a list of 2 arrays with rows \[7, \(1, 9, 9\)\], got a ndarray"),
        ([tokens], "expected a list of 2 arrays .*, got 1 arrays"),
        ([tokens, images[:3]], r"expected arrays with equal numbers of rows, got \[5, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(arguments)


def test_a_network_with_several_outputs_is_rejected_with_a_hint_to_fprop(cpu):
    cpu.bsz = 4
    node = BranchNode("node")
    trunk = [Affine(9, init), node, Affine(2, init)]
    model = Model(Tree([trunk, [node, Affine(1, init)]]))
    model.initialize(6)
    with pytest.raises(ValueError, match="predict: expected a network with one output, got 2"):
        model.predict(np.zeros((3, 6)))


def test_a_model_from_a_file_predicts_without_a_batch_size(tmp_path):
    model, (X, _) = trained(), points()
    expected = model.predict(X)
    model.save_params(tmp_path / "m")
    gen_backend("cpu")
    np.testing.assert_allclose(Model(tmp_path / "m").predict(X), expected, rtol=1e-5)


# --- the model as an op-tree ---


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_the_op_tree_of_a_model_has_the_outputs_of_predict_and_its_preprocessing(dtype):
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (40, 6)).astype(dtype) if dtype == "uint8" else rng.normal(2, 3, (40, 6))
    labels = rng.integers(0, 3, 40)
    model = Model([Affine(5, activation="tanh"), Affine(3, activation="softmax")])
    model.fit(rows, labels, epochs=1, batch_size=8, progress_bar=False)
    tree = model.op_tree(rows[:7])
    np.testing.assert_allclose(tree.get().T, model.predict(rows[:7]), rtol=1e-5, atol=1e-6)
    names = {x.name for x in tree.leaves.values() if isinstance(x, Tensor)}
    assert {"X", *(p.name for p in model.layers.parameters)} <= names
    assert model.be.check_grad(tree * tree, tolerance=1e-4).ok


def test_the_op_tree_of_a_model_needs_a_configured_network_and_rows_of_its_shape():
    model = Model([Affine(1)])
    with pytest.raises(RuntimeError, match=r"op_tree: expected a configured network, got none. Call initialize"):
        model.op_tree([[1.0, 2.0]])
    with model.be.batch_size(2):
        model.initialize(2)
    with pytest.raises(ValueError, match=r"op_tree: expected rows of shape 2, an array \(1, 2\), got \(1, 3\)"):
        model.op_tree([[1.0, 2.0, 3.0]])
