"""check_layer passes correct layers, and reports each mistake in its row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers.networks import MultiplyByTwo

from neonlite import NervanaObject, cleanup_backend, gen_backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    LRN,
    Activation,
    Affine,
    BatchNorm,
    BatchNormAutodiff,
    Bias,
    BranchNode,
    Conv,
    Convolution_bias,
    Deconvolution,
    Dropout,
    Layer,
    LayerNorm,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    ParameterLayer,
    Pooling,
    Reshape,
    Sequential,
    SkipNode,
    Tree,
    check_layer,
)
from neonlite.layers.parameter import ParameterSpec, TensorAttribute
from neonlite.transforms import GELU, Rectlin, Sign, Softmax, Tanh

WORDS = np.array([[0, 2, 2], [3, 1, 2]])

# --- correct layers --------------------------------------------------------------------------------------------------

RIGHT = {
    "Linear": (lambda: Linear(3, Gaussian()), 5),
    "Linear of time steps": (lambda: Linear(3, Gaussian()), (5, 2)),
    "Bias": (lambda: Bias(Constant(0)), (3, 2, 2)),
    "Tanh": (lambda: Activation(Tanh()), 5),
    "GELU": (lambda: Activation(GELU()), 5),
    "Softmax": (lambda: Activation(Softmax()), (5, 2)),
    "Dropout": (Dropout, 5),
    "BatchNorm": (BatchNorm, (2, 2, 3)),
    "BatchNormAutodiff": (BatchNormAutodiff, 5),
    "LayerNorm": (LayerNorm, 5),
    "Convolution": (lambda: Convolution_bias((2, 3, 2), init=Gaussian(), bias=Constant(0)), (2, 4, 5)),
    "Deconvolution": (lambda: Deconvolution((3, 3, 2), strides=2, init=Gaussian()), (2, 3, 2)),
    "Pooling": (lambda: Pooling(2), (2, 4, 4)),
    "LRN": (lambda: LRN(3), (4, 2, 2)),
    "Reshape": (lambda: Reshape(-1), (2, 2, 3)),
    "SkipNode": (SkipNode, 5),
    "the guide's": (MultiplyByTwo, 5),
    "a network": (lambda: Sequential([Affine(4, Gaussian(), Constant(0), activation=Tanh()), Dropout()]), 5),
    "images": (lambda: Sequential([Conv((2, 2, 3), Gaussian(), activation=Rectlin()), Pooling("all")]), (2, 4, 4)),
    "a residual block": (lambda: MergeSum([Affine(5, Gaussian(), activation=Tanh()), SkipNode()]), 5),
    "side by side": (lambda: MergeBroadcast([Linear(2, Gaussian()), Linear(3, Gaussian())], "stack"), 5),
}


@pytest.mark.parametrize("which", RIGHT)
def test_a_correct_layer_passes(cpu, which):
    make, shape = RIGHT[which]
    report = check_layer(make(), shape)
    assert report.ok, report
    assert 0 < report.worst < 1e-8
    gradients = [row for row in report.rows if row.name != "outputs"]
    assert all(row.numerical is not None for row in gradients)
    assert [row.name for row in gradients][-1] == "deltas"


@pytest.mark.parametrize("batch_size", [1, 4])
def test_it_runs_on_every_runtime_and_for_any_batch_size(be, batch_size):
    layer = Sequential([BatchNorm(), Linear(2, Gaussian())])
    report = check_layer(layer, 3, batch_size=batch_size)
    assert report.ok, report
    assert (layer.be.name, layer.be.default_dtype_name, layer.be.closed) == (be.name, "float64", True)
    assert report.rows[-1].shape == (3, batch_size)


def test_token_ids_have_no_deltas(cpu):
    report = check_layer(LookupTable(4, 3, Gaussian(), name="words"), 2, inputs=WORDS)
    assert report.ok, report
    assert [row.name for row in report.rows] == ["outputs", "words.dW"]


def test_inputs_may_be_given(cpu):
    class Log(Same):
        def formula(self, x):
            return self.be.log(x)

    assert check_layer(Log(), 2, inputs=np.array([[1, 2, 3], [0.5, 4, 1.5]])).ok
    assert not check_layer(Log(), 2).ok  # random inputs include negative values


def by_hand(f, df):
    """Return a layer of an elementwise function and its derivative, without a formula."""

    class Elementwise(Same):
        def fprop(self, inputs, inference=False):
            self.inputs = inputs
            self.outputs[:] = f(self.be, inputs)
            return self.outputs

        def bprop(self, error):
            self.deltas[:] = df(self.be, self.inputs) * error
            return self.deltas

    return Elementwise()


STEEP = {
    "log": (lambda be, x: be.log(x), lambda be, x: 1 / x),
    "sqrt": (lambda be, x: be.sqrt(x), lambda be, x: 0.5 / be.sqrt(x)),
    "1/x": (lambda be, x: 1 / x, lambda be, x: -1 / be.square(x)),
}


@pytest.mark.parametrize("name", STEEP)
def test_a_layer_passes_close_to_a_pole_of_its_function(cpu, name):
    f, df = STEEP[name]
    inputs = np.array([[1e-9, 1e-4, 0.001], [0.01, 0.1, 5.0]])
    report = check_layer(by_hand(f, df), 2, inputs=inputs)
    assert report.ok, report
    report = check_layer(by_hand(f, lambda be, x: df(be, x) * 1.001), 2, inputs=inputs)
    assert "WRONG" in repr(report)


def test_an_element_at_a_kink_is_skipped_and_the_others_are_checked(cpu):
    inputs = np.array([[0.0, -1.0, 2.0], [3.0, 0.0, -4.0]])

    def slope(be, x):
        return be.where(x > 0, 1, be.where(x < 0, 0, 0.3))

    report = check_layer(by_hand(lambda be, x: be.maximum(x, 0), slope), 2, inputs=inputs)
    assert report.ok, report
    report = check_layer(by_hand(lambda be, x: be.maximum(x, 0), lambda be, x: slope(be, x) * 1.01), 2, inputs=inputs)
    assert not report.ok
    report = check_layer(by_hand(lambda be, x: be.maximum(x, 0), slope), 2, inputs=np.zeros((2, 3)))
    assert "not measurable here" in repr(report)
    assert not report.ok
    assert "WRONG" not in repr(report)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_deltas_that_are_nan_fail(cpu, bad):
    layer = by_hand(lambda be, x: x * x, lambda be, x: be.where(x > 1, bad, 2 * x))
    report = check_layer(layer, 2, inputs=np.array([[1, 2, 1], [0.5, 3, 1]]))
    assert "WRONG" in repr(report)
    assert not report.ok


def test_bprop_of_the_formula_follows_an_fprop_without_it(cpu):
    class DerivedLinear(Linear):
        bprop = Layer.bprop

    class DerivedConvolution(Convolution_bias):
        bprop = Layer.bprop

    assert check_layer(DerivedLinear(3, Gaussian()), 4).ok
    assert check_layer(DerivedConvolution((2, 2, 3), init=Gaussian(), bias=Constant(0)), (1, 4, 4)).ok


def test_outputs_may_be_the_inputs(cpu):
    class Through(Same):
        def formula(self, x):
            return x

    assert check_layer(Through(), 5).ok


@pytest.mark.parametrize("vain", ["b", "x"])
def test_parameters_and_inputs_may_be_unused(cpu, vain):
    class Vain(Gain):
        fprop, bprop = Layer.fprop, Layer.bprop

        def formula(self, x):
            return self.W * (x if vain == "b" else self.be.ones(x.shape))

    report = check_layer(Vain(), 5)
    assert report.ok, report
    assert report.rows[2 if vain == "b" else 3][3:] == (0, 0, 0, 0)


def test_the_mode_is_that_of_the_current_backend():
    gen_backend("cpu", compat_mode="caffe")
    layer = Dropout(0.25)
    assert check_layer(layer, 5).ok
    assert layer.train_scale == 4
    cleanup_backend()


def test_the_current_backend_is_not_changed():
    be = gen_backend("cpu", rng_seed=1, batch_size=7)
    state = be.rng_get_state()
    check_layer(Dropout(), 5)
    with pytest.raises(ValueError, match="nout"):
        check_layer(Sequential([Linear(3, Gaussian()), Linear(0, Gaussian())]), 5)
    with pytest.raises(TypeError, match="Forgetful"):
        check_layer(Forgetful(), 5)
    assert NervanaObject.be is be
    assert (be.bsz, be.rng_get_state(), be.default_dtype_name, be.closed) == (7, state, "float32", False)
    cleanup_backend()


def test_a_check_is_reproducible(cpu):
    first, second = (check_layer(Sequential([Linear(2, Gaussian()), Dropout()]), 3) for _ in range(2))
    assert [row[1:] for row in first.rows] == [row[1:] for row in second.rows]


# --- wrong layers ----------------------------------------------------------------------------------------------------


class Same(Layer):
    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


class Forgetful(Same):
    def formula(self, x):
        return x * x

    def bprop(self, error):
        self.deltas[:] = 2 * self.inputs * error


class Gain(ParameterLayer):
    """``g x + b``, by formula and by hand; b begins with 0 and g with 1."""

    b, db = TensorAttribute(), TensorAttribute()

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def parameter_specs(self):
        shape = (self.in_shape, 1)
        return [ParameterSpec("W", "dW", shape, Constant(1)), ParameterSpec("b", "db", shape, Constant(0))]

    def formula(self, x):
        return self.W * x + self.b

    def fprop(self, inputs, inference=False):
        self.prepare_fprop(inputs, inference)
        self.outputs[:] = self.W * inputs + self.b
        return self.outputs

    def bprop(self, error):
        self.dW[:] = self.be.sum(error * self.inputs, axis=1)
        self.db[:] = self.be.sum(error, axis=1)
        self.deltas[:] = self.W * error
        return self.deltas


def assigned(name: str, value: Any, base: Any = Gain) -> Any:
    """Return a layer like Gain with a bprop that assigns another value to one of its targets."""

    class Wrong(base):
        def bprop(self, error):
            before = getattr(self, name).get()
            super().bprop(error)
            getattr(self, name)[:] = value(self, error, before)
            return self.deltas

    return Wrong


class OtherOutputs(Gain):
    """What it computes is not its formula, and its bprop is right for neither."""

    def fprop(self, inputs, inference=False):
        self.prepare_fprop(inputs, inference)
        self.outputs[:] = self.W * inputs + 2 * self.b
        return self.outputs


class AnotherFormula(Gain):
    """Its bprop is that of what it computes, but its formula is another."""

    def formula(self, x):
        return self.W * x + 2 * self.b


class Masked(Same):
    """Draws a mask in the formula."""

    def formula(self, x):
        return x * (self.be.rand(x.shape) < 0.5)


WRONG = {
    "a sign": (assigned("deltas", lambda layer, e, was: -layer.W * e), ["deltas"]),
    "a factor": (assigned("dW", lambda layer, e, was: 1.001 * layer.be.sum(e * layer.inputs, axis=1)), ["dW"]),
    "divided by N": (assigned("db", lambda layer, e, was: layer.be.mean(e, axis=1)), ["db"]),
    "gamma forgotten": (assigned("deltas", lambda layer, e, was: e), ["deltas"]),
    "added, not written": (assigned("dW", lambda layer, e, was: was + layer.be.sum(e * layer.inputs, axis=1)), ["dW"]),
    "never written": (assigned("db", lambda layer, e, was: was), ["db"]),
    "one element": (assigned("deltas", lambda layer, e, was: layer.W * e + 1e-4 * np.eye(5, 3)), ["deltas"]),
    "not a number": (assigned("dW", lambda layer, e, was: np.full((5, 1), np.nan)), ["dW"]),
    "other outputs": (OtherOutputs, ["outputs", "db"]),
    "another formula": (AnotherFormula, ["outputs", "db"]),
    "no derivative": (lambda: Activation(Sign()), ["deltas"]),
}


def test_the_layer_without_the_mistakes_passes(cpu):
    report = check_layer(Gain(name="g"), 5)
    assert report.ok, report
    assert [row.name for row in report.rows] == ["outputs", "g.dW", "g.db", "deltas"]


def test_a_formula_that_draws_random_numbers_passes(cpu):
    assert check_layer(Masked(), 5).ok


@pytest.mark.parametrize("which", WRONG)
def test_a_mistake_is_reported_in_its_row(cpu, which):
    make, where = WRONG[which]
    report = check_layer(make(), 5)
    assert not report.ok
    assert not report
    wrong = [row.name.split(".")[-1] for row in report.rows if not row.error <= report.tolerance]
    assert wrong == where, report
    assert str(report).count("WRONG") == len(where)
    assert str(report).count("FAILED") == 1


def test_a_row_states_the_values_of_layer_formula_and_numerical_gradient(cpu):
    report = check_layer(assigned("deltas", lambda layer, e, was: -layer.W * e)(name="g"), 5)
    row = report.rows[-1]
    assert row.name == "deltas"
    assert row.shape == (5, 3)
    assert row.layer == -row.formula
    assert abs(row.layer + row.numerical) < 1e-8
    assert row.error == pytest.approx(2)  # at the largest element, which is the worst where all signs are wrong
    assert report.rows[0].numerical is None


def test_where_all_agree_the_largest_element_is_shown(cpu):
    layer = Linear(4, Gaussian())
    report = check_layer(layer, 5)
    for row, array in zip(report.rows[1:], [*layer.gradients, layer.deltas], strict=True):
        assert row.error > 0
        assert abs(row.layer) == abs(array.get()).max()
        assert row.layer == array.get()[row.worst_index]


def test_the_element_with_the_largest_error_is_shown(cpu):
    one = np.zeros((5, 3))
    one[3, 1] = -0.1
    report = check_layer(assigned("deltas", lambda layer, e, was: layer.W * e + one)(), 5)
    assert report.rows[-1].worst_index == (3, 1)
    assert report.rows[-1].layer - report.rows[-1].numerical == pytest.approx(-0.1)


def test_without_a_formula_only_numerical_gradients_are_compared(cpu):
    class Thrice(MultiplyByTwo):
        def bprop(self, error):
            error[:] = 3 * error
            return error

    report = check_layer(Thrice(), 5)
    (row,) = report.rows
    assert (row.name, row.formula) == ("deltas", None)
    assert row.layer == pytest.approx(1.5 * row.numerical)
    assert not report.ok
    assert re.search(r"deltas \(5, 3\) +\(\d, \d\) +-?[\d.]+ +- +-?[\d.]+ +3.3e-01  WRONG\n", str(report))


def test_a_report_is_a_table(cpu):
    lines = str(check_layer(Linear(3, Gaussian(), name="a long name of a layer"), 5)).splitlines()
    assert [line.split()[0] for line in lines] == ["shape", "outputs", "a", "deltas", "check_layer:"]
    assert len({line.index("e+00") if "e+00" in line else line.index("e-") for line in lines[1:-1]}) == 1
    assert lines[-1].startswith("check_layer: passed: worst error ")
    assert lines[-1].endswith("tolerance 1e-06")


def test_the_tolerance_may_be_another(cpu):
    wrong = assigned("dW", lambda layer, e, was: 1.001 * layer.be.sum(e * layer.inputs, axis=1))
    report = check_layer(wrong(), 5, tolerance=1e-2)
    assert report.ok
    assert "WRONG" not in str(report)
    assert not check_layer(wrong(), 5).ok


# --- invalid arguments -----------------------------------------------------------------------------------------------


def test_configured_layers_and_other_objects_are_rejected(cpu):
    for thing in (Gain, 3, None):
        with pytest.raises(TypeError, match=r"check_layer: expected a layer, such as .*, for layer, got"):
            check_layer(thing, 5)
    with pytest.raises(TypeError, match=r"Combine several layers in a Sequential\(\[\.\.\.\]\)"):
        check_layer(Affine(3, Gaussian()), 5)
    layer = Gain(name="old").configure(4)
    with pytest.raises(ValueError, match="check_layer: expected a new layer, got old, configured for inputs 4"):
        check_layer(layer, 5)
    node = BranchNode()
    tree = Tree([[node, Linear(3, Gaussian())], [node, Linear(1, Gaussian())]], name="tree")
    with pytest.raises(
        ValueError, match=r"check_layer: expected a layer with one input and one output, got tree: 5 -> \[3, 1\]"
    ):
        check_layer(tree, 5)
    with pytest.raises(ValueError, match="one input and one output, got many"):
        check_layer(MergeMultistream([Linear(3, Gaussian()), Linear(1, Gaussian())], "stack", name="many"), [5, 4])
    with pytest.raises(ValueError, match="one input and one output"):
        check_layer(MergeMultistream([Linear(3, Gaussian()), Linear(1, Gaussian())], "stack"), ((5, 2), (4, 2)))


def test_no_call_of_gen_backend_is_required():
    cleanup_backend()
    assert check_layer(Gain(), 5).ok


class NoShape(Layer):
    def fprop(self, inputs, inference=False):
        return inputs


class NoOutputs(Same):
    def fprop(self, inputs, inference=False):
        self.outputs[:] = inputs


class TallOutputs(Same):
    def fprop(self, inputs, inference=False):
        return self.be.zeros((6, 3), name="tall")


class TallDeltas(Forgetful):
    def bprop(self, error):
        return self.be.zeros((5, 4), name="wide")


class NoFormula(MultiplyByTwo):
    def formula(self, x):
        x * 2


class WideFormula(MultiplyByTwo):
    def formula(self, x):
        return self.be.sum(x, axis=0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (NoShape, RuntimeError, r"mine: expected NoShape\.configure to set out_shape, got None"),
        (NoOutputs, TypeError, r"mine\.fprop: expected a tensor of shape \(5, 3\), got None"),
        (TallOutputs, ValueError, r"mine\.fprop: expected a tensor of shape \(5, 3\), got tall \(6, 3\)"),
        (Forgetful, TypeError, r"mine\.bprop: expected a tensor of shape \(5, 3\), got None"),
        (TallDeltas, ValueError, r"mine\.bprop: expected a tensor of shape \(5, 3\), got wide \(5, 4\)"),
        (NoFormula, ValueError, r"mine\.formula: expected an op-tree of shape \(5, 3\), got None"),
        (WideFormula, ValueError, r"mine\.formula: expected an op-tree of shape \(5, 3\), got .*\(1, 3\)"),
    ],
)
def test_missing_results_of_a_layer_are_reported(cpu, make, error, message):
    with pytest.raises(error, match=message):
        check_layer(make(name="mine"), 5)


def test_inputs_that_do_not_fit_are_an_error_of_the_layer(cpu):
    with pytest.raises(ValueError, match=r"mine: expected inputs of shape \(5, 3\)"):
        check_layer(Gain(name="mine"), 5, inputs=np.ones((5, 4)))
