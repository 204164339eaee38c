"""Hints in errors for names of Keras, PyTorch and scikit-learn: the class or method of neonlite to use."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

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
METHODS = {
    "fit, which takes cost= and optimizer=": "compile train train_on_batch partial_fit",
    "evaluate": "score test",
    "predict": "transform",
    "model(x) or predict": "call forward",
    "bprop": "backward",
    "save_params(path)": "dump save save_weights to_file",
    "Model(path) or load_params(path)": "load load_model load_weights",
    "get_weights() or save_params(path)": "state_dict",
    "load_params(path)": "load_state_dict",
    "layers.parameters": "parameters trainable_weights weights",
    "gen_backend(runtime) before you create the model": "cpu cuda to",
}

OPERAND_METHODS = {  # what to use: attributes of NumPy and PyTorch; {t} is the operand, {name} the attribute
    "be.{name}({t}, ...)": (
        "argsort cholesky cumulative_prod cumulative_sum det dot inv logsumexp matmul searchsorted softmax solve sort "
        "take_along_axis tril triu"
    ),
    "{t} @ x": "mm bmm",
    "be.cumulative_sum({t}, axis)": "cumsum",
    "be.cumulative_prod({t}, axis)": "cumprod",
    "be.einsum": "inner outer tensordot trace diagonal vdot",
    "out[:] = value, with a tensor out": "fill put itemset set",
    "{t}.reshape(shape), or be.zeros for more elements": "resize squeeze unsqueeze expand_dims view",
    "be.transpose({t}, axes)": "swapaxes moveaxis permute permute_dims",
    "be.broadcast_to, be.concat or be.take": "repeat tile expand",
    "be.where(mask, a, b)": "choose putmask masked_fill",
    "be.take({t}, indices, axis)": "take gather index_select compress",
    "{t}; all dtypes are real": "real imag conj conjugate",
    "{t}.astype('float64')": "double",
    "{t}.astype('float32')": "float",
    "{t}.astype('int64')": "long int",
    "{t}.astensor(), a new tensor": "copy clone",
    "nl.Autodiff(cost, be).get_grad_tensor({t})": "backward grad requires_grad requires_grad_",
    "{t}.get(), a NumPy array": "cpu detach to_numpy values data flat ctypes base",
    "{t}.get().{name}, of a NumPy array": (
        "argpartition byteswap dump dumps nonzero partition ptp "
        "tobytes tofile getfield setflags setfield flags itemsize strides nbytes newbyteorder"
    ),
}


def find_class(name: str) -> str | None:
    """Return what to use instead of a name, after "neonlite.", or None if it is unknown."""
    for counterpart, names in CLASSES.items():
        if name in names.split():
            return counterpart
    return next(
        (f"{m}.{name}" for m in MODULES if name in getattr(import_module(f"neonlite.{m}"), "__all__", ())), None
    )


def module_getattr(module: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``, whose error says where a name is, or what it is called in neonlite.

    Parameters
    ----------
    module : str
        The name of the module.
    """

    def __getattr__(name: str) -> object:
        counterpart = None if name.startswith("_") else find_class(name)
        if counterpart is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # an AttributeError would not reach the user of "from module import name"
        raise ImportError(f"{module} has no {name}. Use neonlite.{counterpart}.")

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
    similar = get_close_matches(name, known, 1)
    counterpart = ATTRIBUTES.get(name, "")
    found = counterpart if counterpart in known else similar[0] if similar else ""
    return f"Set {found}." if found else "Only attributes of your own classes may have any name."


def method_error(obj: object, name: str) -> AttributeError:
    """Return the exception for a method that a model does not have."""
    kind = type(obj).__name__
    for counterpart, names in METHODS.items():
        if name in names.split():
            return AttributeError(f"{kind} has no {name}. Use {counterpart}.")
    return AttributeError(f"{kind!r} object has no attribute {name!r}")
