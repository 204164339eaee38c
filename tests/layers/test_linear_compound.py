"""Names for activations, initial values, costs and optimizers, the defaults of layers, and ``dropout``
(neonlite/layers/linear.py and the tables of names that its layers use)."""

from __future__ import annotations

import json
import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite.initializers import (
    Constant,
    Gaussian,
    GlorotUniform,
    IdentityInit,
    Initializer,
    Kaiming,
    Orthonormal,
    Uniform,
    Xavier,
    initializer_names,
)
from neonlite.layers import (
    GRU,
    LSTM,
    Activation,
    Affine,
    Bias,
    BiLSTM,
    BinaryAffine,
    BiRNN,
    Conv,
    Convolution,
    Convolution_bias,
    Deconv,
    DeepBiLSTM,
    Dropout,
    GeneralizedCost,
    Layer,
    Linear,
    LookupTable,
    MultiHeadAttention,
    PositionEmbedding,
    Recurrent,
    Sequential,
    TransformerBlock,
)
from neonlite.optimizers import (
    LAMB,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    GradientDescentMomentum,
    Lion,
    LossScaling,
    MultiOptimizer,
    Muon,
    NAdam,
    RMSProp,
    ShiftAdaMax,
)
from neonlite.optimizers.rules import OPTIMIZERS
from neonlite.transforms import (
    GELU,
    CrossEntropyBinary,
    CrossEntropyMulti,
    Explin,
    Identity,
    Logistic,
    MeanSquared,
    Normalizer,
    Rectlin,
    Rectlinclip,
    Sign,
    SiLU,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
)
from neonlite.transforms.functions import ACTIVATIONS, COSTS


def description(x: Any) -> Any:
    """Return the description of an object or of a list of layers, without names."""
    described = [layer.get_description() for layer in x] if isinstance(x, list) else x.get_description()

    def without_names(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_names(v) for k, v in value.items() if k != "name"}
        return [*map(without_names, value)] if isinstance(value, list) else value

    return without_names(json.loads(json.dumps(described)))


@pytest.fixture
def be() -> nl.Backend:
    return nl.gen_backend("cpu", rng_seed=0, batch_size=2)


# --- names -----------------------------------------------------------------------------------------------------------

ACTIVATION_OF_NAME = {
    "relu": Rectlin(),
    "rectlin": Rectlin(),
    "leaky_relu": Rectlin(slope=0.01),
    "rectlinclip": Rectlinclip(),
    "elu": Explin(),
    "explin": Explin(),
    "sigmoid": Logistic(),
    "logistic": Logistic(),
    "tanh": Tanh(),
    "softmax": Softmax(),
    "gelu": GELU(),
    "silu": SiLU(),
    "swish": SiLU(),
    "sign": Sign(),
    "identity": Identity(),
    "linear": Identity(),
    "normalizer": Normalizer(),
}
COST_OF_NAME = {
    "cross_entropy": CrossEntropyMulti(),
    "crossentropymulti": CrossEntropyMulti(),
    "binary_cross_entropy": CrossEntropyBinary(),
    "crossentropybinary": CrossEntropyBinary(),
    "mse": MeanSquared(),
    "mean_squared_error": MeanSquared(),
    "meansquared": MeanSquared(),
    "sumsquared": SumSquared(),
    "huber": SmoothL1Loss(),
    "smooth_l1": SmoothL1Loss(),
    "smoothl1loss": SmoothL1Loss(),
    "squared_hinge": SquareHingeLoss(),
    "squarehingeloss": SquareHingeLoss(),
    "binary_crossentropy": CrossEntropyBinary(),
    "categorical_crossentropy": CrossEntropyMulti(),
    "sparse_categorical_crossentropy": CrossEntropyMulti(),
}
OPTIMIZER_OF_NAME = {
    "sgd": GradientDescentMomentum(0.01, 0.0),
    "momentum": GradientDescentMomentum(0.01, 0.9),
    "gradientdescentmomentum": GradientDescentMomentum(0.01, 0.9),
    "nesterov": GradientDescentMomentum(0.01, 0.9, nesterov=True),
    "rmsprop": RMSProp(learning_rate=0.002),
    "adagrad": Adagrad(learning_rate=0.01),
    "adadelta": Adadelta(),
    "adam": Adam(learning_rate=0.001),
    "adamw": AdamW(learning_rate=0.001),
    "shiftadamax": ShiftAdaMax(),
    "nadam": NAdam(learning_rate=0.002),
    "lamb": LAMB(learning_rate=0.001),
    "lion": Lion(0.0001),
    "muon": Muon(0.001, 0.95),
}
INITIALIZER_OF_NAME = {
    "zeros": Constant(0.0),
    "constant": Constant(0.0),
    "ones": Constant(1.0),
    "normal": Gaussian(),
    "gaussian": Gaussian(),
    "uniform": Uniform(),
    "glorot": GlorotUniform(),
    "glorotuniform": GlorotUniform(),
    "xavier": Xavier(local=False),
    "kaiming": Kaiming(local=False),
    "he": Kaiming(local=False),
    "orthonormal": Orthonormal(),
    "orthogonal": Orthonormal(),
    "identity": IdentityInit(local=False),
    "identityinit": IdentityInit(local=False),
}


@pytest.mark.parametrize("name", ACTIVATION_OF_NAME)
def test_a_name_of_an_activation_gives_the_layers_of_the_instance(name):
    expected = ACTIVATION_OF_NAME[name]
    assert description(Affine(3, "ones", activation=name)) == description(Affine(3, "ones", activation=expected))
    assert description(Activation(name)) == description(Activation(expected))


@pytest.mark.parametrize("name", COST_OF_NAME)
def test_a_name_of_a_cost_gives_the_cost_of_the_instance(name):
    assert description(GeneralizedCost(name).costfunc) == description(COST_OF_NAME[name])


@pytest.mark.parametrize("name", OPTIMIZER_OF_NAME)
def test_a_name_of_an_optimizer_gives_the_optimizer_of_the_instance(name):
    expected = description(OPTIMIZER_OF_NAME[name])
    assert description(nl.Model([Linear(2)], optimizer=name).optimizer) == expected
    assert description(MultiOptimizer({"default": name}).optimizer_mapping["default"]) == expected
    assert description(LossScaling(name).optimizer) == expected


@pytest.mark.parametrize("name", INITIALIZER_OF_NAME)
def test_a_name_of_initial_values_gives_the_layer_of_the_instance(name):
    expected = INITIALIZER_OF_NAME[name]
    assert description(Linear(3, name)) == description(Linear(3, expected))
    assert description(Affine(3, name, bias="ones")) == description(Affine(3, expected, bias=Constant(1.0)))


def test_every_name_is_tested():
    assert ACTIVATION_OF_NAME.keys() == ACTIVATIONS.keys()
    assert COST_OF_NAME.keys() == COSTS.keys()
    assert OPTIMIZER_OF_NAME.keys() == OPTIMIZERS.keys()
    assert INITIALIZER_OF_NAME.keys() == initializer_names(True).keys()


@pytest.mark.parametrize(
    ("module", "base", "table", "others"),
    [
        ("transforms.functions", nl.transforms.Transform, ACTIVATIONS, {"PixelwiseSoftmax"}),
        ("transforms.functions", nl.transforms.Cost, COSTS, {"CrossEntropy", "GANCost"}),
        (
            "optimizers.rules",
            nl.optimizers.Optimizer,
            OPTIMIZERS,
            set(),
        ),
        ("initializers", Initializer, initializer_names(True), {"Array"}),
    ],
)
def test_every_class_has_its_lower_case_name_except_those_with_required_arguments(module, base, table, others):
    members = vars(import_module(f"neonlite.{module}")).values()
    classes = {x.__name__ for x in members if isinstance(x, type) and issubclass(x, base) and x is not base}
    assert {name for name in classes if name.lower() not in table} == others


def test_initial_values_of_a_convolution_by_name_use_the_inputs_of_a_filter():
    layers = Conv((3, 3, 4), "he", bias="zeros"), Convolution((3, 3, 4), init="xavier"), Deconv((3, 3, 4), "kaiming")
    instances = (
        Conv((3, 3, 4), Kaiming(local=True), bias=Constant(0.0)),
        Convolution((3, 3, 4), init=Xavier(local=True)),
        Deconv((3, 3, 4), Kaiming(local=True)),
    )
    assert [*map(description, layers)] == [*map(description, instances)]


def test_names_are_case_insensitive_and_each_layer_has_its_own_object():
    first, second = Activation("ReLU"), Activation("relu")
    assert type(first.transform) is Rectlin
    assert first.transform is not second.transform


def test_names_are_valid_in_recurrent_and_attention_layers():
    by_name = LSTM(3, "glorot", "orthogonal", "tanh", "sigmoid")
    assert description(by_name) == description(LSTM(3, GlorotUniform(), Orthonormal(), Tanh(), Logistic()))
    assert description(MultiHeadAttention(2, "glorot", bias="zeros")) == description(
        MultiHeadAttention(2, GlorotUniform(), bias=Constant(0.0))
    )
    assert description(TransformerBlock(4, 2, 8, "glorot", activation="relu")) == description(
        TransformerBlock(4, 2, 8, GlorotUniform(), activation=Rectlin())
    )


@pytest.mark.parametrize(
    ("create", "kind", "names"),
    [
        (lambda: Affine(3, activation="rleu"), "activation", ACTIVATIONS),
        (lambda: Activation("rleu"), "transform", ACTIVATIONS),
        (lambda: GRU(3, gate_activation="rleu"), "gate_activation", ACTIVATIONS),
        (lambda: Linear(3, "rleu"), "init", initializer_names(False)),
        (lambda: Convolution_bias((3, 3, 2), bias="rleu"), "init", initializer_names(False)),
        (lambda: GeneralizedCost("rleu"), "costfunc", COSTS),
        (lambda: nl.Model([Linear(3)], optimizer="rleu"), "optimizer", OPTIMIZERS),
        (lambda: LossScaling("rleu"), "optimizer", OPTIMIZERS),
    ],
)
def test_an_unknown_name_raises_an_error_with_all_names(create, kind, names):
    with pytest.raises(ValueError, match="expected one of") as caught:
        create()
    assert str(caught.value).endswith(f"expected one of {', '.join(map(repr, names))} for {kind}, got 'rleu'")


@pytest.mark.parametrize("create", [lambda x: Affine(3, activation=x), Activation, lambda x: LSTM(3, activation=x)])
def test_an_activation_of_another_type_is_refused_by_the_constructor(create):
    with pytest.raises(TypeError, match=r"expected a transform, such as .*, got 3"):
        create(3)
    with pytest.raises(TypeError, match=r"got <class .*Logistic'>\. Pass an instance: Logistic\(\)"):
        create(Logistic)


def test_fit_accepts_names(be):
    x, t = np.eye(4, dtype=np.float32), np.arange(4)
    data = nl.data.ArrayIterator(x, t, nclass=4)
    weights = []
    for cost, optimizer in (("cross_entropy", "adam"), (CrossEntropyMulti(), Adam())):
        nl.gen_backend("cpu", rng_seed=0, batch_size=2)
        model = nl.Model([Affine(4, activation="softmax", name="out")])
        model.fit(data, cost, optimizer, num_epochs=2)
        weights.append(model.get_weights()["out.W"])
    np.testing.assert_array_equal(*weights)


# --- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "rectlinclip", "elu", "silu", "gelu"])
def test_without_init_rectifiers_have_the_standard_deviation_of_he_and_a_bias_of_zeros(be, activation):
    net = Sequential([Affine(200, activation=activation, name="h")]).configure(400)
    net.allocate()
    assert net["h"].W.get().std() == pytest.approx(math.sqrt(2 / 400), rel=0.02)
    np.testing.assert_array_equal(net["h_bias"].W.get(), np.zeros((200, 1)))


@pytest.mark.parametrize(
    "layer", [Affine, lambda *args, **kwargs: Conv((3, 3, *args), **kwargs)], ids=["Affine", "Conv"]
)
def test_bias_may_be_true_or_false(layer):
    assert description(layer(3, bias=True)) == description(layer(3)) == description(layer(3, bias=Constant(0)))
    assert len(layer(3, bias=False)) == 1
    assert description(layer(3, Gaussian(), bias=True)) == description(layer(3, Gaussian(), bias=Constant(0)))
    assert len(layer(3, bias=False, batch_norm=True)) == 2
    with pytest.raises(AttributeError, match="expected bias or batch_norm, got both"):
        layer(3, bias=True, batch_norm=True)


@pytest.mark.parametrize("activation", [None, "tanh", "logistic", "softmax"])
def test_without_init_other_layers_have_the_distribution_of_glorot_and_a_bias_of_zeros(be, activation):
    net = Sequential([Affine(200, activation=activation, name="h")]).configure(400)
    net.allocate()
    W, limit = net["h"].W.get(), math.sqrt(6 / (200 + 400))
    assert 0.99 * limit < np.abs(W).max() <= limit
    assert W.std() == pytest.approx(limit / math.sqrt(3), rel=0.02)
    np.testing.assert_array_equal(net["h_bias"].W.get(), np.zeros((200, 1)))


def test_without_init_a_convolution_has_the_standard_deviation_of_he_and_a_bias_of_zeros(be):
    net = Sequential([Conv((3, 3, 64), activation="relu", name="conv")]).configure((32, 6, 6))
    net.allocate()
    assert net["conv"].W.get().std() == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.02)
    np.testing.assert_array_equal(net["conv"].weight_bias.get(), np.zeros((64, 1)))


def kinds(layers: list[Layer]) -> list[str]:
    return [layer.classnm for layer in layers]


def test_with_init_there_is_no_bias_unless_it_is_given_as_in_neon():
    assert kinds(Affine(3, Gaussian(), activation=Rectlin())) == ["Linear", "Activation"]
    assert kinds(Conv((3, 3, 2), Gaussian())) == ["Convolution"]
    assert kinds(Deconv((3, 3, 2), Gaussian())) == ["Deconvolution"]
    assert kinds(BinaryAffine(3, Uniform(-1, 1))) == ["BinaryLinear"]
    assert MultiHeadAttention(2, Gaussian()).bias is None


def test_without_init_there_is_a_bias_unless_there_is_batch_normalization():
    assert kinds(Affine(3)) == ["Linear", "Bias"]
    assert kinds(Affine(3, batch_norm=True)) == ["Linear", "BatchNorm"]
    assert kinds(Conv((3, 3, 2), batch_norm=True)) == ["Convolution", "BatchNorm"]
    assert kinds(Deconv((3, 3, 2))) == ["Deconvolution", "Bias"]
    assert kinds(BinaryAffine(3)) == ["BinaryLinear", "Bias"]
    assert description(Affine(3, bias="ones")[1]) == description(Bias(Constant(1.0)))
    assert description(MultiHeadAttention(2).bias) == description(Constant(0))


@pytest.mark.parametrize("cls", [Recurrent, LSTM, GRU, BiRNN, BiLSTM])
def test_without_init_recurrent_layers_have_glorot_inputs_orthogonal_recurrence_and_tanh(be, cls):
    layer = cls(20).configure((30, 2))
    layer.allocate()
    assert type(layer.activation) is Tanh
    assert type(getattr(layer, "gate_activation", Logistic())) is Logistic
    for direction in range(layer.num_directions):
        W_input, W_recur, b = (part.get() for part in layer.split_weights(layer.W, direction))
        assert np.abs(W_input).max() <= math.sqrt(6 / (20 + 30)) + 1e-6
        assert not b.any()
        for gate in np.split(W_recur, layer.num_gates):
            np.testing.assert_allclose(gate @ gate.T, np.eye(20), atol=1e-5)


def test_with_init_a_recurrent_layer_uses_it_for_both_parts_as_in_neon(be):
    layer = LSTM(3, Constant(0.5)).configure((4, 2))
    layer.allocate()
    for part in (layer.W_input, layer.W_recur):
        assert (part.get() == 0.5).all()


def test_every_layer_with_weights_has_defaults_that_its_description_contains(be):
    layers = [Linear(3), Bias(), Convolution((3, 3, 2)), LookupTable(5, 3), PositionEmbedding(4), MultiHeadAttention(2)]
    layers += [*DeepBiLSTM(3, depth=2), *TransformerBlock(4, 2, 8)[0].layers[1].layers]
    for layer in layers:
        if layer.has_params and hasattr(layer, "init") and layer.classnm != "LayerNorm":
            assert isinstance(layer.init, Initializer)
        assert description(Layer.recursive_gen(layer.get_description())) == description(layer)


def test_a_short_network_learns_iris(be):
    train, valid = nl.data.iris().iterators(batch_size=16)
    model = nl.Model([Affine(20, activation="relu"), Affine(3, activation="softmax")])
    model.fit(train, "cross_entropy", Adam(learning_rate=0.01), num_epochs=60)
    assert model.eval(valid, nl.transforms.Accuracy()) > 0.8


# --- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Adam, AdamW, LAMB, NAdam, RMSProp, Adagrad, ShiftAdaMax])
def test_a_float_by_position_is_the_learning_rate_although_neons_first_argument_is_another(cls):
    assert (cls(0.01).learning_rate, cls(0.01).stochastic_round) == (0.01, False)
    assert cls(np.float64(0.5)).learning_rate == 0.5
    assert cls(True).stochastic_round is True
    with pytest.raises(TypeError, match=r"expected one learning rate, got 0\.01 and 0\.5"):
        cls(0.01, learning_rate=0.5)


def test_the_learning_rate_of_gradient_descent_is_its_first_argument_and_has_a_default():
    assert GradientDescentMomentum(0.1).learning_rate == 0.1
    optimizer = GradientDescentMomentum()
    assert (optimizer.learning_rate, optimizer.momentum_coef) == (0.01, 0.9)


# --- dropout ---------------------------------------------------------------------------------------------------------

DROPOUTS = {
    "Dropout": Dropout,
    "MultiHeadAttention": lambda **x: MultiHeadAttention(2, "glorot", **x),
    "TransformerBlock": lambda **x: TransformerBlock(4, 2, 8, "glorot", **x),
}
every_dropout = pytest.mark.parametrize("create", DROPOUTS.values(), ids=DROPOUTS)


@every_dropout
def test_dropout_is_the_probability_of_dropping_an_element(create):
    assert description(create(dropout=0.25)) == description(create(keep=0.75))
    assert description(create(dropout=0)) == description(create(keep=1))


@every_dropout
def test_keep_and_dropout_together_are_refused(create):
    with pytest.raises(TypeError, match=r"expected keep or dropout, got keep=0\.5 and dropout=0\.5"):
        create(keep=0.5, dropout=0.5)


@every_dropout
@pytest.mark.parametrize("share", [-0.1, 1, 1.5, math.nan])
def test_an_invalid_dropout_is_refused(create, share):
    with pytest.raises(ValueError, match="expected a finite number >= 0 and < 1 for dropout"):
        create(dropout=share)


def test_the_description_of_dropout_is_that_of_keep_and_the_default_is_a_half():
    assert Dropout(dropout=0.25, name="drop").get_description()["config"] == {"keep": 0.75, "name": "drop"}
    assert repr(Dropout(0.75, name="drop")) == repr(Dropout(dropout=0.25, name="drop"))
    assert Dropout().keep == 0.5
    assert MultiHeadAttention(2).keep == 1
