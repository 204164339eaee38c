"""Tests of bfloat16: it supports all that float16 does, on the runtimes that have it; others raise an error.

The oracle of rounding is ml_dtypes, that of training the same network in float32. Casts, ops and primitives of bfloat16
are among those of all dtypes: in test_codegen.py, test_cuda_primitives.py, test_every_op.py and test_primitives.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.argparser import NeonArgparser
from neonlite.backend import NervanaObject
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.callbacks import Callbacks
from neonlite.data import ArrayIterator, TimeSeries
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import GRU, LSTM, Affine, BatchNorm, Conv, Dropout, LookupTable, Pooling, RecurrentSum
from neonlite.models import Model
from neonlite.models.training_state import read_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, RMSProp, get_param_list
from neonlite.transforms import CrossEntropyMulti, Logistic, Rectlin, Softmax, Tanh

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="kernels are simulated with g++, which is not installed"
)

BFLOAT16 = ml_dtypes.bfloat16


@pytest.fixture
def sim() -> Backend:
    return Backend(SimulatedGPU(), rng_seed=1)


def runtimes() -> list[Any]:
    return [pytest.param("simulated", marks=needs_compiler), "torch"]


def backend(runtime: str, dtype: str = "bfloat16", **options: Any) -> Backend:
    if runtime == "torch":
        pytest.importorskip("torch")
    be = Backend(SimulatedGPU() if runtime == "simulated" else runtime, rng_seed=1, default_dtype=dtype, **options)
    NervanaObject.be = be
    return be


# --- runtimes with and without bfloat16 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "mkl", "strict"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda name: nl.gen_backend(name, datatype="bfloat16"),
        lambda name: Backend(name, default_dtype=BFLOAT16),
        lambda name: Backend(name).zeros((2, 2), dtype="bfloat16"),
        lambda name: Backend(name).array([[1]], dtype=np.dtype(BFLOAT16)),
        lambda name: (be := Backend(name)).astype(be.ones((2, 2)), "bfloat16"),
    ],
)
def test_a_runtime_without_it_names_the_runtimes_that_support_it(name: str, ask: Any) -> None:
    if name == "mkl":
        pytest.importorskip("mkl")
    message = rf"^backend '{name}': expected one of the dtypes float.*, got 'bfloat16'\. The runtimes gpu and torch "
    with pytest.raises(
        TypeError, match=message + r"support it with ml_dtypes \(pip install ml_dtypes\); else use float32\."
    ):
        ask(name)


def test_the_error_on_a_gpu_without_ml_dtypes_states_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    be = Backend(SimulatedGPU())
    assert "bfloat16" not in be.runtime.dtypes
    with pytest.raises(
        TypeError, match=r"backend 'simulated': .*, got 'bfloat16'\. .* \(pip install ml_dtypes\); else use float32"
    ):
        be.zeros((2, 2), dtype="bfloat16")


def test_ml_dtypes_is_imported_only_if_a_bfloat16_array_is_possible() -> None:
    code = "import sys, neonlite; be = neonlite.gen_backend('cpu'); print(be.ones((2, 2)), 'ml_dtypes' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith(" False")


def test_the_command_line_knows_the_name_bf16() -> None:
    with pytest.raises(TypeError, match=r"backend 'cpu': expected one of the dtypes .*, got 'bfloat16'"):
        NeonArgparser("").parse_args(["-b", "cpu", "--datatype", "bf16"])


def test_every_runtime_accepts_bfloat16_values(be: Backend) -> None:
    values = np.array([[1.5, -2.0, 0.1]], BFLOAT16)
    assert (be.array(values).get() == values.astype(np.float32)).all()
    x = be.zeros((1, 3))
    x[:] = values
    assert (x.get() == values.astype(np.float32)).all()
    assert ((x + values).asnumpyarray() == 2 * values.astype(np.float32)).all()
    be.bsz = 1
    NervanaObject.be = be
    ((X, _),) = ArrayIterator(values, np.array([0]), nclass=2)
    assert (X.get().ravel() == values.astype(np.float32).ravel()).all()
    assert next(iter(TimeSeries(values.T, 1)))[0].get().tolist() == [[1.5]]


@pytest.mark.parametrize("label", [0.5, np.nan])
def test_bfloat16_labels_and_targets_are_checked_like_floats(be: Backend, label: float) -> None:
    be.bsz, NervanaObject.be = 2, be
    X, y = np.ones((2, 1)), np.array([0, label], BFLOAT16)
    with pytest.raises(ValueError, match="expected integer labels from 0 to 1, got bfloat16"):
        ArrayIterator(X, y, nclass=2)
    if np.isnan(label):
        with pytest.raises(ValueError, match="y: expected finite values, got nan in row 1, column 0"):
            ArrayIterator(X, y, make_onehot=False)


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", runtimes())
def test_tensors_are_created_read_written_and_printed(runtime: str) -> None:
    be = backend(runtime)
    x = be.array([[1.5, 2.25], [-3.1, 0.1]], name="x")
    assert be.default_dtype == x.dtype == x.get().dtype == np.asarray(x).dtype == BFLOAT16
    assert x.nbytes == 8
    expected = np.array([[1.5, 2.25], [-3.1, 0.1]], np.float32).astype(BFLOAT16)
    np.testing.assert_array_equal(x.get(), expected)
    assert repr(x) == f"Tensor([[ 1.5     2.25  ]\n        [-3.0938  0.1001]], 'x', (2, 2), bfloat16, {be.name})"
    assert "<td>-3.094</td>" in x._repr_html_()
    for dtype in ("bfloat16", BFLOAT16, np.dtype(BFLOAT16)):
        assert be.zeros((2, 3), dtype).dtype == "bfloat16"
    x[0] = np.array([7.03, 1e39])
    assert x.get().tolist() == [[7.03125, np.inf], *expected[1:].tolist()]
    x.T[:] = 3
    assert (be.array(x, "float32").get() == 3).all()
    assert (Backend("cpu").array(x).get() == 3).all()
    assert (be.max(x * np.array([[2, 4]])).asnumpyarray() == 12).all()


@pytest.mark.parametrize("runtime", runtimes())
def test_sums_are_added_up_in_float32_and_rounded_once(runtime: str) -> None:
    be = backend(runtime)
    ones = be.ones((1, 5000))  # 256 + 1 is 256 in bfloat16
    for n in (3, 4112, 5000):  # neither these sums nor one over n are numbers of bfloat16
        assert be.mean(be.ones((1, n))).asnumpyarray() == 1
    even = be.array(np.arange(5000.0)[None] % 2)
    found = be.evaluate([be.sum(ones), be.dot(ones, ones.T), be.mean(ones * 3), be.var(even)])
    assert [x.get().item() for x in found] == [BFLOAT16(5000), BFLOAT16(5000), 3, 0.25]
    total = be.zeros((1, 1))
    be.compound_dot(ones, ones.T, total)
    assert total.get() == BFLOAT16(5000)
    (slope,) = Autodiff(be.max(ones), be).get_grad_asnumpyarray([ones])
    assert (slope == BFLOAT16(1 / 5000)).all()


def test_memory_is_shared_with_torch() -> None:
    torch = pytest.importorskip("torch")
    be, torch_tensor = backend("torch"), torch.ones((2, 3), dtype=torch.bfloat16)
    x = be.from_dlpack(torch_tensor)
    x[:] = x * 3
    assert (torch_tensor == 3).all()
    back = torch.from_dlpack(x)
    back += 0.5
    assert (np.asarray(x) == BFLOAT16(3.5)).all()


@pytest.mark.parametrize("runtime", runtimes())
def test_batch_statistics_are_stored_in_float32(runtime: str) -> None:
    be = backend(runtime)
    x = be.array(20 + np.random.default_rng(1).normal(size=(3, 500)))  # in steps of 1/8
    columns = [be.zeros((3, 1)) for _ in range(5)]
    y = be.compound_fprop_bn(x, *columns[:4], be.ones((3, 1)), columns[4], be.empty_like(x), 1e-3, 0.9)
    held = x.get().astype(float)
    mean, var = held.mean(axis=1, keepdims=True), held.var(axis=1, keepdims=True)
    expected = (held - mean) / np.sqrt(var + 1e-3)
    assert (np.abs(y.get().astype(float) - expected) <= 2.0**-8 * np.abs(expected) + 1e-5).all()


@needs_compiler
def test_the_text_of_a_kernel_reads_rounds_and_adds_up(sim: Backend) -> None:
    x = sim.ones((8, 64), "bfloat16", name="x")
    text = sim.kernel(sim.sum(x * x, axis=1), 1 / (1 + sim.exp(-x)))
    for fragment in [
        "const BFloat16* x0",
        "x0s[u] = load<V>(",
        "round_to<BFloat16>(to_compute(x0s[u].at[q]) * to_compute(x0s[u].at[q]))",
        "float a0 = 0;",
        "y0s.at[q] = to_storage<BFloat16>(",
        'asm("cvt.rn.bf16.f32 %0, %1;"',  # of GPUs from sm_80 on
    ]:
        assert fragment in text, text


@needs_compiler
def test_a_dry_run_predicts_the_memory_of_bfloat16() -> None:
    def work(be: Backend) -> Any:
        x = be.zeros((64, 50), "bfloat16")
        be.softmax(x @ x.T, axis=1).astensor()
        return be.memory()

    assert work(Backend(SimulatedGPU()).dry_run()) == work(Backend(SimulatedGPU()))
    assert Backend(SimulatedGPU()).dry_run().ones((2, 3), "bfloat16").get().dtype == BFLOAT16


# --- training --------------------------------------------------------------------------------------------------------

DRAW = np.random.default_rng(0)
IMAGES = DRAW.normal(size=(48, 2 * 6 * 6))
SEQUENCES = DRAW.normal(size=(32, 4, 5))
TOKENS = DRAW.integers(0, 7, (32, 5))
RULES: dict[str, Any] = {"activation": Tanh(), "gate_activation": Logistic()}


def convolutional() -> tuple[Any, list[Any]]:
    data = ArrayIterator(IMAGES, (IMAGES[:, :36].sum(1) > 0).astype(int), nclass=2, lshape=(2, 6, 6))
    conv = Conv((3, 3, 8), Gaussian(0, 0.2), bias=Constant(0), activation=Rectlin())
    return data, [conv, BatchNorm(), Pooling(2), Dropout(0.9), Affine(2, Gaussian(0, 0.2), activation=Softmax())]


def recurrent(layer: Any) -> tuple[Any, list[Any]]:
    labels = (SEQUENCES[:, 0].sum(1) > 0).astype(int)
    data = ArrayIterator(SEQUENCES.reshape(32, -1), labels, nclass=2, lshape=(4, 5))
    return data, [
        layer(6, Gaussian(0, 0.1), **RULES),
        RecurrentSum(),
        Affine(2, Gaussian(0, 0.2), activation=Softmax()),
    ]


def embedding() -> tuple[Any, list[Any]]:
    data = ArrayIterator(TOKENS, (TOKENS.sum(1) > 15).astype(int), nclass=2)
    return data, [
        LookupTable(7, 4, Gaussian(0, 0.3)),
        RecurrentSum(),
        Affine(2, Gaussian(0, 0.2), activation=Softmax()),
    ]


NETWORKS: dict[str, Any] = {
    "convolutional": convolutional,
    "LSTM": lambda: recurrent(LSTM),
    "GRU": lambda: recurrent(GRU),
    "look-up": embedding,
}


def trained(be: Backend, make: Any, optimizer: Any, epochs: int = 5, model: Any = None) -> tuple[Model, list[float]]:
    """Return a model after some epochs, and its cost after each."""
    data, layers = make()
    model = Model(model or layers)
    callbacks = Callbacks(model, progress_bar=False)
    model.fit(data, CrossEntropyMulti(), optimizer, epochs, callbacks=callbacks)
    return model, callbacks.history["loss"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["convolutional", *(pytest.param(n, marks=pytest.mark.slow) for n in [*NETWORKS][1:])])
@needs_compiler
def test_a_network_on_a_gpu_trains_as_it_does_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected = trained(backend("cpu", "float32", batch_size=8), NETWORKS[name], RMSProp(learning_rate=0.01))
    for kernels in "10":  # also op by op: the same bits except for the order of sums
        monkeypatch.setenv("NEONLITE_KERNELS", kernels)
        model, costs = trained(backend("simulated", batch_size=8), NETWORKS[name], RMSProp(learning_rate=0.01))
        assert {x.dtype for x in model.get_weights().values()} == {np.dtype(BFLOAT16)}
        assert costs[-1] < 0.9 * costs[0]
        np.testing.assert_allclose(costs, expected, atol=0.03)


def test_a_network_in_torch_learns_as_it_does_in_float32() -> None:
    def perceptron() -> tuple[Any, list[Any]]:
        data, (*_, last) = convolutional()
        return data, [Affine(8, Gaussian(0, 0.2), bias=Constant(0), activation=Rectlin()), last]

    costs = [
        trained(backend(*be, batch_size=8), perceptron, Adam(learning_rate=0.01))[1]
        for be in (("torch",), ("cpu", "float32"))
    ]
    np.testing.assert_allclose(*costs, atol=0.02)


@pytest.mark.slow
@needs_compiler
def test_errors_that_float16_loses_need_no_scale() -> None:
    """A scale is a power of two, and bfloat16 has the exponents of float32: a scale changes no bit."""
    results = [
        trained(backend("simulated", batch_size=8), embedding, x, 2)[0].get_weights()
        for x in (
            GradientDescentMomentum(0.05, 0.9),
            LossScaling(GradientDescentMomentum(0.05, 0.9), 2.0**30, dynamic=False),
        )
    ]
    for weights, scaled in zip(*(x.values() for x in results), strict=True):
        np.testing.assert_array_equal(weights, scaled)


# --- files -----------------------------------------------------------------------------------------------------------


@needs_compiler
def test_training_resumes_from_a_file_with_the_same_bits(tmp_path: Path) -> None:
    def make() -> Adam:
        return Adam(learning_rate=0.01, stochastic_round=True)

    def optimizer_state(model: Model) -> list[Any]:
        rows = get_param_list(model.layers_to_optimize)
        return [x.get() for (w, _), states in rows for x in (w, *states)]

    expected = optimizer_state(trained(backend("simulated", batch_size=8), embedding, make(), 4)[0])
    model, _ = trained(backend("simulated", batch_size=8), embedding, make(), 2)
    model.save_params(tmp_path / "half.neon")
    _, arrays = read_checkpoint(tmp_path / "half.neon")
    assert {str(x.dtype) for x in arrays.values()} >= {"bfloat16", "float32"}
    again, _ = trained(backend("simulated", batch_size=8), embedding, make(), 4, tmp_path / "half.neon")
    for a, b in zip(optimizer_state(again), expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    backend("cpu", "float32", batch_size=8)
    elsewhere = Model(tmp_path / "half.neon").get_weights()  # already rounded to bfloat16
    for name, weights in model.get_weights().items():
        np.testing.assert_array_equal(elsewhere[name], weights.astype(np.float32))
    assert json.loads(json.dumps(again.get_description(), default=str))


@needs_compiler
def test_a_file_with_bfloat16_needs_ml_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = trained(backend("simulated", batch_size=8), embedding, RMSProp(learning_rate=0.01), 1)
    model.save_params(tmp_path / "m.neon")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    backend("cpu", "float32", batch_size=8)
    with pytest.raises(
        ImportError, match=r"m\.neon: .*W is bfloat16, for which NumPy needs ml_dtypes: pip install ml_dtypes"
    ):
        Model(tmp_path / "m.neon")
