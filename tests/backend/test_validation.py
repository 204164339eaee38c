"""Tests of arguments: integers of every type are accepted as integers, and 0 and 1 as booleans; nothing else is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

from neonlite import gen_backend
from neonlite.backend.validation import boolean, integer
from neonlite.callbacks import GANPlotCallback, TrainCostCallback
from neonlite.data import ArrayIterator, CopyTask, Crop, Reversal, Text, Ticker, TimeSeries, pad_sentences
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    GRU,
    LRN,
    Affine,
    BatchNorm,
    Conv,
    Decoder,
    Deconv,
    DeepBiRNN,
    Linear,
    LookupTable,
    MultiHeadAttention,
    Pooling,
    PositionEmbedding,
    Recurrent,
    Reshape,
    RoiPooling,
    Sequential,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, PowerSchedule, StepSchedule
from neonlite.transforms import (
    CrossEntropyMulti,
    Logistic,
    PixelwiseSoftmax,
    PrecisionRecall,
    Rectlin,
    Softmax,
    Tanh,
    TopKMisclassification,
)

G = Gaussian(scale=0.1)
INTEGERS = (np.int64, np.uint8, np.int16, np.array)


@pytest.mark.parametrize("kind", [int, *INTEGERS])
def test_an_integer_of_every_type_becomes_pythons(kind):
    assert (integer("n", kind(3)), type(integer("n", kind(3)))) == (3, int)
    assert boolean("on", kind(1)) is True
    assert boolean("on", kind(0)) is False


def test_booleans_are_pythons_and_numpys():
    assert [boolean("on", x) for x in (True, False, np.True_, np.False_)] == [True, False, True, False]


@pytest.mark.parametrize("wrong", [True, np.True_, 3.0, np.float32(3), "3", None, np.array([3]), [3], 1j])
def test_what_is_no_integer_is_refused_with_its_name(wrong):
    with pytest.raises(TypeError, match="layer: expected an integer >= 1 for nout, got"):
        integer("layer: nout", wrong)


def test_an_integer_out_of_range_is_refused_with_the_range():
    with pytest.raises(ValueError, match="expected an integer >= 1 for n, got 0"):
        integer("n", 0)
    with pytest.raises(ValueError, match="expected an integer from 0 to 2 for n, got np"):
        integer("n", np.int64(3), 0, 2)
    assert integer("n", -5, -np.inf) == -5


@pytest.mark.parametrize("wrong", [2, -1, 0.0, 1.0, "yes", None, np.float64(1), [True]])
def test_what_is_no_boolean_is_refused_with_its_name(wrong):
    with pytest.raises(TypeError, match="expected True or False for batch_norm, got"):
        boolean("batch_norm", wrong)


PUBLIC_MODULES = ("layers", "data", "models", "optimizers", "callbacks", "initializers", "transforms")


def constructors_with_booleans() -> Iterator[tuple[type, str]]:
    """Yield the public classes whose constructor has an argument annotated as bool, and the argument."""
    for module in PUBLIC_MODULES:
        for cls in vars(import_module(f"neonlite.{module}")).values():
            if inspect.isclass(cls) and cls.__module__.startswith("neonlite."):
                for name, p in inspect.signature(cls).parameters.items():
                    if str(p.annotation).startswith("bool"):
                        yield cls, name


@each("cls, argument", constructors_with_booleans())
def test_a_constructor_refuses_a_string_as_a_boolean(cls, argument):
    required = [n for n, p in inspect.signature(cls).parameters.items() if p.default is p.empty and p.kind < 2]
    values = dict.fromkeys(required, np.ones((2, 3, 4, 4))) | {argument: "no"}
    with pytest.raises(TypeError, match=f"{cls.__name__}: expected True or False for {argument}, got 'no'"):
        cls(**values)


def test_booleans_of_methods_functions_and_custom_classes_are_checked():
    class Scale(Linear):
        def __init__(self, flag: bool, **options: Any) -> None:
            super().__init__(2, G, **options)

    be = gen_backend("cpu", batch_size=2)
    layer = Linear(2, G, name="fc").configure(3)
    model = Model([Linear(2, G)])
    data = ArrayIterator(np.ones((4, 3)))
    for name, call in {
        "bsum": lambda: Linear(2, G, "fc", name="fc"),
        "flag": lambda: Scale("no"),
        "accumulate_updates": lambda: layer.allocate(accumulate_updates="no"),
        "acc_on": lambda: layer.set_acc_on("no"),
        "partial": lambda: model.set_weights({}, "no"),
        "inference": lambda: model.benchmark(data, "no"),
        "preprocessed": lambda: model.predict(np.ones((4, 3)), "no"),
        "deterministic": lambda: gen_backend("cpu", deterministic="no"),
    }.items():
        with pytest.raises(TypeError, match=f": expected True or False for {name}, got '"):
            call()
    assert gen_backend("cpu", deterministic=None) is be
    assert Scale(np.True_, bsum=1).bsum == 1


n = np.int64
LAYERS: dict[str, tuple[Any, Any]] = {
    "Linear": (lambda: [Linear(n(3), G)], n(4)),
    "Affine": (lambda: [*Affine(n(3), G, batch_norm=1)], (n(4),)),
    "Conv": (lambda: [*Conv((n(3), n(3), n(2)), G, strides=n(1), padding=n(1), batch_norm=n(1))], (n(1), n(4), n(4))),
    "Deconv": (lambda: [*Deconv((n(3), n(3), n(2)), G, strides=n(2))], (1, n(4), n(4))),
    "Pooling": (lambda: [Pooling(n(2), strides=n(2)), LRN(n(3)), Reshape((n(0), n(-1)))], (n(3), n(4), n(4))),
    "Recurrent": (
        lambda: [Recurrent(n(3), G, activation=Tanh()), GRU(n(2), G, None, Tanh(), Logistic())],
        (n(4), n(5)),
    ),
    "DeepBiRNN": (lambda: [*DeepBiRNN(n(3), G, activation=Rectlin(), depth=n(2))], (n(4), n(5))),
    "LookupTable": (lambda: [LookupTable(n(9), n(4), G, pad_idx=n(0))], (1, n(5))),
    "attention": (lambda: [PositionEmbedding(n(5), G), MultiHeadAttention(n(2), G)], (n(4), n(5))),
    "Decoder": (lambda: [Decoder([GRU(n(4), G, None, Tanh(), Logistic())], start_index=n(2))], (4, n(5))),
    "PixelwiseSoftmax": (lambda: [BatchNorm(), Linear(n(6), G), *Affine(6, G, activation=PixelwiseSoftmax(n(2)))], 4),
}


@pytest.mark.parametrize("which", LAYERS)
def test_layers_take_integers_of_numpy_and_a_file_describes_them(which):
    gen_backend("cpu", rng_seed=1, batch_size=n(2))
    make, shape = LAYERS[which]
    net = Sequential(make()).configure(shape)
    net.allocate()
    net.allocate_deltas()
    found = json.loads(json.dumps([net.get_description(), net.in_shape, net.out_shape]))
    again = Sequential.recursive_gen(found[0]).configure(shape)
    assert again.out_shape == net.out_shape


def test_data_takes_integers_of_numpy():
    be = gen_backend("cpu", rng_seed=1, batch_size=2)
    X = np.zeros((6, 12))
    assert ArrayIterator(X, [0, 1] * 3, nclass=n(2), lshape=(n(1), n(3), n(4))).shape == (1, 3, 4)
    assert ArrayIterator(X, lshape=(1, 3, 4), augment=Crop(n(1), (n(2), n(3)))).shape == (1, 2, 3)
    assert json.dumps(Text(n(3), text="a quick brown fox").get_state())
    assert json.dumps(Ticker(CopyTask(n(3), n(2)), n(8), n(1)).get_state())
    assert json.dumps(TimeSeries(X, n(2), n(1)).get_state())
    assert Reversal(n(3), n(5), n(8)).shape == [(5, 3), (5, 3)]
    assert pad_sentences([[1]], n(2)).tolist() == [[0, 1]]
    assert be.onehot(be.array([[0, 1]], dtype="int32"), axis=0, nclass=n(3)).shape == (3, 2)
    be.set_hist_buffers(n(8), n(-4))


def test_everything_else_takes_integers_of_numpy(tmp_path):
    pytest.importorskip("matplotlib")
    gen_backend("cpu", rng_seed=1, batch_size=n(2))
    assert TopKMisclassification(n(2)).metric_names[2] == "Top2Misclass"
    assert PrecisionRecall(n(3)).num_classes == 3
    assert RoiPooling(HW=n(7)).HW == (7, 7)
    assert json.dumps(LossScaling(Adam(), 8, 1, n(5)).get_description())
    assert json.dumps(Adam(schedule=PowerSchedule(step_config=n(2), change=0.5)).get_description())
    assert json.dumps(GradientDescentMomentum(0.1, 0.9, schedule=StepSchedule([n(2)], [0.5])).get_description())
    assert (TrainCostCallback(n(5)).wsz, GANPlotCallback(tmp_path / "a.png", n(5), n(4)).hw) == (5, [5, 5])
    data = ArrayIterator(np.eye(4), np.arange(4), nclass=n(4))
    model = Model([Affine(n(4), G, bias=Constant(0), activation=Softmax())])
    model.fit(data, CrossEntropyMulti(), Adam(stochastic_round=0), num_epochs=n(1))
    assert model.benchmark(data, niterations=n(1), nskip=n(0))
    model.set_batch_size(n(3))
    model.save_params(tmp_path / "m")
    assert Model(tmp_path / "m").layers.in_shape == 4
