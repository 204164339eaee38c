"""Tests of LossScaling: training in float16, compared with training in float32."""

import json
import shutil

import numpy as np
import pytest

from neonlite import Backend, gen_backend
from neonlite.backend import NervanaObject
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.callbacks import Callback, Callbacks
from neonlite.data import ArrayIterator, digits
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, Sequential
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, MultiOptimizer, get_param_list
from neonlite.transforms import Accuracy, CrossEntropyMulti, Rectlin, Softmax


def trained(optimizer, dtype="float32", epochs=2, scale=1.0, runtime="cpu", model=None, small=1.0, **options):
    """Return a small model after some epochs of 6 steps, and its parameters and states."""
    be = Backend(runtime, rng_seed=1, batch_size=8, default_dtype=dtype)
    NervanaObject.be = be
    draw = np.random.default_rng(0)
    data = ArrayIterator(small * draw.normal(size=(48, 6)), draw.integers(0, 3, 48), nclass=3)
    layers = [
        Affine(5, Gaussian(0, 0.5), bias=Gaussian(), activation=Rectlin()),
        Affine(3, Gaussian(0, 0.5), activation=Softmax()),
    ]
    model = Model(model or layers[small < 1 :])
    model.fit(data, CrossEntropyMulti(scale=scale), optimizer, epochs, **options)
    return model, weights_and_states(model)


def weights_and_states(model):
    parameters = get_param_list(model.layers_to_optimize)
    return [x.get() for (w, _), states in parameters for x in (w, *states)]


def alike(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


MAKERS = {
    "momentum": lambda: GradientDescentMomentum(0.1, 0.9, wdecay=0.01, gradient_clip_norm=0.2),
    "Adam": lambda: Adam(learning_rate=0.01, gradient_clip_value=0.1),
    "several": lambda: MultiOptimizer({"default": Adam(), "Bias": GradientDescentMomentum(0.1, 0.9)}),
    "nested": lambda: MultiOptimizer({"default": MultiOptimizer({"default": Adam()})}),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_power_of_two_changes_no_bit_in_float32(make):
    scaling = LossScaling(make(), 2.0**20, growth_interval=5)
    alike(trained(scaling)[1], trained(make())[1])
    assert (scaling.total_skips, scaling.t) == (0, 12)
    assert scaling.scale == 2.0**22  # doubled after 5 and after 10 steps


def test_gradients_too_small_for_float16_are_not_lost():
    """float16 can represent errors and inputs, but not their products; the learning rate compensates."""

    def change(optimizer, dtype):
        end, start = (trained(optimizer, dtype, n, 2.0**-13, small=2.0**-13)[1] for n in (1, 0))
        return end[0] - start[0]

    sgd = GradientDescentMomentum(0.1 * 2.0**26, 0)
    expected = change(sgd, "float32")
    unscaled_error, error = (
        np.abs(change(x, "float16") - expected).max() / np.abs(expected).max() for x in (sgd, LossScaling(sgd, 2.0**13))
    )
    assert error < 0.01 < 0.2 < unscaled_error


@pytest.mark.long
def test_a_small_network_trains_in_float16_as_well_as_in_float32():
    accuracies = []
    for dtype in ("float32", "float16"):
        be = Backend("cpu", rng_seed=0, batch_size=32, default_dtype=dtype)
        NervanaObject.be = be
        train, valid = digits().iterators()
        model = Model(zoo.mlp(nclass=10, hidden=(64, 64)))
        adam = Adam(learning_rate=0.008)
        model.fit(train, CrossEntropyMulti(), LossScaling(adam, growth_interval=40) if dtype == "float16" else adam, 5)
        accuracies.append(float(model.eval(valid, Accuracy())[0]))
    assert min(accuracies) > 0.94
    assert accuracies[1] > accuracies[0] - 0.01


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_whose_gradients_overflow_is_skipped(dynamic):
    scaling = LossScaling(Adam(), 2.0**30, dynamic)
    model, before = trained(scaling, "float16", epochs=0)
    seen = []

    class Look(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            seen.append((scaling.scale, scaling.total_skips, weights_and_states(model)))

    trained_on = Callbacks(model, progress_bar=False)
    trained_on.add_callback(Look())
    be = model.be
    NervanaObject.be = be
    draw = np.random.default_rng(0)
    data = ArrayIterator(draw.normal(size=(48, 6)), draw.integers(0, 3, 48), nclass=3)
    model.fit(data, CrossEntropyMulti(), scaling, 5, callbacks=trained_on)
    skips, first = scaling.total_skips, sum(n == skipped for n, (_, skipped, _) in enumerate(seen, 1))
    for n, (scale, skipped, values) in enumerate(seen[:first]):
        assert (scale, skipped) == (2.0 ** (29 - n) if dynamic else 2.0**30, n + 1)
        alike(values[::3], before)  # without the states, which are zeros
        assert not any(x.any() for x in [*values[1::3], *values[2::3]])
    assert scaling.t == scaling.optimizer.t == 30 - skips
    assert 10 < first < 20 if dynamic else skips == 30
    assert np.isfinite(weights_and_states(model)[0]).all()
    assert (weights_and_states(model)[0] != before[0]).any() == dynamic


def test_the_scale_is_doubled_only_after_growth_interval_consecutive_steps():
    be = gen_backend("cpu", batch_size=1)
    layer = Affine(1, Gaussian(), name="a")[0].configure(1)
    layer.allocate()
    scaling, seen = LossScaling(GradientDescentMomentum(0.1, 0), 2.0**10, growth_interval=3), []
    for is_finite in (True, True, False, True, True, True, False, True):
        scaling.scale_errors(be.ones((1, 1)))
        layer.dW.fill(1.0 if is_finite else np.inf)
        scaling.optimize([layer], 0)
        seen.append((np.log2(scaling.scale), scaling.good_steps, scaling.consecutive_skips))
    assert seen == [(10, 1, 0), (10, 2, 0), (9, 0, 1), (9, 1, 0), (9, 2, 0), (10, 3, 0), (9, 0, 1), (9, 1, 0)]


def test_training_stops_when_no_scale_helps():
    with pytest.raises(FloatingPointError, match=r"in 40 consecutive steps, down to a scale of 9\.31323e-10"):
        trained(LossScaling(Adam()), "float16", epochs=9, scale=1e30)


def test_training_resumed_from_a_file_gives_the_same_bits(tmp_path):
    def make():
        return LossScaling(Adam(), 2.0**17, growth_interval=4)

    _, expected = trained(make(), "float16", epochs=4)
    model, _ = trained(make(), "float16", epochs=2)
    model.save_params(tmp_path / "half.neon")
    before = model.optimizer.get_state()
    assert before["total_skips"] > 0
    again, result = trained(make(), "float16", epochs=4, model=tmp_path / "half.neon")
    alike(result, expected)
    assert json.loads(json.dumps(before)) == before
    assert type(again.optimizer.optimizer) is Adam


def test_training_resumes_from_a_file_with_optimizers_for_other_layers(tmp_path):
    model, _ = trained(LossScaling(MultiOptimizer({"default": Adam()}), 64.0, dynamic=False), epochs=1)
    model.save_params(tmp_path / "default.neon")
    several = LossScaling(MultiOptimizer({"default": Adam(), "Bias": Adam()}))
    trained(several, model=tmp_path / "default.neon")
    assert (several.scale, several.t) == (64.0, 12)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel simulator needs g++")
def test_a_replayed_graph_uses_the_current_scale():
    _, result = trained(LossScaling(Adam(), 8.0, growth_interval=3), runtime=SimulatedGPU())
    alike(result, trained(Adam(), runtime=SimulatedGPU(), cuda_graphs=False)[1])


def stepped(optimizer, before, runtime="cpu"):
    """Return weights and states after an epoch and 8 more steps; ``before(model, n)`` is called before step n."""
    model, _ = trained(optimizer, runtime=runtime, epochs=1)
    x, t = next(iter(ArrayIterator(np.ones((8, 6)), np.arange(8) % 3, nclass=3)))
    for n in range(8):
        before(model, n)
        model.train_step(x, t)
    return weights_and_states(model)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel simulator needs g++")
def test_steps_with_another_optimizer_are_another_graph():
    def other(model, n):
        if n == 4:
            model.optimizer = GradientDescentMomentum(0.1, 0.9)

    result = stepped(LossScaling(GradientDescentMomentum(0.1, 0.9), 64.0), other, SimulatedGPU())
    alike(result, stepped(GradientDescentMomentum(0.1, 0.9), other, SimulatedGPU()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scale_that_is_set_between_steps_counts_for_errors_and_gradients(dynamic):
    scaling = LossScaling(GradientDescentMomentum(0.1, 0.9), 8.0, dynamic)

    def rescale(model, n):
        if n % 2:
            scaling.scale = 2.0**n
        else:
            scaling.set_state({**scaling.get_state(), "scale": 2.0**n})

    alike(stepped(scaling, rescale), stepped(GradientDescentMomentum(0.1, 0.9), lambda model, n: None))
    assert scaling.scale == 2.0**7


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_steps_of_a_summary_are_not_skipped(dtype):
    NervanaObject.be = Backend("cpu", rng_seed=1, batch_size=8, default_dtype=dtype)

    def tensors(optimizer):
        network = Sequential([Affine(50, Gaussian())])
        return network.summary((6,), optimizer=optimizer).memory.tensors

    nbytes = tensors(LossScaling(GradientDescentMomentum(0.1, 0.9))) - tensors(GradientDescentMomentum(0.1, 0.9))
    assert nbytes == (5 + 7) * 4  # the scale and its counts, and the rates of seven more steps


def test_gradients_of_unscaled_errors_are_rejected():
    be = gen_backend("cpu", batch_size=1)
    layer = Affine(1, Gaussian())[0].configure(1)
    layer.allocate()
    before = layer.W.get()
    layer.dW[:] = be.ones((1, 1))
    with pytest.raises(RuntimeError, match=r"net\.bprop\(optimizer\.scale_errors\(errors\)\)"):
        LossScaling(Adam()).optimize([layer])
    alike([layer.W.get()], [before])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: MultiOptimizer({"default": LossScaling(Adam())}), TypeError, r"LossScaling\(MultiOptimizer\(...\)\)"),
        (lambda: LossScaling(0.1), TypeError, "LossScaling: expected an optimizer, such as Adam.*, got 0.1"),
        (lambda: LossScaling(LossScaling(Adam())), TypeError, "expected an optimizer, such as"),
        (lambda: LossScaling(Adam(), 0), ValueError, "expected a finite number > 0 for scale, got 0"),
        (lambda: LossScaling(Adam(), "large"), TypeError, "LossScaling: expected a number for scale, got 'large'"),
        (lambda: LossScaling(Adam(), 8, 2), TypeError, "expected True or False for dynamic, got 2"),
        (
            lambda: LossScaling(Adam(), growth_interval=0),
            ValueError,
            "integer >= 1 for growth_interval, got 0",
        ),
    ],
)
def test_arguments_are_checked(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("change", [{"rate": 1}, {"optimizer": {}, "extra": 0}], ids=str)
def test_a_state_has_the_keys_of_get_state(change):
    scaling = LossScaling(Adam())
    before = scaling.get_state()
    with pytest.raises(ValueError, match=r"LossScaling: expected a dict with t, scale, .* for the state, got"):
        scaling.set_state(before | change)
    assert scaling.get_state() == before
