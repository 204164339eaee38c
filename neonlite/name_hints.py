"""Hints in errors for names of NumPy, PyTorch, Keras, JAX and scikit-learn: what to use in neonlite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn, TypeVar

T = TypeVar("T")

MODULES = (
    "array_api", "callbacks", "data", "distributed", "initializers", "layers", "models", "optimizers", "transforms",
    "visualize",
)  # fmt: skip

# names of other libraries: names in neonlite
CLASSES = {
    "layers.Affine": "Dense LazyLinear",
    "layers.Conv": "Conv1D Conv1d Conv2D Conv2d Convolution2D",
    "layers.Deconv": "Conv2DTranspose ConvTranspose2d",
    "layers.Pooling": "AveragePooling2D AvgPool2d MaxPool2d MaxPooling2D",
    "layers.Pooling('all', op='avg')": "AdaptiveAvgPool2d GlobalAveragePooling2D",
    "layers.BatchNorm": "BatchNorm1d BatchNorm2d BatchNormalization",
    "layers.LayerNorm": "LayerNormalization",
    "layers.Dropout": "Dropout1d Dropout2d SpatialDropout2D",
    "layers.LookupTable": "Embedding",
    "layers.Recurrent": "RNN SimpleRNN",
    "layers.BiLSTM": "Bidirectional",
    "layers.MultiHeadAttention": "MultiheadAttention",
    "layers.TransformerBlock": "TransformerEncoderLayer",
    "layers.MergeSum": "Add",
    "layers.MergeBroadcast": "Concatenate",
    "layers.Affine, which reads images too": "Flatten",
    "models.Model": "Functional Module NeuralNetwork",
    "optimizers.GradientDescentMomentum": "SGD",
    "optimizers.RMSProp": "RMSprop",
    "optimizers.StepSchedule": "MultiStepLR StepLR",
    "optimizers.CosineSchedule": "CosineAnnealingLR CosineDecay",
    "optimizers.ExpSchedule": "ExponentialDecay ExponentialLR",
    "transforms.Rectlin": "ReLU Relu",
    "transforms.Rectlin(slope=0.01)": "LeakyReLU LeakyRelu",
    "transforms.Explin": "ELU",
    "transforms.Logistic": "Sigmoid",
    "transforms.SiLU": "Swish",
    "transforms.MeanSquared": "MSELoss MeanSquaredError",
    "transforms.SmoothL1Loss": "Huber HuberLoss",
    "transforms.CrossEntropyMulti": "CategoricalCrossentropy CrossEntropyLoss NLLLoss SparseCategoricalCrossentropy",
    "transforms.CrossEntropyBinary": "BCELoss BCEWithLogitsLoss BinaryCrossentropy",
    "initializers.Gaussian": "Normal RandomNormal",
    "initializers.Uniform": "RandomUniform",
    "initializers.GlorotUniform": "XavierUniform",
    "initializers.Kaiming": "HeNormal HeUniform KaimingNormal KaimingUniform",
    "initializers.Constant": "Ones Zeros",
    "initializers.Orthonormal": "Orthogonal",
    "callbacks.EarlyStop": "EarlyStopping",
    "callbacks.ReduceOnPlateau": "ReduceLROnPlateau",
    "callbacks.SerializeModelCallback": "ModelCheckpoint",
    "callbacks.TensorBoardLogger": "SummaryWriter TensorBoard",
    "callbacks.TerminateOnNaN": "TerminateOnNan",
    "data.ArrayIterator": "DataLoader TensorDataset",
    "data.Flip": "RandomFlip RandomHorizontalFlip",
    "gen_backend": "device set_device",
    "backend.thread_pool.set_threads": "set_num_threads",
}
ARGUMENTS = {  # of other libraries: here
    "betas": "beta_1",
    "callback": "callbacks",
    "filters": "fshape",
    "hidden_size": "output_size",
    "kernel_initializer": "init",
    "kernel_size": "fshape",
    "loss": "cost",
    "lr": "learning_rate",
    "max_norm": "gradient_clip_norm",
    "momentum": "momentum_coef",
    "n_epochs": "epochs",
    "nb_epoch": "epochs",
    "out_features": "nout",
    "p": "dropout",
    "pool_size": "fshape",
    "rate": "dropout",
    "stride": "strides",
    "units": "nout",
    "use_bias": "bias",
    "weight_decay": "wdecay",
}
ATTRIBUTES = {"requires_grad": "trainable"} | ARGUMENTS  # of other libraries: here
# The tables below: what to use instead of names of other libraries, as Python code. " or " separates several, and a
# comment follows after ";". {t} is the name of the object, {name} that of the attribute.

MODEL = {
    "model.fit(X, y)": "compile partial_fit train train_on_batch",
    "model.evaluate(X, y)": "score test test_on_batch",
    "model.predict(X)": "predict_on_batch transform",
    "model(x) or model.predict(X)": "apply call forward",
    "model.bprop(error)": "backward",
    "model.bprop(error); it overwrites the gradients": "zero_grad",
    "model.save_params(path)": "dump export save save_weights to_file",
    "nl.Model(path) or model.load_params(path)": "from_pretrained load load_model",
    "model.get_weights() or model.save_params(path)": "named_parameters state_dict",
    "model.set_weights(weights) or model.load_params(path)": "load_state_dict",
    "model.layers.parameters": "parameters trainable_variables trainable_weights weights",
    "model.layers.num_parameters": "count_params num_params num_parameters",
    "model[name] or model[0]": "get_layer get_submodule",
    "list(model)": "children modules named_children named_modules",
    "nl.Model([*layers, nl.layers.Affine(10)])": "add add_module append",
    "model.initialize(shape)": "build configure",
    "model.copy()": "clone deepcopy",
    "model.layers.in_shape": "input input_shape",
    "model.layers.out_shape": "output output_shape",
    "from neonlite.models.sample import sample; for a language model": "generate sample",
    "nl.gen_backend(runtime); before you create the model": "cpu cuda device double float half to",
}
LAYER = {
    "layer(x) or layer.fprop(x)": "apply call forward",
    "layer.bprop(error)": "backward",
    "layer.configure(shape)": "build",
    "layer.W": "kernel weight",
    "layer.parameters": "trainable_variables trainable_weights variables weights",
    "layer.gradients": "grad grads",
    "layer.get_weights()": "named_parameters state_dict",
    "layer.set_weights(weights)": "load_state_dict",
    "layer.num_parameters": "count_params",
    "layer.in_shape": "input_shape",
    "layer.out_shape": "output_shape units",
}
OPTIMIZER = {
    "optimizer.optimize(model.layers_to_optimize, epoch=0)": "apply apply_gradients minimize step update",
    "optimizer.learning_rate": "lr",
    "optimizer.get_state()": "get_weights state_dict",
    "optimizer.set_state(state)": "load_state_dict set_weights",
    "model.bprop(error); it overwrites the gradients": "zero_grad",
    "nl.optimizers.MultiOptimizer({'default': optimizer})": "add_param_group param_groups",
}
HISTORY = {
    "history['loss'] or history.records": "history",
    "history.epochs('loss')": "epoch",
    "history.to_pandas()": "to_df to_frame",
}
DATA = {
    "nl.data.ArrayIterator(X, y, nclass=3)": "batch from_tensor_slices take",
    "next(iter(data))": "as_numpy_iterator get_batch next next_batch",
    "data.nbatches": "num_batches steps_per_epoch",
    "data.ndata": "num_examples num_samples",
    "nl.gen_backend(batch_size=3)": "batch_size",
}
BACKEND = {
    "be.array(values)": "as_tensor asarray constant tensor variable Variable",
    "be.array(values) or be.from_dlpack(a)": "from_numpy",
    "be.array(np.{name}(n))": "arange eye hamming identity",
    "be.array(np.{name}(0, 1, n))": "linspace logspace",
    "be.zeros(shape) + value": "full",
    "be.zeros_like(x) + value": "full_like",
    "be.rand(shape)": "random random_uniform uniform",
    "be.randn(shape)": "normal random_normal standard_normal",
    "be.rand(x.shape)": "rand_like",
    "be.randn(x.shape)": "randn_like",
    "nl.gen_backend(rng_seed=1)": "manual_seed seed",
    "nl.gen_backend(runtime)": "cuda device set_device",
    "be.concat([x, x], axis=0)": "cat concatenate vstack",
    "be.concat([x, x], axis=1)": "hstack",
    "be.transpose(x, axes)": "moveaxis permute permute_dims swapaxes",
    "be.reshape(x, shape)": "expand_dims flatten ravel squeeze unsqueeze view",
    "be.matmul(x, x)": "bmm mm",
    "be.einsum('ij,kj->ik', x, x)": "inner outer tensordot trace vdot",
    "be.max(x)": "amax",
    "be.min(x)": "amin",
    "be.max(x != 0)": "any",
    "be.min(x != 0)": "all",
    "be.sqrt(be.sum(be.square(x)))": "norm",
    "be.sum(x)": "add_n reduce_sum",
    "be.mean(x)": "average reduce_mean",
    "be.cumulative_sum(x, axis=0)": "cumsum",
    "be.cumulative_prod(x, axis=0)": "cumprod",
    "be.absolute(x)": "abs",
    "be.sgn(x)": "sign",
    "be.negative(x)": "neg",
    "be.power(x, 2)": "pow",
    "be.subtract(x, x)": "sub",
    "be.multiply(x, x)": "mul",
    "be.divide(x, x)": "div",
    "be.remainder(x, x)": "fmod mod",
    "be.rint(x) or x.round(2)": "around round round_",
    "be.reciprocal(be.sqrt(x))": "rsqrt",
    "be.finite(x)": "isfinite is_finite",
    "be.clip(x, 0, 1)": "clamp clip_by_value",
    "be.acos(x)": "arccos",
    "be.acosh(x)": "arccosh",
    "be.asin(x)": "arcsin",
    "be.asinh(x)": "arcsinh",
    "be.atan(x)": "arctan",
    "be.atan2(x, x)": "arctan2",
    "be.atanh(x)": "arctanh",
    "be.astype(x, 'float64')": "cast",
    "be.sort(x, descending=True)": "top_k topk",
    "be.onehot(indices, axis=0, nclass=3)": "one_hot",
    "be.take(x, indices, axis=0)": "embedding gather index_select",
    "be.where(x > 0, x, 0)": "masked_fill select",
    "be.sig(x)": "expit logistic sigmoid",
    "be.maximum(x, 0)": "relu",
    "be.maximum(x, 0.01 * x)": "leaky_relu",
    "be.where(x > 0, x, be.expm1(x))": "elu",
    "x * 0.5 * (1 + be.erf(x / 2**0.5))": "gelu",
    "x * be.sig(x)": "silu swish",
    "be.logaddexp(x, 0)": "softplus",
    "be.log(be.sig(x))": "log_sigmoid logsigmoid",
    "x - be.logsumexp(x, axis=0)": "log_softmax",
    "nl.layers.Conv or be.fprop_conv": "conv conv1d conv2d",
    "nl.layers.Pooling or be.fprop_pool": "avg_pool2d max_pool2d pool",
    "nl.layers.Dropout or be.make_binary_mask": "dropout",
    "nl.layers.BatchNorm": "batch_norm",
    "nl.transforms.CrossEntropyMulti": "cross_entropy softmax_cross_entropy",
    "be.mean(be.square(x - x))": "mse_loss",
    "nl.Autodiff(f, be).get_grad_tensor(x)": (
        "backward grad gradient gradients GradientTape jacobian jacrev value_and_grad vjp"
    ),
    "be.stop_gradient(x)": "detach no_grad",
    "x.shape": "shape",
    "np.{name}(x.get())": "median unique",
    "np.{name}(x.get(), 0.5)": "percentile quantile",
    "np.allclose(x, x)": "allclose array_equal isclose",
    "x.get()": "to_numpy",
    "be.array(np.load('x.npy'))": "load",
    "np.save('x.npy', x)": "save",
    "be.compile or be.plan": "jit",
}
NAMESPACE = {  # of the module neonlite; besides, the methods of Backend, and the names in BACKEND
    "nl.layers": "functional nn",
    "nl.optimizers": "optim optimizer",
    "nl.transforms": "activations losses metrics",
    "nl.data": "dataset datasets utils",
    "from neonlite.models import zoo": "applications model_zoo zoo",
    "nl.Model(path) or np.load(file)": "load load_model",
    "model.save_params(path) or np.save(file, x)": "save save_model",
    "be.backend_choices()": "list_devices list_physical_devices",
    "'{name}'; as in be.zeros(shape, dtype='{name}')": (
        "bfloat16 float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8"
    ),
}
OPERAND = {
    "be.{name}({t})": "argsort cholesky cumulative_prod cumulative_sum det inv logsumexp softmax sort tril triu",
    "be.{name}({t}, x)": "dot matmul solve",
    "be.searchsorted({t}.ravel(), x); of sorted values": "searchsorted",
    "be.{name}({t}, indices)": "take_along_axis",
    "{t} @ x": "bmm mm",
    "be.cumulative_sum({t}, axis=0)": "cumsum",
    "be.cumulative_prod({t}, axis=0)": "cumprod",
    "be.einsum('ij,kj->ik', {t}, x)": "diagonal inner outer tensordot trace vdot",
    "out[:] = value; with a tensor out": "assign copy_ fill fill_ itemset put set zero_",
    "out += value; with a tensor out": "add_ assign_add sub_ mul_",
    "{t}.reshape(shape)": "expand_dims resize squeeze unsqueeze view",
    "be.transpose({t}, axes)": "moveaxis permute permute_dims swapaxes t",
    "be.broadcast_to({t}, shape) or be.concat([{t}, {t}])": "expand repeat tile",
    "be.where(mask, {t}, value)": "choose masked_fill putmask",
    "be.take({t}, indices, axis=0)": "compress gather index_select take",
    "{t}; all dtypes are real": "conj conjugate imag real",
    "{t}.astype('float64')": "double",
    "{t}.astype('float32')": "float",
    "{t}.astype('float16')": "half",
    "{t}.astype('int64')": "int long",
    "{t}.astype(dtype)": "cast type",
    "{t}.clip(0, 1)": "clamp clip_by_value",
    "be.sig({t})": "sigmoid",
    "be.maximum({t}, 0)": "relu",
    "abs({t})": "abs",
    "-{t}": "neg",
    "{t} ** 2": "pow",
    "{t}.astensor(); a new tensor": "clone copy",
    "nl.Autodiff(f, be).get_grad_tensor(x)": "backward grad requires_grad requires_grad_",
    "be.stop_gradient({t})": "detach no_grad",
    "nl.gen_backend(runtime); before you create tensors": "cuda to",
    "{t}.get(); a NumPy array": "base cpu ctypes data flat numpy to_numpy values",
    "be.sqrt(be.sum(be.square({t})))": "norm",
    "{t}.max() - {t}.min()": "ptp",
    "{t}.get().{name}; of a NumPy array": (
        "argpartition byteswap dump dumps flags getfield itemsize nbytes nonzero partition "
        "setfield setflags strides tobytes tofile"
    ),
}


def look_up(table: dict[str, str], name: str) -> str | None:
    """Return what to use instead of a name, from one of the tables above, or None if it is unknown."""
    return next((counterpart for counterpart, names in table.items() if name in names.split()), None)


def find_class(name: str) -> str | None:
    """Return what to use instead of a name, after "neonlite.", or None if it is unknown."""
    return look_up(CLASSES, name) or next(
        (f"{m}.{name}" for m in MODULES if name in getattr(import_module(f"neonlite.{m}"), "__all__", ())), None
    )


def find_in_namespace(name: str) -> str | None:
    """Return what to use instead of a name of the module ``neonlite``, or None if it is unknown."""
    if (counterpart := look_up(NAMESPACE, name) or look_up(BACKEND, name)) is not None:
        return counterpart.replace("{name}", name)
    backend = sys.modules["neonlite"].Backend
    return f"be.{name}" if callable(getattr(backend, name, None)) else None


def module_getattr(module: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``, whose error says where a name is, or what it is called in neonlite.

    Parameters
    ----------
    module : str
        The name of the module.
    """

    def __getattr__(name: str) -> object:
        if not name.startswith("_"):
            # an AttributeError would not reach the user of "from module import name"
            if module == "neonlite" and (counterpart := find_in_namespace(name)) is not None:
                backend = ", with be = nl.gen_backend()" if "be." in counterpart else ""
                raise ImportError(f"{module} has no {name}. Use {counterpart}{backend}.")
            if (counterpart := find_class(name)) is not None:
                raise ImportError(f"{module} has no {name}. Use neonlite.{counterpart}.")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def attribute_hint(name: str, known: list[str]) -> str:
    """Return a sentence with the attribute to set instead of an unknown one.

    Parameters
    ----------
    name : str
        The unknown name.
    known : list of str
        The names that the object has.
    """
    from difflib import get_close_matches  # not loaded by ``import neonlite``

    similar = get_close_matches(name, known, 1)
    counterpart = ATTRIBUTES.get(name, "")
    found = counterpart if counterpart in known else similar[0] if similar else ""
    return f"Set {found}." if found else "Only objects of custom classes may have attributes of any name."


class MissingAttribute:
    """An attribute that the objects of a class do not have; the AttributeError says what to use.

    ``__getattr__`` could do this as well, but would slow down every other attribute.
    """

    def __init__(self, name: str, counterpart: str) -> None:
        self.name, self.counterpart = name, counterpart

    def __get__(self, obj: object, owner: type) -> NoReturn:
        counterpart = self.counterpart.replace("{name}", self.name)
        counterpart = counterpart.replace("{t}", "tree" if issubclass(owner, tuple) else "t")
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}. Use {counterpart}.")


def add_hints(table: dict[str, str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class to raise an AttributeError with a hint for the names of a table that it does not have.

    Parameters
    ----------
    table : dict
        {what to use: names}.
    """

    def decorate(cls: type[T]) -> type[T]:
        missing = {name: counterpart for counterpart, names in table.items() for name in names.split()}
        for name, counterpart in missing.items():
            if not hasattr(cls, name):
                setattr(cls, name, MissingAttribute(name, counterpart))
        cls.__dir__ = list_names  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def list_names(obj: object) -> list[str]:
    """Return the names of an object's attributes, without those of ``MissingAttribute``."""
    missing = {name for cls in type(obj).__mro__ for name, x in vars(cls).items() if type(x) is MissingAttribute}
    return [name for name in object.__dir__(obj) if name not in missing or hasattr(obj, name)]
