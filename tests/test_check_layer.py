"""``check_layer``: it finds a layer right that is, and each mistake where it is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_layers import MultiplyByTwo

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
from neonlite.layers.parameter import Learned, Slot
from neonlite.transforms import GELU, Rectlin, Sign, Softmax, Tanh

WORDS = np.array([[0, 2, 2], [3, 1, 2]])

# --- what is right --------------------------------------------------------------------------------------------------

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
def test_a_layer_that_is_right_is_found_right(cpu, which):
    make, shape = RIGHT[which]
    report = check_layer(make(), shape)
    assert report.ok, report
    assert 0 < report.worst < 1e-8
    slopes = [row for row in report.rows if row.of != "outputs"]
    assert all(row.slope is not None for row in slopes)
    assert [row.of for row in slopes][-1] == "deltas"


@pytest.mark.parametrize("batch_size", [1, 4])
def test_it_runs_on_every_runtime_and_for_any_batch_size(be, batch_size):
    layer = Sequential([BatchNorm(), Linear(2, Gaussian())])
    report = check_layer(layer, 3, batch_size=batch_size)
    assert report.ok, report
    assert (layer.be.name, layer.be.default, layer.be.closed) == (be.name, "float64", True)
    assert report.rows[-1].shape == (3, batch_size)


def test_words_have_no_deltas(cpu):
    report = check_layer(LookupTable(4, 3, Gaussian(), name="words"), 2, inputs=WORDS)
    assert report.ok, report
    assert [row.of for row in report.rows] == ["outputs", "words.dW"]


def test_inputs_may_be_given(cpu):
    class Log(Same):
        def formula(self, x):
            return self.be.log(x)

    assert check_layer(Log(), 2, inputs=np.array([[1, 2, 3], [0.5, 4, 1.5]])).ok
    assert not check_layer(Log(), 2).ok  # there is no logarithm of the others


def test_outputs_may_be_the_inputs(cpu):
    class Through(Same):
        def formula(self, x):
            return x

    assert check_layer(Through(), 5).ok


@pytest.mark.parametrize("vain", ["b", "x"])
def test_parameters_and_inputs_may_be_there_in_vain(cpu, vain):
    class Vain(Gain):
        fprop, bprop = Layer.fprop, Layer.bprop

        def formula(self, x):
            return self.W * (x if vain == "b" else self.be.ones(x.shape))

    report = check_layer(Vain(), 5)
    assert report.ok, report
    assert report.rows[2 if vain == "b" else 3][3:] == (0, 0, 0, 0)


def test_the_mode_is_that_of_the_backend_of_now():
    gen_backend("cpu", compat_mode="caffe")
    layer = Dropout(0.25)
    assert check_layer(layer, 5).ok
    assert layer.train_scale == 4
    cleanup_backend()


def test_the_backend_of_now_is_left_alone():
    be = gen_backend("cpu", rng_seed=1, batch_size=7)
    state = be.rng_get_state()
    check_layer(Dropout(), 5)
    with pytest.raises(ValueError, match="nout"):
        check_layer(Sequential([Linear(3, Gaussian()), Linear(0, Gaussian())]), 5)
    with pytest.raises(TypeError, match="Forgetful"):
        check_layer(Forgetful(), 5)
    assert NervanaObject.be is be
    assert (be.bsz, be.rng_get_state(), be.default, be.closed) == (7, state, "float32", False)
    cleanup_backend()


def test_a_check_gives_the_same_numbers_each_time(cpu):
    first, second = (check_layer(Sequential([Linear(2, Gaussian()), Dropout()]), 3) for _ in range(2))
    assert [row[1:] for row in first.rows] == [row[1:] for row in second.rows]


# --- what is wrong --------------------------------------------------------------------------------------------------


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

    b, db = Learned(), Learned()

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def slots(self):
        shape = (self.in_shape, 1)
        return [Slot("W", "dW", shape, Constant(1)), Slot("b", "db", shape, Constant(0))]

    def formula(self, x):
        return self.W * x + self.b

    def fprop(self, inputs, inference=False):
        self.prepare(inputs, inference)
        self.outputs[:] = self.W * inputs + self.b
        return self.outputs

    def bprop(self, error):
        self.dW[:] = self.be.sum(error * self.inputs, axis=1)
        self.db[:] = self.be.sum(error, axis=1)
        self.deltas[:] = self.W * error
        return self.deltas


def assigned(name: str, value: Any, base: Any = Gain) -> Any:
    """Return a layer like Gain, in whose bprop one of the targets gets another value."""

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
        self.prepare(inputs, inference)
        self.outputs[:] = self.W * inputs + 2 * self.b
        return self.outputs


class AnotherFormula(Gain):
    """Its bprop is that of what it computes, but its formula is another."""

    def formula(self, x):
        return self.W * x + 2 * self.b


class AnotherDraw(Same):
    """Draws a mask in the formula: once on the way forward, and another one on the way back."""

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
    "another draw": (AnotherDraw, ["deltas"]),
    "no derivative": (lambda: Activation(Sign()), ["deltas"]),
}


def test_the_layer_without_the_mistakes_is_right(cpu):
    report = check_layer(Gain(name="g"), 5)
    assert report.ok, report
    assert [row.of for row in report.rows] == ["outputs", "g.dW", "g.db", "deltas"]


@pytest.mark.parametrize("which", WRONG)
def test_a_mistake_is_found_where_it_is(cpu, which):
    make, where = WRONG[which]
    report = check_layer(make(), 5)
    assert not report.ok
    assert not report
    wrong = [row.of.split(".")[-1] for row in report.rows if not row.error <= report.tolerance]
    assert wrong == where, report
    assert str(report).count("WRONG") == len(where) + 1


def test_a_row_tells_what_the_layer_the_formula_and_the_slope_say(cpu):
    report = check_layer(assigned("deltas", lambda layer, e, was: -layer.W * e)(name="g"), 5)
    row = report.rows[-1]
    assert row.of == "deltas"
    assert row.shape == (5, 3)
    assert row.layer == -row.formula
    assert abs(row.layer + row.slope) < 1e-8
    assert row.error == pytest.approx(2)  # at the largest element, which is the worst where all signs are wrong
    assert report.rows[0].slope is None


def test_where_all_agree_the_largest_element_is_shown(cpu):
    layer = Linear(4, Gaussian())
    report = check_layer(layer, 5)
    for row, array in zip(report.rows[1:], [*layer.gradients, layer.deltas], strict=True):
        assert row.error > 0
        assert abs(row.layer) == abs(array.get()).max()
        assert row.layer == array.get()[row.at]


def test_the_element_is_named_at_which_it_is_worst(cpu):
    one = np.zeros((5, 3))
    one[3, 1] = -0.1
    report = check_layer(assigned("deltas", lambda layer, e, was: layer.W * e + one)(), 5)
    assert report.rows[-1].at == (3, 1)
    assert report.rows[-1].layer - report.rows[-1].slope == pytest.approx(-0.1)


def test_without_a_formula_slopes_alone_tell(cpu):
    class Thrice(MultiplyByTwo):
        def bprop(self, error):
            error[:] = 3 * error
            return error

    report = check_layer(Thrice(), 5)
    (row,) = report.rows
    assert (row.of, row.formula) == ("deltas", None)
    assert row.layer == pytest.approx(1.5 * row.slope)
    assert not report.ok
    assert re.search(r"deltas \(5, 3\) +\(\d, \d\) +-?[\d.]+ +- +-?[\d.]+ +3.3e-01  WRONG\n", str(report))


def test_a_report_is_a_table(cpu):
    lines = str(check_layer(Linear(3, Gaussian(), name="a long name of a layer"), 5)).splitlines()
    assert [line.split()[0] for line in lines] == ["shape", "outputs", "a", "deltas", "the"]
    assert len({line.index("e+00") if "e+00" in line else line.index("e-") for line in lines[1:-1]}) == 1
    assert lines[-1].startswith("the layer is right: worst error ")
    assert lines[-1].endswith("tolerance 1e-06")


def test_the_tolerance_may_be_another(cpu):
    wrong = assigned("dW", lambda layer, e, was: 1.001 * layer.be.sum(e * layer.inputs, axis=1))
    report = check_layer(wrong(), 5, tolerance=1e-2)
    assert report.ok
    assert "WRONG" not in str(report)
    assert not check_layer(wrong(), 5).ok


# --- what cannot be checked -----------------------------------------------------------------------------------------


def test_what_is_no_new_layer_is_refused(cpu):
    for thing in (Gain, 3, None):
        with pytest.raises(TypeError, match=r"check_layer takes a layer, such as Linear\(3, Gaussian\(\)\); got"):
            check_layer(thing, 5)
    with pytest.raises(TypeError, match=r"several layers make a Sequential\(\[\.\.\.\]\)"):
        check_layer(Affine(3, Gaussian()), 5)
    layer = Gain(name="old").configure(4)
    with pytest.raises(ValueError, match="old is configured already, for inputs 4: check a new layer"):
        check_layer(layer, 5)
    node = BranchNode()
    tree = Tree([[node, Linear(3, Gaussian())], [node, Linear(1, Gaussian())]], name="tree")
    with pytest.raises(ValueError, match=r"tree: one input and one output are checked; it has 5 -> \[3, 1\]"):
        check_layer(tree, 5)
    with pytest.raises(ValueError, match="many: one input and one output"):
        check_layer(MergeMultistream([Linear(3, Gaussian()), Linear(1, Gaussian())], "stack", name="many"), [5, 4])
    with pytest.raises(ValueError, match="one input and one output"):
        check_layer(MergeMultistream([Linear(3, Gaussian()), Linear(1, Gaussian())], "stack"), ((5, 2), (4, 2)))


def test_there_is_to_be_a_backend():
    cleanup_backend()
    with pytest.raises(RuntimeError, match="there is no backend yet: call gen_backend"):
        check_layer(Gain(), 5)


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
        (NoShape, ValueError, "mine: fprop returns the outputs, .* configure\\(\\) is to set out_shape"),
        (NoOutputs, TypeError, "mine: fprop returns the outputs, a tensor \\(5, 3\\); got None"),
        (TallOutputs, ValueError, "mine: fprop returns the outputs, a tensor \\(5, 3\\); got tall \\(6, 3\\)"),
        (Forgetful, TypeError, "mine: bprop returns the deltas, a tensor \\(5, 3\\); got None"),
        (TallDeltas, ValueError, "mine: bprop returns the deltas, a tensor \\(5, 3\\); got wide \\(5, 4\\)"),
        (NoFormula, ValueError, "mine: formula\\(x\\) is an op-tree of the shape \\(5, 3\\); got None"),
        (WideFormula, ValueError, "mine: formula\\(x\\) is an op-tree of the shape \\(5, 3\\); got .*\\(1, 3\\)"),
    ],
)
def test_what_a_layer_forgets_is_said(cpu, make, error, message):
    with pytest.raises(error, match=message):
        check_layer(make(name="mine"), 5)


def test_inputs_that_do_not_fit_are_an_error_of_the_layer(cpu):
    with pytest.raises(ValueError, match=r"mine: the inputs must have the shape \(5, 3\)"):
        check_layer(Gain(name="mine"), 5, inputs=np.ones((5, 4)))
