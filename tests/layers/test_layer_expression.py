"""Networks as expressions: ``layer(x)`` against fprop and bprop of the same layer (neonlite/layers/layer.py,
neonlite/layers/container.py, neonlite/layers/merge.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.networks import MultiplyByTwo

import neonlite as nl
from neonlite import layers as L
from neonlite.initializers import Gaussian
from neonlite.layers import (
    GRU,
    LRN,
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    BatchNormAutodiff,
    Bias,
    BiBNRNN,
    BiLSTM,
    BinaryAffine,
    BinaryLinear,
    BiRNN,
    BiSum,
    BranchNode,
    Conv,
    Convolution,
    Convolution_bias,
    DataTransform,
    Deconv,
    Deconvolution,
    DeepBiLSTM,
    DeepBiRNN,
    Dropout,
    GenerativeAdversarial,
    Layer,
    LayerNorm,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    MultiHeadAttention,
    PositionalEncoding,
    PositionEmbedding,
    Recurrent,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
    Sequential,
    ShiftBatchNorm,
    SingleOutputTree,
    SkipNode,
    TransformerBlock,
    Tree,
)
from neonlite.layers.buffers import iobuf_shape
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import Logistic, Normalizer, Rectlin, Sign, Softmax, Tanh

N = 4
INIT = Gaussian(scale=0.5)
RNN = {"init": INIT, "activation": Tanh(), "reset_cells": True}
GATED = {**RNN, "gate_activation": Logistic()}


def tree_layers(node):
    return [[Affine(6, INIT, activation="tanh"), node, Affine(3, INIT)], [node, Affine(2, INIT)]]


# class or composition -> (how to make it, the shape of its inputs)
CASES = {
    "Linear": (lambda: Linear(3, INIT), 5),
    "Bias": (lambda: Bias(INIT), 5),
    "Affine": (lambda: Sequential(Affine(3, INIT, bias=INIT, activation=Softmax())), 5),
    "Affine of time steps": (lambda: Sequential(Affine(3, INIT, bias=INIT)), (5, 2)),
    "BinaryLinear": (lambda: BinaryLinear(3, INIT), 5),
    "BinaryAffine": (lambda: Sequential(BinaryAffine(3, INIT, activation="relu")), 5),
    "BinaryAffine of signs": (
        lambda: Sequential([BinaryAffine(n, INIT, batch_norm=True, activation=Sign()) for n in (6, 3)]),
        5,
    ),
    "Activation": (lambda: Activation(Softmax()), (5, 2)),
    "DataTransform": (lambda: DataTransform(Normalizer()), 5),
    "Dropout": (lambda: Dropout(1.0), 5),
    "Reshape": (lambda: Reshape((2, 3)), 6),
    "BatchNorm": (BatchNorm, 5),
    "BatchNorm of images": (BatchNorm, (2, 3, 3)),
    "BatchNorm, binary": (lambda: BatchNorm(binary=True), (2, 3, 3)),
    "ShiftBatchNorm": (ShiftBatchNorm, (5, 2)),
    "BatchNormAutodiff": (BatchNormAutodiff, (2, 3, 3)),
    "LayerNorm": (LayerNorm, (5, 2)),
    "Convolution": (lambda: Convolution((3, 3, 4), strides=2, padding=1, init=INIT), (2, 6, 5)),
    "Convolution_bias": (lambda: Convolution_bias((2, 3, 4), init=INIT, bias=INIT), (2, 6, 5)),
    "Conv": (lambda: Sequential(Conv((3, 3, 4), INIT, batch_norm=True, activation=Tanh(), dilation=2)), (2, 6, 6)),
    "Deconvolution": (lambda: Deconvolution((3, 3, 4), strides=2, init=INIT), (2, 3, 2)),
    "Deconv": (lambda: Sequential(Deconv((3, 3, 4), INIT, bias=INIT, activation="relu")), (2, 3, 2)),
    "Pooling": (lambda: L.Pooling(2), (2, 4, 6)),
    "Pooling, avg": (lambda: L.Pooling(3, op="avg", strides=1, padding=1), (2, 4, 6)),
    "Pooling, l2": (lambda: L.Pooling(2, op="l2"), (2, 4, 6)),
    "LRN": (lambda: LRN(3, alpha=0.5), (4, 3, 3)),
    "Recurrent": (lambda: Recurrent(4, **RNN), (3, 5)),
    "Recurrent, relu": (lambda: Recurrent(4, **RNN | {"activation": Rectlin()}), (3, 5)),
    "Recurrent, leaky": (lambda: Recurrent(4, **RNN | {"activation": Rectlin(0.1)}), (3, 5)),
    "LSTM": (lambda: LSTM(4, **GATED), (3, 5)),
    "LSTM of many steps": (lambda: LSTM(4, **GATED), (3, 12)),
    "GRU": (lambda: GRU(4, **GATED), (3, 5)),
    "BiRNN": (lambda: BiRNN(4, **RNN), (3, 5)),
    "BiLSTM": (lambda: BiLSTM(4, **GATED), (3, 5)),
    "DeepBiRNN": (lambda: Sequential(DeepBiRNN(4, INIT, None, Tanh(), reset_cells=True, depth=2)), (3, 5)),
    "DeepBiLSTM": (
        lambda: Sequential(DeepBiLSTM(4, INIT, None, Tanh(), Logistic(), reset_cells=True, depth=2)),
        (3, 5),
    ),
    "BiBNRNN": (lambda: BiBNRNN(4, **RNN), (3, 5)),
    "BiBNRNN of split inputs": (lambda: BiBNRNN(4, **RNN, split_inputs=True), (6, 5)),
    "BiSum": (lambda: Sequential([BiRNN(4, **RNN), BiSum()]), (3, 5)),
    "RecurrentLast": (RecurrentLast, (3, 5)),
    "RecurrentMean": (RecurrentMean, (3, 5)),
    "RecurrentSum": (RecurrentSum, (3, 5)),
    "MultiHeadAttention": (lambda: MultiHeadAttention(2, INIT), (4, 3)),
    "causal attention": (lambda: MultiHeadAttention(2, INIT, causal=True), (4, 3)),
    "TransformerBlock": (lambda: Sequential(TransformerBlock(4, 2, 8)), (4, 3)),
    "PositionalEncoding": (PositionalEncoding, (4, 3)),
    "PositionEmbedding": (lambda: PositionEmbedding(3, INIT), (4, 3)),
    "MergeSum": (lambda: MergeSum([Affine(3, INIT), Affine(3, INIT, activation="tanh")]), 5),
    "MergeBroadcast": (
        lambda: MergeBroadcast([Conv((1, 1, 2), INIT), L.Pooling(3, strides=1, padding=1)], merge="depth"),
        (2, 4, 4),
    ),
    "MergeBroadcast of sequences": (lambda: MergeBroadcast([Linear(3, INIT), Bias(INIT)], merge="recurrent"), (3, 2)),
    "MergeMultistream": (lambda: MergeMultistream([Affine(3, INIT), Affine(2, INIT)], merge="stack"), [5, 4]),
    "SkipNode": (lambda: MergeSum([Affine(5, INIT), SkipNode()]), 5),
    "Tree": (lambda: Tree(tree_layers(BranchNode())), 5),
    "SingleOutputTree": (lambda: SingleOutputTree(tree_layers(BranchNode())), 5),
    "GenerativeAdversarial": (lambda: GenerativeAdversarial(Affine(4, INIT), Affine(1, INIT)), 5),
    "network": (
        lambda: Sequential(
            [
                Conv((3, 3, 4), INIT, activation="relu", padding=1),
                MergeSum([Conv((1, 1, 4), INIT), SkipNode()]),
                L.Pooling(2),
                BatchNorm(),
                Affine(3, INIT, activation=Softmax()),
            ]
        ),
        (2, 6, 6),
    ),
}
# of several inputs: in test_images_pooling_regions.py and test_seq2seq.py
OF_SEVERAL = "RoiPooling Decoder Encoder Seq2Seq SkipThought"
INTEGERS = {"LookupTable": (lambda: LookupTable(10, 4, init=INIT), 5)}
OTHERS = (
    "BranchNode CompoundLayer GeneralizedCost GeneralizedCostMask GeneralizedGANCost Layer LayerContainer Multicost "
    "ParameterLayer ParameterSpec QuantizedConvolution QuantizedLinear Sequential TensorAttribute attention "
    "check_layer get_steps"
)
every_case = pytest.mark.parametrize("name", CASES)


def listed(x):
    return x if isinstance(x, list) else [x]


def data(rng, shape, n):
    shapes = [iobuf_shape(s) for s in listed(shape)]
    sizes = [(s, 1) if isinstance(s, int) else (s[0], s[1]) if len(s) == 2 else (int(np.prod(s)), 1) for s in shapes]
    arrays = [rng.normal(size=(rows, steps * n)) for rows, steps in sizes]
    return arrays if isinstance(shape, list) else arrays[0]


def tensors(be, x):
    return [be.array(y) for y in x] if isinstance(x, list) else be.array(x)


def allocated(be, name, n=N):
    """Return an allocated layer that computes deltas, and the shape of its inputs."""
    make, shape = (CASES | INTEGERS)[name]
    be.bsz = n
    layer = make()
    layer.configure(shape)
    for first in [layer, *getattr(layer, "layers", [])]:
        first.needs_deltas = True
    layer.allocate()
    layer.allocate_deltas()
    return layer, shape


def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)


def test_every_layer_is_in_a_test():
    names = {name.split()[0].rstrip(",") for name in CASES} | {
        *INTEGERS,
        *OF_SEVERAL.split(),
        *OTHERS.split(),
    }
    assert {*L.__all__} <= names


@every_case
def test_the_values_are_those_of_fprop(be64, rng, name):
    layer, shape = allocated(be64, name)
    x = tensors(be64, data(rng, shape, N))
    for training in (True, False):
        tree = layer(x, training=training)
        outputs = [y.get() for y in listed(layer.fprop(x, inference=not training))]
        for y, expected in zip(listed(tree), outputs, strict=True):
            assert y.shape == expected.shape
            if name != "GenerativeAdversarial" or not training:
                close(y.get(), expected)


@every_case
def test_the_gradients_are_those_of_bprop(be64, rng, name):
    be = be64
    layer, shape = allocated(be, name)
    x = tensors(be, data(rng, shape, N))
    trees = listed(layer(x, training=True))
    outputs = listed(layer.fprop(x))
    errors = [be.array(rng.normal(size=y.shape)) for y in outputs]
    cost = sum(be.sum(y * e) for y, e in zip(trees, errors, strict=True))
    inputs = listed(x)
    gradients = nl.Autodiff(cost, be, allow_unused=True).get_grad_tensor([*layer.parameters, *inputs])
    values = [g.get() for g in gradients]
    deltas = layer.bprop(errors if len(errors) > 1 else errors[0])
    for g, expected in zip(values, layer.gradients, strict=False):
        close(g, expected.get())
    if deltas is not None:
        for g, d in zip(values[len(layer.parameters) :], listed(deltas), strict=True):
            close(g, d.get())


@every_case
def test_the_number_of_samples_is_any_and_buffers_are_not_affected(be64, rng, name):
    layer, shape = allocated(be64, name, 2)
    x = data(rng, shape, 3)
    steps = [y.shape[1] // 3 for y in listed(x)]
    two = [y.reshape(len(y), t, 3)[:, :, :2].reshape(len(y), -1) for y, t in zip(listed(x), steps, strict=True)]
    outputs = listed(layer.fprop(tensors(be64, two if isinstance(x, list) else two[0]), inference=True))
    before = [y.get() for y in outputs]
    for tree, y in zip(listed(layer(tensors(be64, x))), before, strict=True):
        t = y.shape[1] // 2
        close(tree.get().reshape(len(y), t, 3)[:, :, :2].reshape(len(y), -1), y)
    assert be64.bsz == 2
    for y, expected in zip(outputs, before, strict=True):
        np.testing.assert_array_equal(y.get(), expected)


@pytest.mark.parametrize("name", ["BatchNorm, binary", "BiBNRNN"])
def test_running_statistics_move_as_in_fprop(be64, rng, name):
    results = []
    for by_fprop in (False, True):
        layer, shape = allocated(be64, name)
        x = data(np.random.default_rng(5), shape, N)
        for w in layer.parameters:
            w[:] = np.random.default_rng(6).normal(size=w.shape)
        for scale in (1, 2):
            layer.fprop(be64.array(x * scale)) if by_fprop else layer(be64.array(x * scale), training=True)
        results.append([layer.gmean.get(), layer.gvar.get()])
    for got, expected in zip(*results, strict=True):
        close(got, expected)
        assert got.any()


def test_estimated_gradients_are_those_of_bprop_before_a_selection_and_at_the_limits_of_sign(be64, rng):
    be = be64
    layer, _ = allocated(be, "BatchNorm, binary")
    x, selected, e = (be.array(y) for y in (rng.normal(size=(18, N)), rng.integers(0, 2, (18, N)), rng.normal(size=1)))
    y = be.where(selected, layer(x, training=True), 0)
    dx, dgamma = nl.Autodiff(be.sum(y * e), be).get_grad_tensor([x, layer.gamma])
    layer.fprop(x)
    close(layer.bprop(be.array(selected.get() * e.get())).get(), dx.get())
    close(layer.grad_gamma.get(), dgamma.get())
    x = be.array([[-np.inf, -2, -1, -0.5, 0, 0.5, 1, 2, np.inf, np.nan]])
    y = Activation(Sign())(x, training=True)
    np.testing.assert_array_equal(y.get(), [[-1, -1, -1, -1, 1, 1, 1, 1, 1, np.nan]])
    np.testing.assert_array_equal(nl.Autodiff(be.sum(y), be).get_grad_asnumpyarray(x), [[0, 0, 1, 1, 1, 1, 1, 0, 0, 0]])


def test_a_table_is_looked_up_in_an_expression(be64, rng):
    layer, _ = allocated(be64, "LookupTable")
    x = be64.array(rng.integers(0, 10, size=(5, N)), dtype="int32")
    tree = layer(x, training=True)
    outputs = layer.fprop(x)
    close(tree.get(), outputs.get())
    error = be64.array(rng.normal(size=outputs.shape))
    gradient = nl.Autodiff(be64.sum(tree * error), be64).get_grad_tensor(layer.W)
    layer.bprop(error)
    close(gradient.get(), layer.dW.get())


@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_are_images_op_trees_and_arrays(be64, rng, compiled):
    be, images = be64, rng.normal(size=(2, 5, 4, 3))
    net = Sequential([Conv((3, 3, 4), INIT, activation="tanh"), Affine(3, INIT)])
    f = nl.jit(lambda x: net(x)) if compiled else net
    expected = f(be.array(images)).get()
    assert net.in_shape == (2, 5, 4)
    columns = be.array(images.reshape(-1, 3))
    for x in (columns, columns * 1, be.array(images / 2) * 2, be.array_api.asarray(images)):
        close(f(x).get() if hasattr(f(x), "get") else f(x).numpy(), expected)


def test_networks_are_composed_and_differentiated_together(be64, rng):
    be = be64
    encoder = Sequential([Affine(3, INIT, bias=INIT, activation="tanh")])
    decoder = Sequential([Affine(5, INIT, bias=INIT)])
    x = be.array(rng.normal(size=(5, N)))
    difference = decoder(encoder(x)) - x
    tree = be.sum(difference * difference)
    parameters = encoder.parameters + decoder.parameters
    gradients = nl.Autodiff(tree, be).get_grad_asnumpyarray(parameters)
    (W, b), (V, c) = [p.get() for p in encoder.parameters], [p.get() for p in decoder.parameters]
    hidden = np.tanh(W @ x.get() + b)
    error = 2 * (V @ hidden + c - x.get())
    dhidden = (V.T @ error) * (1 - hidden**2)
    expected = [dhidden @ x.get().T, dhidden.sum(1, keepdims=True), error @ hidden.T, error.sum(1, keepdims=True)]
    for g, e in zip(gradients, expected, strict=True):
        close(g, e)


def test_an_expression_is_differentiated_twice(be64, rng):
    be = be64
    net = Sequential([Affine(3, INIT, activation="tanh"), Affine(1, INIT)])
    x = be.array(rng.normal(size=(4, N)))
    first = nl.Autodiff(be.sum(net(x)), be).get_grad_op_tree(x)
    second = nl.Autodiff(be.sum(first * first), be).get_grad_asnumpyarray(net.parameters[0])
    W, step = net.parameters[0], 1e-6
    values = W.get()
    for i, j in ((0, 0), (2, 3)):
        costs = []
        for sign in (1, -1):
            changed = values.copy()
            changed[i, j] += sign * step
            W[:] = changed
            costs.append(float(be.sum(first * first).get()))
        assert (costs[0] - costs[1]) / (2 * step) == pytest.approx(second[i, j], rel=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_draws_a_mask_at_each_evaluation_and_scales_at_inference(be, compiled):
    layer = Dropout(0.7)
    x = be.ones((50, 40))
    f = (
        (lambda training: layer(x, training=training) * 1)
        if not compiled
        else nl.jit(lambda t: layer(x, training=t) * 1)
    )
    masks = [f(True).get() for _ in range(4)]
    assert all(set(np.unique(mask)) <= {0, 1} for mask in masks)
    assert all((masks[0] != mask).any() for mask in masks[1:])
    assert np.mean(masks) == pytest.approx(0.7, abs=0.03)
    np.testing.assert_allclose(f(False).get(), 0.7, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_running_statistics_move_once_in_each_call_in_training_only(be64, rng, compiled):
    be, rho = be64, 0.9
    net = Sequential([Linear(3, INIT), BatchNorm(rho=rho)])
    x = rng.normal(size=(4, 8))
    net(be.array(x))
    norm = net.layers[1]
    f = nl.jit(lambda x: net(x, training=True)) if compiled else lambda x: net(x, training=True)
    h = net.layers[0].W.get() @ x
    mean, var = np.zeros((3, 1)), norm.gvar.get()
    for _ in range(3):
        y = f(be.array(x)).get()
        mean = rho * mean + (1 - rho) * h.mean(1, keepdims=True)
        var = rho * var + (1 - rho) * h.var(1, keepdims=True)
        close(norm.gmean.get(), mean)
        close(norm.gvar.get(), var)
        close(y, (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + norm.eps))
    close(net(be.array(x)).get(), (h - mean) / np.sqrt(var + norm.eps))
    close(norm.gmean.get(), mean)


class Cubed(Layer):
    """A custom layer with a formula."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x):
        return x * x * x


def test_custom_layers_with_a_formula_are_a_part_of_the_expression(be64, rng):
    net, x = Sequential([Linear(3, INIT), Cubed()]), rng.normal(size=(4, N))
    tree = net(be64.array(x), training=True)
    W = net.parameters[0]
    close(tree.get(), (W.get() @ x) ** 3)
    gradient = nl.Autodiff(be64.sum(tree), be64).get_grad_asnumpyarray(W)
    close(gradient, (3 * (W.get() @ x) ** 2) @ x.T)


def test_custom_layers_with_fprop_only_are_evaluated_at_inference(be, rng):
    net, x = Sequential([Linear(3, INIT), MultiplyByTwo()]), rng.normal(size=(4, N)).astype("float32")
    y = net(be.array(x))
    np.testing.assert_allclose(y.get(), 2 * net.parameters[0].get() @ x, rtol=1e-5, atol=1e-6)
    assert not net.is_expression
    with pytest.raises(
        NotImplementedError, match=r"expected layers with a formula for training=True, got MultiplyByTwo"
    ):
        net(be.array(x), training=True)
    with pytest.raises(TypeError, match=r"expected expressions while the function is traced, got"):
        nl.jit(lambda x: net(x))(be.array(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_call_configures_a_network_for_all_later_ones(be, rng, compiled):
    net = Sequential([Affine(3, INIT, bias=INIT, activation="relu"), Affine(2, INIT, bias=INIT)])
    f = nl.jit(lambda x: net(x)) if compiled else net
    x = be.array(rng.normal(size=(4, 5)))
    before = f(x).get()
    assert (net.in_shape, net.out_shape) == (4, 2)
    assert [p.shape for p in net.parameters] == [(3, 4), (3, 1), (2, 3), (2, 1)]
    weights = [p.get() for p in net.parameters]
    f(be.array(rng.normal(size=(4, 7))))
    for p, w in zip(net.parameters, weights, strict=True):
        np.testing.assert_array_equal(p.get(), w)
    np.testing.assert_array_equal(f(x).get(), before)
    with pytest.raises(ValueError, match=r"expected inputs \(4, N\), for the layer shape 4, got .*\(5, 3\)"):
        f(be.ones((5, 3)))
    be.bsz = 5  # the buffers of fprop are allocated with the same parameters
    net.allocate()
    np.testing.assert_allclose(net.fprop(x, inference=True).get(), before, rtol=1e-5, atol=1e-6)


def test_inputs_that_do_not_fit_are_refused(be):
    net = Sequential([Affine(3, INIT)])
    for x in (np.ones((4, 2)), [[1.0]], "text", None):
        with pytest.raises(TypeError, match=r"expected a tensor or op-tree, got .* Create a tensor with be.array"):
            net(x)
    with pytest.raises(ValueError, match="expected inputs with one column or more"):
        net(be.zeros((4, 0)))
    recurrent = LSTM(4, **GATED).configure((3, 5))
    with pytest.raises(ValueError, match=r"inputs \(3, 5 N\), .* got .*\. For T time steps, call set_seq_len\(T\)"):
        recurrent(be.ones((3, 7)))
    two = MergeMultistream([Affine(3, INIT), Affine(2, INIT)], merge="stack").configure([5, 4])
    for x in (be.ones((5, 2)), [be.ones((5, 2))], [be.ones((5, 2))] * 3):
        with pytest.raises(ValueError, match=r"expected a list of 2 inputs, for \[5, 4\], got"):
            two(x)
    with pytest.raises(ValueError, match="expected"):
        two([be.ones((5, 2)), be.ones((4, 3))])
    with pytest.raises(ValueError, match="expected one input, for 4, got"):
        net([be.ones((4, 2))] * 2)
    assert net([be.ones((4, 2))]).shape == (3, 2)


def test_a_custom_training_loop_has_the_weights_of_fprop_bprop_and_optimize(be64, rng):
    """With and without jit; convolution, batch normalization, pooling and momentum."""
    be, x, target = be64, rng.normal(size=(2, 5, 5, N)), np.eye(3)[:, [0, 1, 2, 1]]
    results = []
    for compiled in (None, False, True):
        be.rng_reset()
        be.bsz = N
        net = Sequential([Conv((3, 3, 4), INIT, batch_norm=True, activation="relu"), L.Pooling(2), Affine(3, INIT)])
        net.configure((2, 5, 5))
        net.allocate()
        net.allocate_deltas()
        optimizer = GradientDescentMomentum(0.1, 0.9)
        t = be.array(target)

        def step(x, net=net, optimizer=optimizer, t=t):
            y = net(x, training=True)
            gradients = nl.Autodiff(be.sum((y - t) * (y - t)) / (2 * N), be).get_grad_op_tree(net.parameters)
            optimizer.step(net.parameters, gradients)

        step = nl.jit(step) if compiled else step
        for _ in range(3):
            if compiled is None:
                y = net.fprop(be.array(x.reshape(-1, N)))
                net.bprop(be.array(y.get() - target))
                optimizer.optimize(net.layers_to_optimize if hasattr(net, "layers_to_optimize") else net.layers, 0)
            else:
                step(be.array(x))
        results.append([*(p.get() for p in net.parameters), *(t.get() for t in net.layers[1].running_tensors)])
    for other in results[1:]:
        for p, q in zip(results[0], other, strict=True):
            close(p, q)


@every_case
def test_the_first_call_may_be_in_a_compiled_function(be64, rng, name):
    make, shape = CASES[name]
    layer, other = make(), make()
    layer.configure(shape)
    other.configure(shape)
    x = tensors(be64, data(rng, shape, N))
    f = nl.jit(lambda x: (listed(layer(x, training=True)), listed(layer(x))))
    be64.rng_reset()
    training, inference = f(x)
    be64.rng_reset()
    for y, expected in zip(training, listed(other(x, training=True)), strict=True):
        close(y.get(), expected.get())
    for y, expected in zip(inference, listed(other(x)), strict=True):
        close(y.get(), expected.get())
    for y, expected in zip(f(x)[1], listed(layer(x)), strict=True):  # its tensors are not those of the traced call
        close(y.get(), expected.get())
