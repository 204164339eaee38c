"""Recurrent layers, compared with textbook loops (neonlite/layers/recurrent.py)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from helpers.recurrent_textbook import (
    BIDIRECTIONAL,
    KINDS,
    LOOPS,
    NIN,
    NOUT,
    G,
    allocate,
    by_columns,
    by_steps,
    close,
    compare,
    every_kind,
    gated,
    plain,
    sequence,
)

from neonlite import Autodiff, NervanaObject, gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Array as Given, Constant, Gaussian, Uniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BiRNN,
    BiSum,
    Convolution,
    DeepBiLSTM,
    DeepBiRNN,
    GeneralizedCost,
    Layer,
    Recurrent,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
    Sequential,
    check_layer,
    get_steps,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.optree import postorder
from neonlite.transforms import CrossEntropyMulti, Identity, Logistic, Rectlin, Softmax, SumSquared, Tanh

# --- the textbook: one step after another, gate by gate; x, h and all errors are (T, features, N) -------------------


# --- each layer against the textbook --------------------------------------------------------------------------------
@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@every_kind
def test_outputs_and_all_gradients_match_the_textbook_loops(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10)


@every_kind
def test_images_are_sequences_of_their_columns(be64, kind):
    be64.bsz, actual = 2, []
    rng = np.random.default_rng(0)
    x, e = be64.array(rng.normal(size=(3 * 4 * 5, 2))), None
    for between in ([], [Reshape((-1, 4))]):
        net = Sequential([Convolution((2, 2, 2), init=Given(np.sin(np.arange(24.0).reshape(12, 2)))), *between])
        net.layers.append(KINDS[kind]())
        net.configure((3, 4, 5))
        assert net.out_shape == (net.layers[-1].num_directions * NOUT, 4)
        net.allocate()
        net.allocate_deltas()
        net.layers[-1].W[:] = np.cos(np.arange(net.layers[-1].W.size)).reshape(net.layers[-1].W.shape)
        e = e or be64.array(rng.normal(size=(net.out_shape[0], 4 * 2)))
        actual.append([])
        for _ in range(2):
            net.layers[-1].reset()
            y = net.fprop(x).get()
            net.bprop(e)
            actual[-1] += [y, *(g.get() for g in net.gradients)]
    for one, other in zip(*actual, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_first_layer_reads_images_column_by_column(cpu64):
    X = np.random.default_rng(0).normal(size=(4, 1, 3, 5))
    cpu64.bsz = 4
    data = ArrayIterator(X, np.arange(4), nclass=4)
    model = Model([plain(Recurrent), RecurrentLast(), Affine(4, G, activation=Softmax())])
    model.fit(data, CrossEntropyMulti(), Adam(), num_epochs=1)
    read, outputs = model.layers.layers[0], np.zeros((NOUT, 4))
    W, V, b = (t.get() for t in (read.W_input, read.W_recur, read.b))
    for column in range(5):
        outputs = np.tanh(W @ X[:, 0, :, column].T + V @ outputs + b)
    (x, _), *_ = data
    model.fprop(x, inference=True)
    close(model.layers.layers[1].outputs, outputs)


# --- weights --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "g"), [("Recurrent", 1), ("LSTM", 4), ("GRU", 3)])
def test_all_weights_are_rows_of_one_tensor(be, kind, g):
    layer = allocate(be, KINDS[kind](), 2, 2)
    assert layer.W.shape == layer.dW.shape == layer.weight_shape == (NIN + NOUT + 1, g * NOUT)
    assert layer.parameters == [layer.W]
    for whole, parts in ((layer.W, "W_input W_recur b"), (layer.dW, "dW_input dW_recur db")):
        W_input, W_recur, b = (getattr(layer, name) for name in parts.split())
        assert W_input.shape == (g * NOUT, NIN)
        assert W_recur.shape == (g * NOUT, NOUT)
        assert b.shape == (g * NOUT, 1)
        whole[:] = np.arange(whole.size).reshape(whole.shape)  # read in another shape, not transposed
        flat = np.concatenate([part.get().ravel() for part in (W_input, W_recur, b)])
        np.testing.assert_array_equal(flat, np.arange(whole.size))
        W_recur[:] = -1
        np.testing.assert_array_equal(whole.get()[NIN : NIN + NOUT], -1)
        assert whole.get()[:NIN].min() == 0


class CallCounter:
    """An initializer that fills with the index of its call."""

    def __init__(self, first: int = 1) -> None:
        self.calls, self.shapes = first - 1, []

    def fill(self, param: Any) -> None:
        self.calls += 1
        self.shapes.append(param.shape)
        param[:] = self.calls


def test_each_gate_is_filled_by_a_separate_call(cpu):
    cpu.bsz = 2
    init = CallCounter()
    layer = LSTM(NOUT, init, activation=Tanh(), gate_activation=Logistic()).configure((NIN, 2))
    layer.allocate()
    assert init.shapes == [(NOUT, NIN)] * 4 + [(NOUT, NOUT)] * 4
    assert layer.W_input.get()[::NOUT, 0].tolist() == [1, 2, 3, 4]
    assert layer.W_recur.get()[::NOUT, 0].tolist() == [5, 6, 7, 8]
    assert not layer.b.get().any()


def test_the_recurrent_weights_may_have_another_initializer(cpu):
    cpu.bsz = 2
    init, inner = CallCounter(), CallCounter(11)
    layer = BiRNN(NOUT, init, inner, Tanh()).configure((NIN, 2))
    layer.allocate()
    assert (init.shapes, inner.shapes) == ([(NOUT, NIN)] * 2, [(NOUT, NOUT)] * 2)
    assert [w.get()[0, 0] for w in (layer.W_input_f, layer.W_input_b, layer.W_recur_f, layer.W_recur_b)] == [
        1,
        2,
        11,
        12,
    ]
    assert not layer.b_f.get().any()


def test_weights_may_be_given_as_arrays(cpu):
    cpu.bsz = 1
    layer = Recurrent(2, np.array([[1.0], [2.0]]), Given(np.eye(2)), Identity()).configure((1, 3))
    layer.allocate()
    y = layer.fprop(cpu.array([[1.0, 10.0, 100.0]]))
    np.testing.assert_array_equal(y.get(), [[1, 11, 111], [2, 22, 222]])


def test_weights_that_are_assigned_are_used(cpu64):
    one, other = (allocate(cpu64, gated(GRU), 3, 2) for _ in range(2))
    x = cpu64.array(np.random.default_rng(0).normal(size=(NIN, 6)))
    one.fprop(x)
    one.W = other.W.get()
    one.reset()
    np.testing.assert_array_equal(one.fprop(x).get(), other.fprop(x).get())


# --- training steps -------------------------------------------------------------------------------------------------
@every_kind
def test_gradients_may_be_accumulated(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](reset_cells=True), 3, 2, accumulate_updates=True)
    rng = np.random.default_rng(2)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))
    layer.fprop(x)
    layer.bprop(e)
    once = layer.dW.get()
    layer.set_acc_on(True)
    layer.bprop(e)
    close(layer.dW, 2 * once)
    layer.set_acc_on(False)
    layer.bprop(e)
    close(layer.dW, once)


@every_kind
def test_deltas_may_be_scaled_and_accumulated(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 2)
    rng = np.random.default_rng(2)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))
    layer.fprop(x)
    plain_deltas = layer.bprop(e).get()
    layer.deltas[:] = 10
    if kind == "BiBNRNN":  # its backward pass reads the outputs
        layer.reset()
        layer.fprop(x)
    close(layer.bprop(e, alpha=2.0, beta=0.5), 2 * plain_deltas + 5)


@every_kind
def test_the_first_layer_has_no_deltas(cpu, kind):
    cpu.bsz = 2
    layer = KINDS[kind]().configure((NIN, 3))
    layer.allocate()
    layer.allocate_deltas()
    layer.fprop(cpu.array(sequence(cpu, 3, 2)))
    assert layer.bprop(cpu.ones((layer.out_shape[0], 6))) is None
    assert layer.dW.get().any()


@every_kind
def test_inference_computes_the_same_outputs_and_allows_no_bprop(cpu, kind):
    layer = allocate(cpu, KINDS[kind](reset_cells=True), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    inferred = layer.fprop(x, inference=True).get()
    assert (inferred == y).all() == (kind != "BiBNRNN")
    with pytest.raises(
        RuntimeError, match="bprop: expected a training fprop before it, got none, or one with inference"
    ):
        layer.bprop(cpu.ones((layer.out_shape[0], 6)))


def test_a_network_learns_to_output_an_earlier_input(cpu):
    cpu.bsz, T, V = 8, 6, 4
    rng = np.random.default_rng(0)
    net = Sequential([LSTM(16, Gaussian(scale=0.2), activation=Tanh(), gate_activation=Logistic(), reset_cells=True)])
    net = Sequential([*net.layers, Affine(V, Gaussian(scale=0.2), bias=Constant(0), activation=Softmax())])
    cost, optimizer = GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.05)
    net.configure((V, T))
    net.allocate()
    net.allocate_deltas()
    cost.initialize(net)
    for _ in range(100):
        tokens = rng.integers(0, V, (T, 8))
        x = cpu.array(np.eye(V)[tokens].transpose(2, 0, 1).reshape(V, -1))
        late = np.vstack([np.zeros((1, 8), int), tokens[:-1]])
        t = cpu.array(np.eye(V)[late].transpose(2, 0, 1).reshape(V, -1))
        y = net.fprop(x)
        loss = float(cost.get_cost(y, t).item())
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    assert loss < 0.1, loss
    assert (y.get().argmax(axis=0) == late.ravel()).mean() > 0.98


# --- checkpoints and summary ----------------------------------------------------------------------------------------
@every_kind
def test_a_layer_is_created_again_with_its_weights(cpu, kind):
    options = {"split_inputs": True} if kind in BIDIRECTIONAL else {}
    layer = allocate(cpu, KINDS[kind](reset_cells=True, init_inner=Uniform(-0.3, 0.3), name="r", **options), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    again = Layer.recursive_gen(layer.get_description())
    assert again.get_description() == layer.get_description()
    again.configure((NIN, 3))
    again.allocate()
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again.fprop(x).get(), y)


@every_kind
def test_a_copy_is_independent(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 2)
    x, e = cpu64.array(sequence(cpu64, 3, 2)), cpu64.ones((layer.out_shape[0], 6))
    layer.fprop(x)
    layer.bprop(e)
    other = copy.deepcopy(layer)
    one, two = (z.fprop(x).get() for z in (layer, other))
    np.testing.assert_array_equal(one, two)  # also of the recurrent state
    layer.bprop(e)
    before = layer.dW.get()
    other.W[:] = 0
    other.reset()
    other.fprop(x)
    other.bprop(e)
    np.testing.assert_array_equal(layer.dW.get(), before)
    layer.reset()
    assert layer.fprop(x).get().any()
    end = "_f" if kind in BIDIRECTIONAL else ""
    assert not getattr(other, f"W_recur{end}").get().any()


@every_kind
def test_a_summary_counts_parameters_and_operations(cpu, kind):
    layers = [KINDS[kind](name="r"), RecurrentLast(name="last"), Affine(2, G, name="fc")]
    cpu.bsz = 2
    net = Sequential(layers)
    summary = net.summary((NIN, 3), GeneralizedCost(SumSquared()), GradientDescentMomentum(0.1, 0.9))
    assert net.in_shape is None
    parameters = {row.name: row.parameters for row in summary.rows}
    num_directions, (_, g, _) = 1 + (kind in BIDIRECTIONAL), LOOPS[kind]
    assert parameters["r"] == num_directions * g * NOUT * (NIN + NOUT + 1)
    assert {row.name: row.out_shape for row in summary.rows}["r"] == (num_directions * NOUT, 3)
    products = (
        2 * num_directions * 2 * g * NOUT * 6 * (NIN + NOUT)
    )  # multiply and add, for the outputs and for the weights
    assert {row.name: row.flops for row in summary.rows}["r"] > products


# --- reductions of a sequence ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RecurrentSum, lambda x: x.sum(axis=0)),
        (RecurrentMean, lambda x: x.mean(axis=0)),
        (RecurrentLast, lambda x: x[-1]),
        (BiSum, lambda x: by_columns(x[:, :2] + x[:, 2:])),
    ],
)
@pytest.mark.parametrize("T", [1, 3])
def test_one_vector_of_a_sequence(be64, kind, text, T):
    layer = allocate(be64, kind(), T, 2)
    x = sequence(be64, T, 2)
    close(layer.fprop(be64.array(x)), text(by_steps(x, T)))
    assert layer.out_shape == ((2, T) if kind is BiSum else NIN)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast, BiSum])
@pytest.mark.parametrize("T", [1, 3])
def test_the_error_of_a_reduction_goes_to_all_steps(cpu, kind, T):
    report = check_layer(kind(), (4, T))
    assert report.ok, report
    layer = allocate(cpu, kind(), T, 2)
    x, e = cpu.array(sequence(cpu, T, 2)), cpu.ones((2 if kind is BiSum else NIN, 2 * T if kind is BiSum else 2))
    layer.fprop(x)
    once = layer.bprop(e).get()
    layer.deltas[:] = 10
    close(layer.bprop(e, alpha=2.0, beta=0.5), 2 * once + 5, 1e-6)


def test_the_last_step_is_copied(cpu):
    layer = allocate(cpu, RecurrentLast(), 2, 2)
    x = cpu.array(sequence(cpu, 2, 2))
    y = layer.fprop(x)
    y[:] = 9
    assert (x.get() != 9).all()
    np.testing.assert_allclose(layer.fprop(x, beta=2.0).get(), x.get()[:, 2:] + 18, rtol=1e-6)


def test_steps_are_views(cpu):
    x = cpu.array(sequence(cpu, 3, 2))
    steps = get_steps(x, (NIN, 3))
    np.testing.assert_array_equal([s.get() for s in steps], by_steps(x.get(), 3))
    steps[1][:] = 0
    assert not x.get()[:, 2:4].any()
    with pytest.raises(ValueError, match=r"get_steps: expected a shape \(F, T\), got 5"):
        get_steps(x, 5)


# --- mistakes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Recurrent(0, G, activation=Tanh(), name="r"),
            ValueError,
            "r: expected an integer >= 1 for output_size, got 0",
        ),
        (
            lambda: LSTM(2.5, G, activation=Tanh(), name="r"),
            TypeError,
            "expected an integer >= 1 for output_size, got 2.5",
        ),
        (lambda: GRU(True, G, activation=Tanh()), TypeError, "got True"),
        (
            lambda: Recurrent(2, G, activation=3, name="r"),
            TypeError,
            r"r: expected a transform, such as Tanh\(\), for activation, got 3",
        ),
        (
            lambda: LSTM(2, G, activation=Tanh(), gate_activation=3, name="r"),
            TypeError,
            r"r: expected a transform, such as Logistic\(\), for gate_activation, got 3",
        ),
        (lambda: Recurrent(2, G, activation="tanhh"), ValueError, "for activation, got 'tanhh'"),
        (
            lambda: DeepBiRNN(2, G, activation=Tanh(), depth=0),
            ValueError,
            "expected an integer >= 1 for depth, got 0",
        ),
        (
            lambda: DeepBiLSTM(2, G, None, Tanh(), Logistic(), depth=1.5),
            TypeError,
            "expected an integer >= 1 for depth, got 1.5",
        ),
    ],
)
def test_invalid_arguments_are_rejected_by_the_constructor(cpu, make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("shape", [5, (3, 2, 4, 4)])
@every_kind
def test_inputs_have_time_steps(cpu, kind, shape):
    cpu.bsz = 2
    message = r"r: \w+ expected inputs \(F, T\), .* got the shape .*Give the data set a shape \(F, T\)"
    with pytest.raises(ValueError, match=message):
        KINDS[kind](name="r").configure(shape)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast])
def test_sequences_have_time_steps(cpu, kind):
    with pytest.raises(ValueError, match=r"s: expected inputs with time steps, \(F, T\), .* got 5"):
        kind(name="s").configure(5)


def test_a_sequence_of_another_length_names_set_seq_len(cpu):
    cpu.bsz = 2
    layer = KINDS["GRU"](name="reader").configure((NIN, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: .* For 5 time steps call set_seq_len\(5\)"):
        layer.fprop(cpu.zeros((NIN, 10)))
    for steps in (0, 5.5, True):
        with pytest.raises(
            (TypeError, ValueError), match=f"reader: expected an integer >= 1 for the number of time steps, got {steps}"
        ):
            layer.set_seq_len(steps)
    with pytest.raises(ValueError, match="reader: expected a configured layer, got one without shapes"):
        KINDS["GRU"](name="reader").set_seq_len(3)


def test_inputs_and_errors_are_of_all_steps(cpu):
    layer = allocate(cpu, gated(LSTM, name="r"), 3, 2)
    with pytest.raises(ValueError, match=r"r: expected inputs of shape \(4, 6\) \(layer shape \(4, 3\), batch"):
        layer.fprop(cpu.zeros((4, 8)))
    with pytest.raises(RuntimeError, match="r: bprop: expected a training fprop before it"):
        layer.bprop(cpu.zeros((NOUT, 6)))
    layer.fprop(cpu.zeros((4, 6)))
    with pytest.raises(ValueError, match=r"r: expected an error of shape \(3, 6\)"):
        layer.bprop(cpu.zeros((NOUT, 2)))
    with pytest.raises(ValueError, match=r"expected beta=0, got beta=0.5"):
        layer.fprop(cpu.zeros((4, 6)), beta=0.5)


def test_fprop_before_allocate_is_an_error():
    be = gen_backend("cpu", batch_size=2)
    NervanaObject.be = be
    layer = gated(LSTM, name="r")
    with pytest.raises(RuntimeError, match="r: expected a configured layer, got one without shapes"):
        layer.fprop(be.zeros((4, 6)))
    layer.configure((4, 3))
    with pytest.raises(RuntimeError, match="r: expected allocated buffers, got none"):
        layer.fprop(be.zeros((4, 6)))


def test_token_ids_are_not_accepted_as_vectors(cpu):
    cpu.bsz = 2
    layer = KINDS["LSTM"](name="reader").configure((1, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: LSTM expected vectors, .* int32. Put a LookupTable before it"):
        layer.fprop(cpu.zeros((1, 6), dtype="int32"))


def test_a_batch_size_without_set_batch_size_is_an_error(cpu):
    cpu.bsz = 3
    layer = KINDS["GRU"](name="reader").configure((NIN, 2))
    with pytest.raises(RuntimeError, match="reader: expected allocated buffers, got none"):
        layer.final_state()
    layer.allocate()
    cpu.bsz = 2
    with pytest.raises(
        ValueError, match=r"reader: expected the batch size 3 of its buffers, got be.bsz = 2. Call set_batch_size\(2\)"
    ):
        layer.fprop(cpu.zeros((NIN, 4)))


def test_steps_have_as_many_columns_each(cpu):
    with pytest.raises(ValueError, match=r"get_steps: expected 5 steps of equally many columns, got .*\(3, 8\)"):
        get_steps(cpu.zeros((3, 8)), (3, 5))


# --- as an expression -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T", [3, 9])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "BiBNRNN"])
def test_the_expression_is_one_op_for_each_direction_with_the_values_and_gradients_of_the_layer(cpu, kind, T):
    layer = allocate(cpu, KINDS[kind](reset_cells=True), T, 2)
    x, e = (cpu.array(np.random.default_rng(k).normal(size=(rows, T * 2))) for k, rows in ((0, NIN), (1, layer.nout)))
    if layer.num_directions == 2:
        e = cpu.array(np.concatenate([e.get(), -e.get()]))
    y, deltas = layer.fprop(x).get(), layer.bprop(e).get()
    tree = layer.formula(x)
    ops = [node.op for node in postorder(tree)]
    assert len([op for op in ops if op in ("rnn", "lstm", "gru")]) == layer.num_directions
    assert len(ops) < 20
    dx, dW = Autodiff(tree, cpu, e).get_grad_asnumpyarray([x, layer.W])
    for found, expected in ((tree.get(), y), (dx, deltas), (dW, layer.dW.get())):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_other_steps_and_functions_are_unrolled(cpu64):
    class Doubled(Recurrent):
        def step_formula(self, z, previous, W_recur):
            return [2 * x for x in super().step_formula(z, previous, W_recur)]

    for layer, count in [(Doubled(NOUT, G, reset_cells=True), 0), (plain(Recurrent, reset_cells=True), 1)]:
        tree = allocate(cpu64, layer, 3, 2).formula(x := cpu64.array(sequence(cpu64, 3, 2)))
        assert [node.op for node in postorder(tree)].count("rnn") == count
        close(tree, layer.fprop(x).get())
    leaky = allocate(cpu64, Recurrent(NOUT, G, activation=Rectlin(0.5), reset_cells=True), 3, 2)
    assert "rnn" not in [node.op for node in postorder(leaky.formula(x))]
    close(leaky.formula(x), leaky.fprop(x).get())
