"""Tests of float32 master weights of 16-bit parameters, compared with loops in NumPy."""

import shutil

import ml_dtypes
import numpy as np
import pytest
from helpers.simulated_gpu import ran, simulated

import neonlite as nl
from neonlite import Backend
from neonlite.backend import NervanaObject
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.data import ArrayIterator
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.optimizers import (
    LAMB,
    Adam,
    AdamW,
    GradientDescentMomentum,
    Lion,
    LossScaling,
    MultiOptimizer,
    RMSProp,
    WeightAverage,
    get_param_list,
)

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here"
)
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
RUNTIMES = [
    pytest.param("cpu", "float16"),
    pytest.param("simulated", "float16", marks=needs_compiler),
    pytest.param("simulated", "bfloat16", marks=needs_compiler),
]


def backend(runtime, dtype):
    be = Backend(SimulatedGPU() if runtime == "simulated" else runtime, rng_seed=1, default_dtype=dtype)
    NervanaObject.be = be
    return be


def updated(optimizer, w, gradients):
    for g in gradients:
        optimizer.step([w], [w.backend.array(g)])
    return w


def numbers(steps, seed=0, size=(3, 4)):
    return np.random.default_rng(seed).normal(size=(steps, *size)).astype(np.float32)


def momentum_in_numpy(w, gradients, to, rate=0.01, mu=0.9):
    """Return the float32 weights and their 16-bit copies after each step, by the equations of the paper."""
    master, v = w.astype(np.float64), 0.0
    for g in gradients:
        v = mu * v - rate * g.astype(to).astype(np.float64)
        master = master + v
    return master, master.astype(np.float32).astype(to)


def adam_in_numpy(w, gradients, to, rate=0.001, b1=0.9, b2=0.999):
    master, m, v = w.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        g = g.astype(to).astype(np.float64)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        master = master - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8 / np.sqrt(1 - b2**t))
    return master, master.astype(np.float32).astype(to)


LOOPS = {
    "momentum": (lambda: GradientDescentMomentum(0.01, 0.9, master_weights=True), momentum_in_numpy),
    "Adam": (lambda: Adam(0.001, master_weights=True), adam_in_numpy),
}


@pytest.mark.parametrize(("runtime", "dtype"), RUNTIMES)
@pytest.mark.parametrize(("make", "loop"), LOOPS.values(), ids=LOOPS)
def test_a_loop_in_numpy_gives_the_master_weights_and_their_16_bit_copies(runtime, dtype, make, loop):
    be, start, gradients = backend(runtime, dtype), numbers(1)[0], numbers(60, 1)
    w = updated(make(), be.array(start), gradients)
    master, rounded = loop(start.astype(NUMPY[dtype]), gradients, NUMPY[dtype])
    result = w.states[-1].get()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, master, rtol=3e-6, atol=1e-6)
    assert (w.get() == result.astype(NUMPY[dtype])).all()
    assert (w.get() != rounded).mean() < 0.1  # where float64 and float32 round to different neighbors


@needs_compiler
@pytest.mark.parametrize("make", [make for make, _ in LOOPS.values()], ids=LOOPS)
def test_a_compiled_scaled_step_has_the_same_bits_on_the_cpu_and_as_a_cuda_graph(make):
    results = []
    for runtime in ("cpu", "simulated"):
        be = backend(runtime, "float16")
        w, optimizer = be.array(numbers(1)[0]), LossScaling(make(), 2.0**10, growth_interval=5)
        step = nl.jit(lambda g, w=w, optimizer=optimizer: optimizer.step([w], [optimizer.scale_errors(g * 1)]))
        for n, g in enumerate(numbers(20, 1)):
            step(be.array(np.where(n == 7, np.inf, g)))
        results.append([x.get() for x in (w, *w.states)])
        assert (w.updates[1], optimizer.scale, optimizer.total_skips) == (19, 2.0**12, 1)
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("runtime", "dtype"), RUNTIMES)
def test_updates_below_half_a_unit_in_the_last_place_add_up(runtime, dtype):
    be, size = backend(runtime, dtype), 2.0 ** (-13 if dtype == "float16" else -10)
    results = []
    for master_weights in (False, True):
        w = be.ones((1, 1))
        updated(GradientDescentMomentum(size, 0, master_weights=master_weights), w, -np.ones((64, 1, 1)))
        results.append(float(w.get().item()))
    assert results == [1.0, 1 + 64 * size]


@pytest.mark.parametrize("change", ["an assignment", "set_weights"])
def test_a_parameter_that_is_set_continues_from_its_new_value(change):
    be = backend("cpu", "float16")
    be.bsz = 1
    net = nl.Sequential([Affine(2)])
    net.configure(3).allocate()
    (w,) = [x for x in net.parameters if x.shape == (2, 3)]
    w[:], optimizer = be.array(numbers(1, size=(2, 3))[0]), GradientDescentMomentum(2.0**-13, 0, master_weights=True)
    updated(optimizer, w, -np.ones((3, 2, 3)))
    if change == "an assignment":
        w[0] = 1
    else:
        net.set_weights({name: np.concatenate([np.ones_like(x[:1]), x[1:]]) for name, x in net.get_weights().items()})
    before = w.states[-1].get()
    updated(optimizer, w, -np.ones((1, 2, 3)))
    np.testing.assert_array_equal(w.states[-1].get(), [np.full(3, 1 + 2.0**-13), before[1] + np.float32(2.0**-13)])


def model_of(dtype="float16", runtime="cpu", seed=1):
    NervanaObject.be = Backend(runtime, rng_seed=seed, batch_size=8, default_dtype=dtype)
    return Model([Affine(5, activation="tanh"), Affine(3, activation="softmax")])


def data():
    draw = np.random.default_rng(0)
    return ArrayIterator(draw.normal(size=(48, 6)), draw.integers(0, 3, 48), nclass=3)


def weights_and_states(model):
    return [x.get() for (w, _), states in get_param_list(model.layers_to_optimize) for x in (w, *states)]


MAKERS = {
    "sgd": lambda: GradientDescentMomentum(0.1, 0, master_weights=True),
    "nesterov": lambda: GradientDescentMomentum(0.1, 0.9, nesterov=True, master_weights=True),
    "RMSProp": lambda: RMSProp(master_weights=True),
    "AdamW": lambda: AdamW(0.01, master_weights=True, gradient_clip_norm=0.1),
    "LAMB": lambda: LAMB(0.01, master_weights=True),
    "several": lambda: MultiOptimizer({"default": Adam(master_weights=True), "Bias": Lion(0.01)}),
    "scaled": lambda: LossScaling(Adam(0.01, master_weights=True), 2.0**17, growth_interval=4),
    "average": lambda: WeightAverage(Adam(0.01, master_weights=True), 0.9),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_training_resumed_from_a_file_gives_the_same_bits(make, tmp_path):
    model = model_of()
    model.fit(data(), "cross_entropy", make(), 4)
    half = model_of()
    half.fit(data(), "cross_entropy", make(), 2)
    half.save_params(tmp_path / "half.neon")
    model_of()
    resumed = Model(tmp_path / "half.neon")
    resumed.fit(data(), "cross_entropy", make(), 4)
    for x, y in zip(weights_and_states(resumed), weights_and_states(model), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_bits_in_float32_are_those_without_master_weights():
    results = []
    for master_weights in (False, True):
        model = model_of("float32")
        model.fit(data(), "cross_entropy", Adam(0.01, master_weights=master_weights), 2)
        results.append([*model.get_weights().values()])
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_update_with_master_weights_is_one_kernel(dtype):
    launches = []
    for master_weights in (False, True):
        be = simulated(dtype)
        w, optimizer = be.ones((30, 40)), Adam(0.01, master_weights=master_weights)
        updated(optimizer, w, np.ones((1, 30, 40)))
        g = be.ones((30, 40))
        ran(be)
        optimizer.step([w], [g])
        launches.append(len(ran(be)))
    assert launches == [1, 1]


def test_the_weight_average_is_that_of_the_master_weights():
    be = backend("cpu", "float16")
    w, optimizer = be.ones((1, 1)), WeightAverage(GradientDescentMomentum(2.0**-13, 0, master_weights=True), 0.5)
    updated(optimizer, w, -np.ones((2, 1, 1)))
    assert w.updates == ("WeightAverageOfGradientDescentMomentum(master, average)", 2)
    average, master = 0.0, 1.0
    for _ in range(2):
        master += 2.0**-13
        average = (average + master) / 2
    assert float(w.states[-1].get().item()) == average


def test_containers_have_master_weights_in_their_state():
    be = backend("cpu", "float16")
    optimizer = GradientDescentMomentum(2.0**-13, 0, master_weights=True)
    params = {"w": be.ones((1, 2))}
    state = optimizer.init(params)
    step = nl.jit(lambda params, state: optimizer.step(params, {"w": -1 * (params["w"] * 0 + 1)}, state))
    for _ in range(64):
        params, state = step(params, state)
    assert state["master"]["w"].info.dtype == "float32"
    assert params["w"].info.dtype == "float16"
    np.testing.assert_array_equal(params["w"].get(), 1 + 2.0**-7)


def test_stochastic_rounding_and_master_weights_exclude_each_other():
    with pytest.raises(ValueError, match="Adam: expected stochastic_round or master_weights, got both"):
        Adam(learning_rate=0.01, stochastic_round=True, master_weights=True)
