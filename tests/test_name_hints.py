"""Tests of the names and arguments of NumPy, PyTorch, Keras and JAX: each works, or the error says what to use.

What the error says is evaluated. Where the name is a function, its value is compared with NumPy's.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite import data, initializers, layers, name_hints, optimizers, transforms
from neonlite.ops import SYNONYMS
from neonlite.typing import NumPyArray

# --- the names that people type first ---
# "call = the expected value in NumPy". With the prefix of a library, the call is that of a function, which is tried as
# be.f(...), xp.f(...) and nl.f; or a class, which is tried in all modules. Calls without one are evaluated as they are.
# "~": the value is random, or not an array; what a hint says is only evaluated. x is a matrix (3, 3), n = 3.

NUMPY = """
np.array(values) = values
np.asarray(values) = values
np.zeros(shape) = np.zeros(shape)
np.ones(shape) = np.ones(shape)
np.empty(shape) ~
np.full(shape, value) = np.full(shape, value)
np.zeros_like(x) = np.zeros_like(x)
np.ones_like(x) = np.ones_like(x)
np.full_like(x, value) = np.full_like(x, value)
np.arange(n) = np.arange(n)
np.linspace(0, 1, n) = np.linspace(0, 1, n)
np.logspace(0, 1, n) = np.logspace(0, 1, n)
np.eye(n) = np.eye(n)
np.identity(n) = np.identity(n)
np.diag(x) = np.diag(x)
np.meshgrid(vector, vector) ~
np.copy(x) = x
np.reshape(x, shape) = x
np.ravel(x) = np.ravel(x)
np.transpose(x) = np.transpose(x)
np.swapaxes(x, 0, 1) = x.T
np.moveaxis(x, 0, 1) = x.T
np.expand_dims(x, 0) = x
np.squeeze(x) = x
np.concatenate([x, x]) = np.concatenate([x, x])
np.stack([x, x]) = np.stack([x, x])
np.vstack([x, x]) = np.vstack([x, x])
np.hstack([x, x]) = np.hstack([x, x])
np.split(x, 3) = np.split(x, 3)
np.tile(x, (2, 1)) = np.tile(x, (2, 1))
np.repeat(x, 2, axis=0) = np.repeat(x, 2, axis=0)
np.flip(x, axis=0) = np.flip(x, axis=0)
np.roll(x, 1, axis=0) = np.roll(x, 1, axis=0)
np.pad(x, 1) = np.pad(x, 1)
np.sort(x, axis=0) = np.sort(x, axis=0)
np.argsort(x, axis=0) = np.argsort(x, axis=0)
np.unique(x) = np.unique(x)
np.where(mask, x, 0) = np.where(mask, x, 0)
np.nonzero(x) = np.nonzero(x)
np.argmax(x, axis=0) = np.argmax(x, axis=0)
np.argmin(x, axis=0) = np.argmin(x, axis=0)
np.max(x) = np.max(x)
np.min(x) = np.min(x)
np.amax(x) = np.max(x)
np.sum(x, axis=0) = np.sum(x, axis=0)
np.mean(x, axis=1) = np.mean(x, axis=1)
np.average(x) = np.average(x)
np.std(x) = np.std(x)
np.var(x) = np.var(x)
np.median(x) = np.median(x)
np.percentile(x, 0.5) = np.percentile(x, 0.5)
np.quantile(x, 0.5) = np.quantile(x, 0.5)
np.prod(x) = np.prod(x)
np.cumsum(x, axis=0) = np.cumsum(x, axis=0)
np.cumprod(x, axis=0) = np.cumprod(x, axis=0)
np.diff(x) = np.diff(x)
np.any(x) = np.any(x)
np.all(x) = np.all(x)
np.clip(x, 0, 1) = np.clip(x, 0, 1)
np.round(x) = np.round(x)
np.abs(x) = np.abs(x)
np.absolute(x) = np.abs(x)
np.sqrt(x) = np.sqrt(x)
np.square(x) = np.square(x)
np.exp(x) = np.exp(x)
np.log(x) = np.log(x)
np.log10(x) = np.log10(x)
np.sin(x) = np.sin(x)
np.cos(x) = np.cos(x)
np.tanh(x) = np.tanh(x)
np.arctan2(x, x) = np.arctan2(x, x)
np.power(x, 2) = np.power(x, 2)
np.sign(x) = np.sign(x)
np.floor(x) = np.floor(x)
np.maximum(x, 1) = np.maximum(x, 1)
np.minimum(x, 1) = np.minimum(x, 1)
np.dot(x, x) = np.dot(x, x)
np.matmul(x, x) = np.matmul(x, x)
np.inner(x, x) = np.inner(x, x)
np.outer(x, x) = np.outer(x, x)
np.einsum("ik,jk->ij", x, x) = np.einsum("ik,jk->ij", x, x)
np.tensordot(x, x, 1) = np.tensordot(x, x, 1)
np.trace(x) = np.trace(x)
np.isnan(x) = np.isnan(x)
np.isfinite(x) = np.isfinite(x)
np.allclose(x, x) = True
np.array_equal(x, x) = True
np.count_nonzero(x) = 9
np.bincount(indices) ~
np.take(x, [2, 0], axis=0) = np.take(x, [2, 0], axis=0)
np.linalg.norm(x) = np.linalg.norm(x)
np.linalg.inv(x) = np.linalg.inv(x)
np.random.rand(3, 3) ~
np.random.normal(0, 1, shape) ~
np.random.randint(0, 9, shape) ~
np.random.shuffle(a) ~
np.random.seed(0) ~
np.save("x.npy", x) ~
np.float32 ~
np.pi ~
"""
TORCH = """
torch.tensor(values) = values
torch.from_numpy(a) = a
torch.rand(3, 3) ~
torch.randn(3, 3) ~
torch.randint(0, 9, shape) ~
torch.randperm(n) ~
torch.cat([x, x]) = np.concatenate([x, x])
torch.stack([x, x]) = np.stack([x, x])
torch.matmul(x, x) = x @ x
torch.mm(x, x) = x @ x
torch.bmm(x, x) = x @ x
torch.sigmoid(x) = 1 / (1 + np.exp(-x))
torch.softmax(x, 0) = np.exp(x) / np.sum(np.exp(x), axis=0)
torch.relu(x - 1) = np.maximum(x - 1, 0)
torch.pow(x, 2) = x**2
torch.div(x, x) = x / x
torch.clamp(x, 0, 1) = np.clip(x, 0, 1)
torch.unsqueeze(x, 0) = x
torch.permute(x, (1, 0)) = x.T
torch.flatten(x) = x.ravel()
torch.norm(x) = np.linalg.norm(x)
torch.chunk(x, 3) = np.split(x, 3)
torch.topk(x, 3) = -np.sort(-x)
torch.no_grad() ~
torch.manual_seed(0) ~
torch.load("x.npy") ~
torch.device("cpu") ~
torch.cuda ~
torch.long ~
torch.nn.Module ~
torch.nn.Linear ~
torch.nn.Conv2d ~
torch.nn.ConvTranspose2d ~
torch.nn.MaxPool2d ~
torch.nn.AdaptiveAvgPool2d ~
torch.nn.BatchNorm1d ~
torch.nn.BatchNorm2d ~
torch.nn.LayerNorm ~
torch.nn.Dropout ~
torch.nn.Embedding ~
torch.nn.LSTM ~
torch.nn.GRU ~
torch.nn.RNN ~
torch.nn.MultiheadAttention ~
torch.nn.TransformerEncoderLayer ~
torch.nn.Flatten ~
torch.nn.Identity ~
torch.nn.Sequential ~
torch.nn.ModuleList ~
torch.nn.Parameter ~
torch.nn.ReLU ~
torch.nn.LeakyReLU ~
torch.nn.GELU ~
torch.nn.Sigmoid ~
torch.nn.Softmax ~
torch.nn.LogSoftmax ~
torch.nn.CrossEntropyLoss ~
torch.nn.NLLLoss ~
torch.nn.MSELoss ~
torch.nn.L1Loss ~
torch.nn.BCELoss ~
torch.nn.BCEWithLogitsLoss ~
torch.nn.functional.leaky_relu(x) = np.where(x > 0, x, 0.01 * x)
torch.nn.functional.silu(x) = x / (1 + np.exp(-x))
torch.nn.functional.log_softmax(x, 0) = x - np.log(np.sum(np.exp(x), axis=0))
torch.nn.functional.cross_entropy(x, x) ~
torch.nn.functional.one_hot(indices) ~
torch.nn.init.xavier_uniform_ ~
torch.nn.utils.clip_grad_norm_ ~
torch.optim.SGD ~
torch.optim.Adam ~
torch.optim.AdamW ~
torch.optim.lr_scheduler.StepLR ~
torch.optim.lr_scheduler.CosineAnnealingLR ~
torch.optim.lr_scheduler.ReduceLROnPlateau ~
torch.utils.data.DataLoader ~
torch.utils.data.TensorDataset ~
torch.utils.data.random_split ~
t.numpy() = x
t.item ~
t.view(3, 3) = x
t.size ~
t.numel() = 9
t.unsqueeze(0) = x
t.detach() = x
t.cpu() = x
t.cuda() ~
t.to("cuda") ~
t.long() = x.astype(int)
t.requires_grad_() ~
tree.backward() ~
model.parameters() ~
model.state_dict() ~
model.load_state_dict(weights) ~
model.forward(x) ~
model.zero_grad() ~
model.train() ~
model.to("cuda") ~
optimizer.zero_grad() ~
schedule.step() ~
"""
KERAS = """
keras.Sequential ~
keras.Model ~
keras.Input ~
keras.layers.Dense ~
keras.layers.Activation ~
keras.layers.Conv1D ~
keras.layers.Conv2D ~
keras.layers.Conv2DTranspose ~
keras.layers.MaxPooling2D ~
keras.layers.AveragePooling2D ~
keras.layers.GlobalAveragePooling2D ~
keras.layers.GlobalMaxPooling2D ~
keras.layers.UpSampling2D ~
keras.layers.ZeroPadding2D ~
keras.layers.Flatten ~
keras.layers.Reshape ~
keras.layers.Dropout ~
keras.layers.BatchNormalization ~
keras.layers.LayerNormalization ~
keras.layers.Embedding ~
keras.layers.LSTM ~
keras.layers.GRU ~
keras.layers.SimpleRNN ~
keras.layers.Bidirectional ~
keras.layers.TimeDistributed ~
keras.layers.MultiHeadAttention ~
keras.layers.Add ~
keras.layers.Concatenate ~
keras.layers.Lambda ~
keras.layers.InputLayer ~
keras.layers.ReLU ~
keras.layers.LeakyReLU ~
keras.layers.Softmax ~
keras.layers.Rescaling ~
keras.layers.TextVectorization ~
keras.layers.RandomFlip ~
keras.activations.relu(x - 1) = np.maximum(x - 1, 0)
keras.activations.sigmoid(x) = 1 / (1 + np.exp(-x))
keras.activations.elu(x) = np.where(x > 0, x, np.exp(x) - 1)
keras.activations.swish(x) = x / (1 + np.exp(-x))
keras.optimizers.SGD ~
keras.optimizers.Adam ~
keras.optimizers.AdamW ~
keras.optimizers.RMSprop ~
keras.optimizers.Adagrad ~
keras.optimizers.schedules.ExponentialDecay ~
keras.optimizers.schedules.CosineDecay ~
keras.optimizers.schedules.PolynomialDecay ~
keras.losses.CategoricalCrossentropy ~
keras.losses.SparseCategoricalCrossentropy ~
keras.losses.BinaryCrossentropy ~
keras.losses.MeanSquaredError ~
keras.losses.Huber ~
keras.metrics.Accuracy ~
keras.metrics.BinaryAccuracy ~
keras.metrics.AUC ~
keras.metrics.Precision ~
keras.metrics.Recall ~
keras.metrics.F1Score ~
keras.metrics.TopKCategoricalAccuracy ~
keras.callbacks.Callback ~
keras.callbacks.EarlyStopping ~
keras.callbacks.ModelCheckpoint ~
keras.callbacks.ReduceLROnPlateau ~
keras.callbacks.LearningRateScheduler ~
keras.callbacks.TensorBoard ~
keras.callbacks.CSVLogger ~
keras.callbacks.TerminateOnNaN ~
keras.callbacks.History ~
keras.initializers.GlorotUniform ~
keras.initializers.HeNormal ~
keras.initializers.RandomNormal ~
keras.initializers.Zeros ~
keras.initializers.Orthogonal ~
keras.regularizers.L2 ~
keras.datasets.mnist ~
keras.datasets.fashion_mnist ~
keras.datasets.cifar10 ~
keras.utils.to_categorical(indices) ~
keras.utils.plot_model ~
keras.utils.set_random_seed ~
keras.preprocessing.sequence.pad_sequences ~
keras.models.load_model("m.neon") ~
keras.applications ~
keras.backend ~
model.compile("adam", "mse") ~
model.summary() ~
model.add(layer) ~
model.build((3, 3)) ~
model.get_layer(name) ~
model.layers ~
model.get_weights() ~
model.save("m.neon") ~
model.save_weights("m.neon") ~
model.trainable_variables ~
model.train_on_batch(X, y) ~
model.count_params() ~
model.to_json() ~
model.trainable_weights ~
layer.kernel ~
"""
JAX = """
jax.numpy ~
jax.grad(lambda a: be.sum(a * a))(x) ~
jax.value_and_grad(lambda a: be.sum(a * a))(x) ~
jax.jit(lambda x: x + 1)(x) = x + 1
jax.vmap(lambda a: 2 * a)(x) ~
jax.pmap(f) ~
jax.jacfwd(f) ~
jax.jacrev(f) ~
jax.hessian(lambda a: be.sum(a * a))(x) ~
jax.jvp(lambda a: a * a, (x,), (x,)) ~
jax.vjp(lambda a: a * a, x) ~
jax.make_jaxpr(f) ~
jax.devices() ~
jax.local_device_count() ~
jax.device_put(values) = values
jax.device_get(x) = x
jax.block_until_ready(x) = x
jax.tree_util ~
jax.random.PRNGKey(0) ~
jax.random.key(0) ~
jax.random.fold_in(0, 1) ~
jax.random.normal(shape) ~
jax.random.uniform(shape) ~
jax.random.randint(0, 9, shape) ~
jax.random.bernoulli(0.5) ~
jax.random.categorical(x) ~
jax.random.permutation(n) ~
jax.random.choice(n) ~
jax.nn.relu(x - 1) = np.maximum(x - 1, 0)
jax.nn.relu6(x) = np.clip(x, 0, 6)
jax.nn.sigmoid(x) = 1 / (1 + np.exp(-x))
jax.nn.softmax(x, axis=0) = np.exp(x) / np.sum(np.exp(x), axis=0)
jax.nn.log_softmax(x, axis=0) = x - np.log(np.sum(np.exp(x), axis=0))
jax.nn.log_sigmoid(x) = -np.log(1 + np.exp(-x))
jax.nn.logsumexp(x, axis=None) = np.log(np.sum(np.exp(x)))
jax.nn.softplus(x) = np.log(1 + np.exp(x))
jax.nn.silu(x) = x / (1 + np.exp(-x))
jax.nn.gelu(x) = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
jax.nn.leaky_relu(x) = np.where(x > 0, x, 0.01 * x)
jax.nn.tanh(x) = np.tanh(x)
jax.nn.one_hot(indices, 3) ~
jax.nn.dot_product_attention ~
jax.lax.stop_gradient(x) = x
jax.lax.scan(lambda s, a: (s, a), x, x) ~
jax.lax.fori_loop(0, 3, f) ~
jax.lax.while_loop(lambda a: False, lambda a: a, x) = x
jax.lax.cond(True, lambda a: a, lambda a: a, x) ~
jax.lax.select(mask, x, x) ~
jax.lax.rsqrt(x) = 1 / np.sqrt(x)
jax.lax.top_k(x, 3) = -np.sort(-x)
jax.numpy.array(values) = values
jax.numpy.asarray(values) = values
jax.numpy.zeros(shape) = np.zeros(shape)
jax.numpy.ones(shape) = np.ones(shape)
jax.numpy.arange(n) = np.arange(n)
jax.numpy.linspace(0, 1, n) = np.linspace(0, 1, n)
jax.numpy.full(shape, value) = np.full(shape, value)
jax.numpy.dot(x, x) = x @ x
jax.numpy.matmul(x, x) = x @ x
jax.numpy.einsum("ik,jk->ij", x, x) = x @ x.T
jax.numpy.sum(x) = np.sum(x)
jax.numpy.mean(x) = np.mean(x)
jax.numpy.var(x) = np.var(x)
jax.numpy.max(x) = np.max(x)
jax.numpy.exp(x) = np.exp(x)
jax.numpy.log1p(x) = np.log1p(x)
jax.numpy.sin(x) = np.sin(x)
jax.numpy.abs(x) = np.abs(x)
jax.numpy.power(x, 2) = x**2
jax.numpy.concatenate([x, x]) = np.concatenate([x, x])
jax.numpy.hstack([x, x]) = np.hstack([x, x])
jax.numpy.reshape(x, shape) = x
jax.numpy.squeeze(x) = x
jax.numpy.clip(x, 0, 1) = np.clip(x, 0, 1)
jax.numpy.where(mask, x, 0) = np.where(mask, x, 0)
jax.numpy.count_nonzero(x) = 9
jax.numpy.nan_to_num(x) = x
jax.numpy.isinf(x) = np.isinf(x)
jax.numpy.logaddexp(x, x) = np.logaddexp(x, x)
jax.numpy.cumsum(x, axis=0) = np.cumsum(x, axis=0)
jax.numpy.linalg.det(x) = np.linalg.det(x)
jax.numpy.float32 ~
jax.numpy.inf ~
flax.linen.Module ~
flax.linen.Dense ~
flax.linen.Conv ~
flax.linen.Embed ~
flax.linen.BatchNorm ~
flax.linen.LayerNorm ~
flax.linen.Dropout ~
flax.linen.GRUCell ~
flax.linen.max_pool ~
optax.adam ~
optax.sgd ~
optax.adamw ~
optax.cosine_decay_schedule ~
optax.softmax_cross_entropy_with_integer_labels ~
optax.clip_by_global_norm ~
t.at ~
t.block_until_ready() = x
"""
NAMES = {"numpy": NUMPY, "torch": TORCH, "keras": KERAS, "jax": JAX}
LIBRARIES = ("np.", "torch.", "keras.", "jax.", "flax.", "optax.")
ROWS = [(library, row) for library, rows in NAMES.items() for row in rows.strip().splitlines()]


@pytest.fixture(autouse=True)
def restored_print_options() -> Iterator[None]:
    """Restore NumPy's print options, which a hint sets."""
    with np.printoptions():
        yield


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names in the calls and in the hints: tensors (3, 3), an op-tree, a trained model and its parts."""
    monkeypatch.chdir(tmp_path)
    be = nl.gen_backend("cpu", rng_seed=0, batch_size=3)
    values = [[2.0, 0.5, 0.1], [0.3, 2.5, 0.2], [0.4, 0.6, 3.0]]
    x = be.array(values, name="x")
    np.save("x.npy", x)
    np.savetxt("x.txt", values)
    X, y = np.eye(3, dtype=np.float32), np.arange(3)
    model = nl.Model([layers.Affine(3, activation="softmax")], name="m")
    history = model.fit(X, y, epochs=1, progress_bar=False)
    model.save_params("m.neon")
    layer = layers.Linear(3).configure(3)
    layer.allocate()
    layer.allocate_deltas()
    layer.fprop(x)
    generalized_cost = layers.GeneralizedCost("mse")
    generalized_cost.initialize(layer)
    # in the test, a new backend would close the one of the tensors
    monkeypatch.setattr(nl, "gen_backend", inspect.signature(nl.gen_backend).bind)
    return {
        "nl": nl, "neonlite": nl, "np": np, "be": be, "xp": be.array_api, "x": x, "t": x,
        "out": be.zeros((3, 3)), "tree": x + 0, "f": be.exp(x), "a": X, "X": X, "n": 3, "value": 1.5, "values": values,
        "vector": np.arange(3), "shape": (3, 3), "axes": (1, 0),
        "model": model, "layer": layer, "layers": [layers.Linear(3)], "name": model[0].name, "weights": {},
        "block": layers.Affine(3), "optimizer": model.optimizer, "schedule": optimizers.CosineSchedule(3),
        "cost": transforms.MeanSquared(), "generalized_cost": generalized_cost, "metric": transforms.MeanSquaredError(),
        "transform": transforms.Rectlin(), "initializer": initializers.Gaussian(),
        "function": data.Flip(), "history": history, "images": np.zeros((3, 1, 4, 4), dtype=np.uint8),
        "dataset": data.iris(), "data": data.ArrayIterator(X, y, nclass=3), "error": be.ones((3, 3)), "y": y,
        "indices": be.zeros((3, 3), dtype="int32"), "mask": x > 1, "dtype": "float64", "path": "m.neon",
        "file": "x.npy", "state": model.optimizer.get_state(), "autodiff": nl.Autodiff(be.exp(x)),
        "compiled": nl.jit(nl.grad(be.mean)),
        "runtime": "cpu", "math": __import__("math"), "rng": be.array_api.random.default_rng(0),
    }  # fmt: skip


def numpy_scope(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the names with NumPy arrays in place of tensors."""
    return {name: x.get() if isinstance(x, nl.Tensor | nl.OpTreeNode) else x for name, x in scope.items()}


def array_scope(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the names with arrays of ``neonlite.array_api`` in place of tensors that functions get."""
    xp = scope["xp"]
    x = xp.asarray(scope["values"])
    return scope | {"x": x, "mask": x > 1, "indices": xp.zeros((3, 3), dtype=xp.int64), "vector": xp.arange(3), "y": x}


def ways_out(code: str, message: str) -> list[str]:
    """Return the expressions that the error of a call says to use."""
    name = code.partition("(")[0].rpartition(".")[2]
    assert f"no attribute {name!r}. " in message
    found = re.search(r"\. Use (.*)\.$", message)
    assert found, f"no way out in: {message}"
    code = re.sub(r", with (be|xp) = .*$", "", found[1]).partition(";")[0]
    return code.split(" or ")


def run(code: str, scope: dict[str, Any]) -> Any:
    """Evaluate an expression, or run a statement."""
    is_statement = code.startswith("from ") or re.search(r" \+?= ", code)
    if not is_statement:
        return eval(code, dict(scope))
    written = scope["x"] * 1 if hasattr(scope["x"], "operand") else scope["x"]  # a variable stays one
    return exec(code, scope | {"x": written})


def check(code: str, scope: dict[str, Any], expected: Any) -> bool:
    """Return whether code works, with the expected value; if it does not, what the error says must."""
    try:
        value = run(code, scope)
    except AttributeError as error:
        call = "".join(code.partition("(")[1:])
        for way_out in ways_out(code, str(error)):
            scope["model"].fprop(scope["t"])
            value = run(way_out, scope)
            if expected is not None:
                value = eval(f"way_out{call}", scope | {"way_out": value}) if callable(value) else value
                require_equal(value, expected, way_out)
        return False
    if expected is not None:
        require_equal(value, expected, code)
    return True


def require_equal(value: Any, expected: Any, code: str) -> None:
    value = [np.asarray(part) for part in value] if type(value) in (list, tuple) else value
    value, expected = np.squeeze(np.asarray(value)), np.squeeze(np.asarray(expected))
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=code)


OTHER_ARGUMENTS_IN_THE_STANDARD = ["outer", "squeeze", "take", "tensordot"]
CLASS_MODULES = [f"nl.{module}" for module in name_hints.MODULES if module not in ("array_api", "visualize")]


@pytest.mark.parametrize("library", NAMES)
def test_the_list_of_a_library_has_a_hundred_names(library: str) -> None:
    rows = NAMES[library].strip().splitlines()
    assert len({*rows}) == len(rows) == 100


@each("library, row", ROWS)
@pytest.mark.filterwarnings("ignore:.*NaN")
def test_a_name_that_people_type_first_works_or_the_error_says_what_does(
    library: str, row: str, scope: dict[str, Any]
) -> None:
    call, _, reference = row.removesuffix(" ~").partition(" = ")
    expected = eval(reference, numpy_scope(scope)) if reference else None
    scope["weights"] = scope["model"].get_weights()
    if not call.startswith(LIBRARIES):
        check(call, scope, expected)
        return
    path, arguments = re.fullmatch(r"([\w.]+)(.*)", call, re.DOTALL).groups()  # type: ignore[union-attr]
    modules, name = path.split(".")[1:-1], path.rpartition(".")[2]
    for module in modules:
        check(f"nl.{module}", scope, None)
    check(f"nl.{name}{arguments}", scope, expected)
    if arguments:
        check(f"be.{name}{arguments}", scope, expected)
    is_of_numpy = library == "numpy" or "numpy" in modules
    if is_of_numpy and arguments and name not in OTHER_ARGUMENTS_IN_THE_STANDARD:
        check(f"xp.{'linalg.' * ('linalg' in modules)}{name}{arguments}", array_scope(scope), expected)
    if name[0].isupper():
        for module in CLASS_MODULES:
            check(f"{module}.{name}", scope, None)


@each("name", [name for name in SYNONYMS if SYNONYMS[name]])
def test_the_names_of_one_function_are_one_method_of_the_backend_with_types(name: str) -> None:
    names = [name, *SYNONYMS[name]]
    assert len({getattr(nl.Backend, x) for x in names}) == 1
    stub = Path(nl.backend.__file__).with_name("op_methods.pyi").read_text()
    creation = ("array", "asarray", "tensor")  # of the class Backend, which needs no stub
    assert all(f"    def {x}(self, a" in stub for x in names if x not in creation)


# --- arguments ---
# A call with one argument that people type first; the error names the argument, or says to leave it out.

GEN_BACKEND = nl.gen_backend  # which the scope replaces
ARGUMENTS = """
be.sum(x, dim=0)
be.mean(x, dim=0)
be.std(x, dim=0)
be.argmax(x, dim=0)
be.softmax(x, dim=0)
be.sort(x, dim=0)
be.concat([x, x], dim=1)
be.stack([x, x], dim=0)
be.take(x, [0], dim=0)
be.sum(x, keepdim=True)
be.sum(x, dtype="float64")
be.std(x, ddof=1)
be.clip(x, 0, max_value=1)
be.onehot([1, 2], axis=0, num_classes=3)
be.zeros(size=(2, 2))
be.zeros(shape, device="cpu")
be.ones(shape, requires_grad=True)
be.rand(shape, seed=1)
t.sum(dim=0)
t.mean(keepdim=True)
tree.max(dim=0)
tree.std(unbiased=True)
xp.sum(array, dim=0)
xp.mean(array, keepdim=True)
xp.concat([array, array], dim=0)
xp.zeros(shape, requires_grad=True)
array.sum(dim=0)
gen_backend("cpu", seed=1)
gen_backend(device="cpu")
gen_backend("cpu", dtype="float32")
layers.Affine(units=10)
layers.Affine(out_features=10)
layers.Affine(10, in_features=3)
layers.Affine(10, input_shape=3)
layers.Affine(10, use_bias=True)
layers.Affine(10, kernel_initializer="glorot")
layers.Affine(10, kernel_regularizer="l2")
layers.Conv(filters=8)
layers.Conv(kernel_size=3)
layers.Conv((3, 3, 8), stride=2)
layers.Conv((3, 3, 8), dilation_rate=2)
layers.Conv((3, 3, 8), in_channels=2)
layers.Pooling(pool_size=2)
layers.Pooling(2, stride=2)
layers.Dropout(p=0.5)
layers.Dropout(rate=0.5)
layers.LSTM(units=3)
layers.LSTM(hidden_size=3)
layers.LSTM(3, return_sequences=True)
layers.LSTM(3, num_layers=2)
layers.LSTM(3, batch_first=True)
layers.LSTM(3, bidirectional=True)
layers.LSTM(3, dropout=0.1)
layers.LookupTable(embedding_dim=4, num_embeddings=3)
layers.LookupTable(3, output_dim=4)
layers.MultiHeadAttention(num_heads=2)
layers.TransformerBlock(4, hidden=8, nhead=2)
layers.BatchNorm(momentum=0.1)
layers.BatchNorm(epsilon=0.1)
optimizers.Adam(lr=0.1)
optimizers.Adam(betas=(0.9, 0.99))
optimizers.Adam(eps=0.1)
optimizers.Adam(weight_decay=0.1)
optimizers.Adam(clipnorm=1)
optimizers.AdamW(weight_decay=0.1)
optimizers.GradientDescentMomentum(0.1, momentum=0.9)
optimizers.RMSProp(rho=0.9)
optimizers.CosineSchedule(T_max=3)
optimizers.PowerSchedule(3, gamma=0.1)
model.fit(X, y, verbose=0)
model.fit(X, y, loss="cross_entropy")
model.fit(X, y, n_epochs=1)
model.fit(X, y, lr=0.1)
model.fit(X, y, val_data=(X, y))
model.fit(X, target=y)
model.fit(X, y, seed=0)
model.fit(X, y, device="cpu")
model.predict(X, verbose=0)
model.evaluate(X, y, verbose=0)
model.evaluate(X, y, metric="accuracy")
nl.data.ArrayIterator(X, y, num_classes=3)
nl.data.ArrayIterator(X, y, nclass=3, batch_size=2)
nl.data.ArrayIterator(X, y, nclass=3, drop_last=True)
nl.data.ArrayIterator(X, y, nclass=3, num_workers=2)
nl.callbacks.EarlyStop(restore_best_weights=True)
nl.callbacks.ReduceOnPlateau(min_lr=0.1)
nl.callbacks.SerializeModelCallback(filepath="m.neon")
initializers.Gaussian(std=0.1)
initializers.Uniform(0, maxval=1)
initializers.Constant(value=0.1)
transforms.Rectlin(negative_slope=0.1)
transforms.Softmax(dim=0)
transforms.CrossEntropyMulti(reduction="mean")
transforms.CrossEntropyMulti(from_logits=True)
""".strip().splitlines()


@each("call", ARGUMENTS)
def test_the_error_of_an_argument_that_people_type_first_says_what_to_pass(call: str, scope: dict[str, Any]) -> None:
    scope |= {"layers": layers, "optimizers": optimizers, "initializers": initializers, "transforms": transforms}
    scope["gen_backend"] = GEN_BACKEND
    scope["array"] = scope["xp"].asarray(scope["values"])
    call = call.replace("y, ", "y, epochs=1, ") if "model.fit" in call and "epochs" not in call else call
    with pytest.raises(TypeError) as caught:
        run(call, scope)
    head, name, value = re.fullmatch(r"(.*?\(?(?:, )?)(\w+)=((?:(?!=).)*)\)", call).groups()  # type: ignore[union-attr]
    message = str(caught.value)
    assert f"got {name}" in message
    if renamed := re.search(r"Did you mean '(\w+)'(?:, as in (.*))?\?$", message):
        example = (renamed[2] or "").partition(", which")[0].partition(" for ")[0]
        run(f"{head}{example or f'{renamed[1]}={value}'})", scope)
    else:
        reason = re.search(r"Leave it out: (.*)\.$", message)
        assert reason, message
        run(f"{head.removesuffix(', ')})", scope)
        if code := reason[1].partition(": ")[2]:
            run(code, scope)


@pytest.mark.parametrize("name", [name for names in name_hints.CALLBACK.values() for name in names.split()])
def test_a_callback_with_an_event_of_another_library_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"got {name}, which is never called. Define on_") as caught:
        type("Own", (nl.callbacks.Callback,), {name: lambda self, *args: None})
    event, parameters = re.search(r"Define (\w+)\((.*)\)\.$", str(caught.value)).groups()  # type: ignore[union-attr]
    signature = inspect.signature(getattr(nl.callbacks.Callback, event))
    assert ", ".join([*signature.parameters][1:]) == parameters


# --- all hints ---


def test_the_functions_of_the_array_api_that_are_not_methods_of_arrays_are_in_the_error() -> None:
    xp, hinted = nl.array_api, 0
    x = xp.ones((3, 3))
    functions = {name: vars(module)[name] for module in (xp.linalg, xp) for name in module.__all__}
    for name in functions.keys() - {*dir(x), *" ".join(TABLES["x"].values()).split()}:
        function = functions[name]
        if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") in ("x", "x1"):
            with pytest.raises(AttributeError) as caught:
                getattr(x, name)
            (way_out,) = ways_out(f"x.{name}", str(caught.value))
            called, arguments = re.fullmatch(r"(.*)\((.*)\)", way_out).groups()  # type: ignore[union-attr]
            assert eval(called) is function
            inspect.signature(function).bind(*arguments.split(", "))
            hinted += 1
    assert hinted > 80


TABLES = {
    "nl": name_hints.NAMESPACE, "be": name_hints.BACKEND, "xp": name_hints.ARRAY_API, "t": name_hints.OPERAND,
    "tree": name_hints.OPERAND, "x": name_hints.ARRAY, "model": name_hints.MODEL, "layer": name_hints.LAYER,
    "block": name_hints.LAYER_LIST, "optimizer": name_hints.OPTIMIZER, "schedule": name_hints.SCHEDULE,
    "data": name_hints.DATA, "dataset": name_hints.DATASET, "history": name_hints.HISTORY,
    "cost": name_hints.COST, "generalized_cost": name_hints.GENERALIZED_COST,
    "metric": name_hints.METRIC, "transform": name_hints.TRANSFORM, "initializer": name_hints.INITIALIZER,
    "autodiff": name_hints.AUTODIFF, "compiled": name_hints.JIT, "rng": name_hints.GENERATOR,
}  # fmt: skip


@pytest.mark.parametrize("owner", TABLES)
@pytest.mark.filterwarnings("ignore:.*NaN")
def test_what_a_hint_says_to_use_works(owner: str, scope: dict[str, Any]) -> None:
    scope["weights"] = scope["layer" if owner == "layer" else "model"].get_weights()
    if owner in ("x", "xp"):
        variable = scope["xp"].variable(scope["values"])
        scope = array_scope(scope) | {"x": variable, "f": scope["xp"].exp(variable)}
    if owner in ("cost", "generalized_cost", "metric"):
        scope["y"] = scope["x"]  # outputs
    names = [name for names in TABLES[owner].values() for name in names.split()]
    works = [name for name in names if check(f"{owner}.{name}", scope, None)]
    assert not [name for name in works if owner != "t" or hasattr(scope["tree"], name)]  # else it needs no hint
    assert len({*names}) == len(names) > 2
    assert {*works} == {*names} & {*dir(scope[owner])}


MODULE_NAMES = {
    "neonlite": "tensor",
    "neonlite.layers": "Dense",
    "neonlite.optimizers": "SGD",
    "neonlite.array_api": "t",
}


@pytest.mark.parametrize(("module", "name"), MODULE_NAMES.items())
def test_a_module_lacks_a_name_with_a_hint_and_an_import_of_it_shows_the_hint(module: str, name: str) -> None:
    owner = importlib.import_module(module)
    assert not hasattr(owner, name)
    assert getattr(owner, name, None) is None
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    for statement in (f"from {module} import {name}", f"from {module} import __name__, {name} as other"):
        with pytest.raises(ImportError, match=f"^cannot import name '{name}' from '{module}'. Use ") as imported:
            exec(statement, {})
        assert str(imported.value).partition(". ")[2] == str(caught.value).partition(". ")[2]


LARGE = np.array([[-1000.0, 2.0], [1000.0, 1001.0]])
STABLE: dict[str, tuple[NumPyArray, NumPyArray]] = {  # the values for large numbers, and the gradients of their sum
    "xp.softmax": (np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros((2, 2))),
    "xp.logsumexp": (np.array(1001 + np.log1p(np.exp(-1))), np.array([[0, 0], [1, np.e]]) / (1 + np.e)),
    "xp.sigmoid": (np.array([[0.0, 1 / (1 + np.exp(-2))], [1.0, 1.0]]), np.array([[0, 0.10499359], [0, 0]])),
    "be.log_sigmoid": (
        np.array([[-1000.0, -np.log1p(np.exp(-2))], [0, 0]]),
        np.array([[1, 1 / (1 + np.exp(2))], [0, 0]]),
    ),
}


@pytest.mark.parametrize("code", STABLE)
def test_the_formula_of_a_hint_neither_overflows_nor_has_a_gradient_of_nan(code: str) -> None:
    be = nl.gen_backend("cpu", datatype="float64")
    xp = be.array_api
    x = xp.variable(LARGE)
    with pytest.raises(AttributeError) as caught:
        eval(code, {"be": be, "xp": xp})
    (way_out,) = ways_out(code, str(caught.value))
    value = xp.asarray(eval(way_out, {"be": be, "xp": xp, "x": x if code.startswith("xp.") else x.operand}))
    np.testing.assert_allclose(value.numpy(), STABLE[code][0], rtol=1e-12)
    gradient = nl.Autodiff(xp.sum(value)).get_grad_asnumpyarray(x)
    np.testing.assert_allclose(gradient, STABLE[code][1], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("table", ["be", "xp"])
def test_the_random_numbers_of_a_hint_are_the_same_at_each_read(table: str) -> None:
    be = nl.gen_backend("cpu", rng_seed=0)
    scope = {"be": be, "xp": be.array_api, "np": np, "shape": (2, 3), "x": be.ones((2, 3))}
    hints = [hint for hint in TABLES[table] if re.search(r"be\.rand|xp\.random.*size=shape", hint)]
    assert len(hints) >= 2
    for code in [code for hint in hints for code in hint.split(" or ")]:
        x = eval(code, scope)
        np.testing.assert_array_equal(x.numpy(), x.numpy())
        assert len({*x.numpy().ravel()}) > 1


def test_the_hint_for_jit_compiles_a_function(scope: dict[str, Any]) -> None:
    with pytest.raises(AttributeError) as caught:
        eval("be.jit", scope)
    (way_out,) = ways_out("be.jit", str(caught.value))
    x = scope["be"].ones((1, 2))
    np.testing.assert_array_equal(eval(way_out, scope)(lambda x: x + 1)(x).get(), [[2, 2]])


@pytest.mark.parametrize("name", ["vstack", "hstack", "column_stack", "inner", "ptp", "cumsum"])
def test_what_a_hint_says_for_a_function_of_numpy_is_right_for_vectors_too(name: str) -> None:
    xp = nl.gen_backend("cpu").array_api
    x = xp.asarray([1.0, 2.0, 4.0])
    with pytest.raises(AttributeError) as caught:
        getattr(xp, name)
    (way_out,) = ways_out(f"xp.{name}", str(caught.value))
    value = eval(way_out, {"xp": xp, "np": np, "x": x, "y": x})
    function, a = getattr(np, name), x.numpy()
    expected = function([a, a]) if "stack" in name else function(a, a) if name == "inner" else function(a)
    assert isinstance(value, nl.array_api.Array)
    assert value.shape == expected.shape
    np.testing.assert_array_equal(value.numpy(), expected)
