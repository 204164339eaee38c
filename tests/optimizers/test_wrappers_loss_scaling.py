"""Tests of LossScaling: training in float16, compared with training in float32."""

import json
import shutil

import numpy as np
import pytest

import neonlite as nl
from neonlite import Backend, gen_backend
from neonlite.backend import NervanaObject
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.backend.transaction import atomic
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


# --- the state on the device, which the host reads when asked ---


def make_step(be, optimizer, n=3):
    w = be.array(np.linspace(0.5, 1.5, n)[:, None])
    return w, nl.jit(
        lambda x: optimizer.step([w], [nl.Autodiff(optimizer.scale_errors(x * w), be).get_grad_op_tree(w)])
    )


def gradient_of(n, is_finite=True):
    x = np.random.default_rng(n).normal(size=(3, 1))
    x[1] = x[1] if is_finite else np.inf
    return x


def textbook_adam(w, finite, scale, interval, rate=0.01, b1=0.9, b2=0.999):
    """Return weights, the scale, and counts of Adam with loss scaling, by the equations of the papers."""
    m = v = 0.0
    t = good = row = total = 0
    for n, ok in enumerate(finite):
        if not ok:
            good, row, total, scale = 0, row + 1, total + 1, scale / 2
            continue
        t, good, row, g = t + 1, good + 1, 0, gradient_of(n)
        scale *= 2 if good % interval == 0 else 1
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8 / np.sqrt(1 - b2**t))
    return w, (scale, t, good, row, total)


@pytest.mark.parametrize("runtime", ["cpu", "simulated"])
@pytest.mark.parametrize("reads", [(), (4, 5, 13), range(30)], ids=["at the end", "at times", "always"])
def test_a_compiled_step_skips_and_scales_as_the_textbook_whenever_the_host_reads(runtime, reads):
    if runtime == "simulated" and shutil.which("g++") is None:
        pytest.skip("the kernel simulator needs g++")
    be = NervanaObject.be = Backend(SimulatedGPU() if runtime == "simulated" else runtime)
    optimizer = LossScaling(Adam(0.01), 2.0**10, growth_interval=3)
    w, step = make_step(be, optimizer)
    start, finite = w.get().astype(np.float64), [n not in (0, 1, 2, 9, 10, 20) for n in range(30)]
    for n, ok in enumerate(finite):
        step(be.array(gradient_of(n, ok)))
        if n in reads:
            expected = textbook_adam(start, finite[: n + 1], 2.0**10, 3)[1]
            assert (optimizer.scale, w.updates) == (expected[0], ("Adam(mean, mean_square)", expected[1]))
    expected, counts = textbook_adam(start, finite, 2.0**10, 3)
    np.testing.assert_allclose(w.get(), expected, rtol=1e-5)
    result = optimizer.scale, optimizer.t, optimizer.good_steps, optimizer.consecutive_skips, optimizer.total_skips
    assert result == counts
    assert (w.updates[1], optimizer.optimizer.t) == (24, 24)


def test_the_host_reads_one_step_in_eight(monkeypatch):
    be = NervanaObject.be = Backend("cpu")
    optimizer, reads, get = LossScaling(Adam(0.01)), [], nl.Tensor.get
    w, step = make_step(be, optimizer)
    x = be.array(gradient_of(0))
    monkeypatch.setattr(nl.Tensor, "get", lambda self: reads.append(1) or get(self))
    for _ in range(33):
        step(x)
    assert len(reads) - len(step.programs) <= 5  # the first call reads the new table of scalars, too
    assert w.updates[1] == optimizer.optimizer.t == 33


def test_a_learning_rate_that_changes_counts_for_the_steps_after_skipped_ones():
    def run(rates, finite):
        be = NervanaObject.be = Backend("cpu")
        adam = Adam(0.01)
        optimizer = LossScaling(adam, 1.0, dynamic=False)
        w, step = make_step(be, optimizer)
        for adam.learning_rate, ok in zip(rates, finite, strict=True):
            step(be.array(gradient_of(5, ok)))
        return w.get()

    alike([run([0.1, 0.1, 0.2, 0.4], [False, True, False, True])], [run([0.1, 0.4], [True, True])])


@pytest.mark.parametrize("num_before", [0, 1, 6, 7, 8])
@pytest.mark.parametrize("finite", [True, False])
def test_a_transaction_that_fails_after_steps_leaves_no_trace(num_before, finite):
    def run(fails):
        be = NervanaObject.be = Backend("cpu")
        optimizer = LossScaling(Adam(0.01), growth_interval=2)
        w, step = make_step(be, optimizer)

        def transaction():
            for n in range(3):
                step(be.array(gradient_of(n, finite or n != 1)))
            raise MemoryError

        for n in range(num_before):
            step(be.array(gradient_of(n)))
        if fails:
            with pytest.raises(MemoryError):
                atomic(transaction)
        for n in range(4):
            step(be.array(gradient_of(n)))
        return [w.get(), *[x.get() for x in w.states]], w.updates, optimizer.get_state()

    (values, *counts), (expected, *expected_counts) = run(True), run(False)
    alike(values, expected)
    assert counts == expected_counts


def test_two_steps_of_one_loss_scaling_are_refused_in_a_compiled_function():
    be = NervanaObject.be = Backend("cpu")
    v, w, optimizer = be.ones((1, 1)), be.ones((1, 1)), LossScaling(Adam())

    @nl.jit
    def both(x):
        optimizer.step([v], [optimizer.scale_errors(x * 1)])
        optimizer.step([w], [optimizer.scale_errors(x * 1)])

    with pytest.raises(TypeError, match=r"got a second step of a LossScaling\. Pass all parameters to one step"):
        both(be.ones((1, 1)))


def test_two_programs_update_one_parameter_in_turn():
    be = NervanaObject.be = Backend("cpu")
    optimizer = LossScaling(Adam(0.01), 8.0, growth_interval=5)
    w, step = make_step(be, optimizer)
    other = nl.jit(lambda x: optimizer.step([w], [optimizer.scale_errors(x * 1)]))
    plain, adam = be.array(w.get()), Adam(0.01)
    for n in range(20):
        x = be.array(gradient_of(n))
        (other if n % 3 == 0 else step)(x)
        adam.step([plain], [x])
    alike([w.get()], [plain.get()])
    assert (w.updates, optimizer.scale) == (plain.updates, 8.0 * 2**4)


def test_states_that_are_replaced_after_a_step_start_again():
    be = NervanaObject.be = Backend("cpu")
    w, step = make_step(be, LossScaling(Adam(0.01)))
    for _ in range(3):
        step(be.array(gradient_of(0)))
    w.states = w.updates = None
    step(be.array(gradient_of(0)))
    assert w.updates == ("Adam(mean, mean_square)", 1)
