"""The commands except train, which use a saved network or the networks of the zoo; the output of all commands."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from neonlite.backend import gen_backend
from neonlite.backend.runtimes import info
from neonlite.files import check_output, check_writable, encodable, printable, same_file, write_atomic, write_output
from neonlite.messages import did_you_mean
from neonlite.version import __version__

# --- output: texts, warnings and errors, with what a terminal cannot print escaped ---


def flush_streams(status: int) -> int:
    """Flush standard output and error; return the exit status, or that of a write error of standard output."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            print_error(f"neonlite: {error}")
        status = status or (141 if isinstance(error, BrokenPipeError) else 1)
    try:
        if sys.stderr:
            sys.stderr.flush()
    except OSError:  # as of a terminal that was closed
        discard(sys.stderr)
    return status


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written discard its text: Python flushes it at exit, and fails with status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def format_error(error: Exception) -> str:
    """Return the message of an error; with the type and a hint if the error is unexpected."""
    if isinstance(error, MemoryError):
        return str(error) or "out of memory. Reduce --batch-size."
    if isinstance(error, (OSError, ImportError, ValueError, IndexError, RuntimeError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}. Set NEONLITE_DEBUG=1 in the environment to print the traceback."


def format_message(message: str, args: argparse.Namespace) -> str:
    """Return a message that names the CSV file instead of its model; control characters of options are escaped."""
    dataset = getattr(args, "dataset", None)
    if isinstance(dataset, Path) and message.startswith(model_call := f"{dataset.stem}.fit: "):
        message = f"{dataset}: {message.removeprefix(model_call)}"
    for value in vars(args).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str | Path):
                message = message.replace(str(part), printable(part, ""))
    return message


def say(*texts: object, end: str = "\n") -> None:
    """Print texts that may come from a file: control characters, and those that it cannot encode, are escaped."""
    print(*(encodable(printable(text), sys.stdout) for text in texts), end=end, flush=not end.endswith("\n"))


def print_error(message: str) -> None:
    """Print a message to standard error, if it is open."""
    if sys.stderr:
        with suppress(OSError):
            print(encodable(printable(message), sys.stderr), file=sys.stderr)


def connected() -> Any:
    """Return the communicator of this process if it is one of several, else None."""
    module = sys.modules.get("neonlite.distributed.communicator")
    return module.world() if module is not None and module.is_distributed() else None


@contextmanager
def print_warnings(args: argparse.Namespace) -> Iterator[None]:
    """Print each warning as one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: print_error(
            f"neonlite: warning: {format_message(str(message), args)}"
        )
        yield


def format_option(name: str) -> str:
    """Return the option of an attribute of the parsed arguments."""
    return f"--{name.replace('_', '-')}"


# --- eval, predict and sample, which use a saved network ---

MAX_MATRIX_CLASSES = 20  # of a printed confusion matrix; a wider one does not fit a terminal
MAX_MATRIX_LABEL = 16  # characters


def format_metrics(model: Any, X: Any, y: Any) -> str:
    """Return metrics of rows as text: with a confusion matrix for classes."""
    from neonlite.transforms import ConfusionMatrix

    rows = f"on {len(y)} row{'s' * (len(y) != 1)}"
    if model.classes is None:
        return ", ".join(f"{name} {value:.4g}" for name, value in model.evaluate(X, y).items()) + f" {rows}"
    accuracy, matrix = model.evaluate(X, y, ["accuracy", ConfusionMatrix()]).values()
    result = f"accuracy {100 * accuracy:.2f} % {rows}"
    if len(matrix) > MAX_MATRIX_CLASSES:
        return result
    labels = [printable(label, "") for label in model.classes]
    labels = [x if len(x) <= MAX_MATRIX_LABEL else f"{x[: MAX_MATRIX_LABEL - 1]}…" for x in labels]
    width = max(len(f"{matrix.max():.0f}"), *map(len, labels))
    lines = [["", *labels], *([label, *(f"{n:.0f}" for n in row)] for label, row in zip(labels, matrix, strict=True))]
    text = "\n".join("  ".join(x.rjust(width) for x in line) for line in lines)
    return f"{result}\nconfusion matrix (rows: true classes, columns: predicted classes)\n{text}"


def load_data(
    name: str, path: Any, augment: Any = None, metadata: dict[str, Any] | None = None, shrink_batch: bool = True
) -> tuple[Any, Any, Any]:
    """Return a data set with its training set and validation set.

    ``metadata``: that of a recipe or a model, which holds the vocabulary and the time steps of a text.
    ``shrink_batch``: whether to reduce the batch size if a text has too few characters.
    """
    from neonlite.backend import current_backend
    from neonlite.data import DATASETS
    from neonlite.data.corpora import load_corpus

    if name == "text":
        options = {key: metadata[key] for key in ("vocab", "time_steps") if metadata and key in metadata}
        if path is None and metadata and "text" in metadata:
            raise ValueError(
                f"expected the text that the network was trained on, {metadata['text']}. Pass it by -w PATH."
            )
        corpus = load_corpus(path, **options)
        if shrink_batch:
            limit = (min(map(len, corpus.texts.values())) - 1) // corpus.time_steps
            current_backend().bsz = max(1, min(current_backend().bsz, limit))
        return corpus, *corpus.iterators()
    dataset = DATASETS[name](path)
    return dataset, *dataset.iterators(augment=augment)


def make_metric(name: str) -> Any:
    """Return the metric for a data set."""
    from neonlite.transforms import Accuracy, BitsPerCharacter

    return BitsPerCharacter() if name == "text" else Accuracy()


def format_evaluation(name: str, model: Any, valid_set: Any) -> str:
    """Evaluate a network on a validation set, and return the result as text."""
    value = model.eval(valid_set, make_metric(name))[0]
    if name == "text":
        return f"{value:.3f} bits per character on {valid_set.ndata * valid_set.time_steps:,} characters"
    return f"accuracy {100 * value:.2f} % on {valid_set.ndata} rows"


def run_eval(args: argparse.Namespace) -> None:
    """Evaluate a saved network."""
    from neonlite.layers.buffers import num_features
    from neonlite.models import Model
    from neonlite.models.training_state import TrainingState
    from neonlite.models.zoo import RECIPES

    be = gen_backend(args.backend, batch_size=TrainingState.read(args.file).get_field(int, "backend", "batch_size"))
    model = Model(args.file)
    if isinstance(args.dataset, Path):
        say(evaluate_csv(args, model))
        return
    if args.dataset is None and "target" in model.metadata:
        raise ValueError(f"{args.file}: expected a CSV file to evaluate on: neonlite eval {args.file} data.csv")
    name = args.dataset or model.name.split(".")[0]
    if name not in RECIPES:
        raise ValueError(f"{args.file}: the checkpoint does not name its data set. Pass one of {', '.join(RECIPES)}.")
    dataset, _, valid_set = load_data(name, args.data_dir, metadata=model.metadata)
    shape = valid_set.shape if name == "text" else dataset.lshape
    if num_features(model.layers.in_shape) != num_features(shape):
        raise ValueError(
            f"{args.file}: expected inputs of shape {model.layers.in_shape}, got {name} with inputs {shape}."
        )
    if name != "text":
        be.bsz = min(128, valid_set.ndata)
    say(format_evaluation(name, model, valid_set))


def check_csv_model(args: argparse.Namespace, model: Any) -> str:
    """Return the name of the target. Raise ValueError unless a model was trained on the columns of a table."""
    from neonlite.encoders.inputs import TableEncoder

    target = model.metadata.get("target", "prediction")
    if not isinstance(model.input_encoder, TableEncoder) or model.target_encoder is None or not isinstance(target, str):
        raise ValueError(
            f"{args.file}: expected a network trained on a table, got another one. Use a checkpoint of neonlite train "
            "data.csv --save FILE."
        )
    return target


def evaluate_csv(args: argparse.Namespace, model: Any) -> str:
    """Return metrics of a network for the rows of a CSV file."""
    from neonlite.data.csv_files import encoded_kinds, read_csv

    target, encoder = check_csv_model(args, model), model.input_encoder
    kinds = {target: "any" if model.classes is None else "text", **encoded_kinds(encoder)}
    table = read_csv(args.dataset, kinds.get)
    return format_metrics(model, table.inputs(encoder), table.targets(target, model.target_encoder))


def run_predict(args: argparse.Namespace) -> None:
    """Print the predictions of a network for the rows of a CSV file."""
    from neonlite.data.csv_files import encoded_kinds, format_csv, read_csv
    from neonlite.models import Model

    if args.output:
        check_output("--output", args.output)
        for what, path in ("the data", args.dataset), ("the checkpoint", args.file):
            if same_file(path, args.output):
                raise ValueError(f"--output and {what} are one file, {path}; expected two files")
    elif sys.stdout is None:
        raise OSError("expected an open standard output, got a closed one. Pass --output FILE")
    gen_backend(args.backend)
    model: Any = Model(args.file, weights_only=True)
    header = [check_csv_model(args, model)]
    if args.proba and model.classes is None:
        raise ValueError(f"{args.file}: expected a network that predicts classes for --proba, got numbers")
    encoder = model.input_encoder
    X = read_csv(args.dataset, encoded_kinds(encoder).get).inputs(encoder)
    if args.proba:
        header, rows = [str(label) for label in model.classes], model.predict_proba(X)
    else:
        rows = (model.predict(X) if model.classes is None else model.predict_classes(X)).reshape(-1, 1)
    text = format_csv([header, *(map(str, row) for row in rows)], args.safe_cells)
    if args.output:
        write_output(args.output, text.encode())
    elif sys.stdout and sys.stdout.isatty():
        say(text, end="")
    elif sys.stdout:  # the bytes of --output, whatever the encoding of standard output is
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def run_sample(args: argparse.Namespace) -> None:
    """Generate text with a saved network."""
    from neonlite.models import Model
    from neonlite.models.generation import sample

    gen_backend(args.backend)
    model = Model(args.file, weights_only=True)
    vocab = model.metadata.get("vocab")
    if not vocab or not isinstance(vocab, list) or not all(isinstance(token, str) for token in vocab):
        raise ValueError(
            f"{args.file}: expected a checkpoint with a vocabulary, got none. "
            "Use one of neonlite train text --save FILE."
        )
    prompt = args.prompt or ("\n" if "\n" in vocab else vocab[0])
    index = {token: i for i, token in enumerate(vocab)}
    unknown = sorted({character for character in prompt if character not in index})
    if unknown:
        raise ValueError(f"--prompt: expected characters of the vocabulary, got {', '.join(map(repr, unknown))}.")
    say(args.prompt, end="")
    prompt_ids = [index[character] for character in prompt]
    for token_id in sample(model, prompt_ids, args.length, args.temperature, args.seed or 0):
        if token_id >= len(vocab):
            raise ValueError(
                f"{args.file}: expected a network with as many outputs as the vocabulary, {len(vocab)}, got more."
            )
        say(vocab[token_id], end="")
    say()


# --- info, draw and bench: what is installed, and the structure and the speed of networks ---

EXTRA_PACKAGES = {  # extra -> package
    "viz": "matplotlib",
    "hdf5": "h5py",
    "datasets": "pooch",
    "tensorboard": "tensorboardX",
    "sklearn": "scikit-learn",
    "mpi": "mpi4py",
    "notebook": "notebook",
}


def make_optimizer(name: str, rate: float, epochs: int) -> Any:
    """Return an optimizer with a cosine schedule."""
    from neonlite import optimizers

    schedule = optimizers.CosineSchedule(epochs)
    if name == "sgd":
        return optimizers.GradientDescentMomentum(rate, 0.9, schedule=schedule)
    make = {"adam": optimizers.Adam, "adamw": optimizers.AdamW, "rmsprop": optimizers.RMSProp}[name]
    return make(learning_rate=rate, schedule=schedule)


def run_info(args: argparse.Namespace) -> None:
    """Print versions, runtimes and installed extras."""
    say(f"neonlite {__version__}, Python {sys.version.split()[0]}, NumPy {version('numpy')}")
    say(f"\nruntimes:\n{info()}\n\nextras:")
    for extra, package in EXTRA_PACKAGES.items():
        try:
            status = f"yes  {package} {version(package)}"
        except PackageNotFoundError:
            status = f'no   pip install "neonlite[{extra}]"'
        say(f"{extra:<11}  {status}")


def run_draw(args: argparse.Namespace) -> None:
    """Print the summary of a network."""
    from neonlite.layers import Sequential
    from neonlite.models import Model
    from neonlite.models.zoo import MODELS

    gen_backend(args.backend, batch_size=args.batch_size or 128)
    if args.model not in MODELS and Path(args.model).is_file():
        say(Model(args.model, weights_only=True).summary())
        return
    say(Sequential(make_network(args.model), name=args.model).summary(get_input_shape(args)))


def make_network(name: str) -> Any:
    """Return the layers of a network of the zoo."""
    from neonlite.models.zoo import MODELS

    if name not in MODELS:
        expected = f"a file or one of the networks {', '.join(MODELS)}"
        raise ValueError(f"expected {expected}, got {name}.{did_you_mean(name, MODELS)}")
    return MODELS[name]()


def get_input_shape(args: argparse.Namespace) -> int | tuple[int, ...]:
    """Return the shape of the inputs: (C, H, W), or F."""
    sizes = args.shape or args.sizes
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def run_bench(args: argparse.Namespace) -> None:
    """Measure the time of training steps."""
    from neonlite.data import ArrayIterator
    from neonlite.models import Model
    from neonlite.transforms import CrossEntropyMulti

    names = [args.backend] if args.backend else [runtime.name for runtime in info() if runtime.is_usable]
    names = [name for name in names if name != "strict" or args.backend]  # the strict runtime is slow, for debugging
    shape, n = get_input_shape(args), args.batch_size or 128
    draw = random.Random(0).random
    rows = [[draw() for _ in range(math.prod(args.shape or args.sizes))] for _ in range(n)]
    say(f"milliseconds, medians of {args.iterations} steps of {n} rows of {shape}")
    say(f"{'':<24}{'forward':>10}{'backward':>10}{'step':>10}{'rows/s':>12}")
    results = []
    for model in args.models:  # raises errors before the measurements
        make_network(model)
    if args.json:
        check_writable("--json", args.json)
    for model in args.models or ["mlp", "lenet"]:
        for name in names:
            gen_backend(name, rng_seed=0, batch_size=n)
            data = ArrayIterator(rows, [i % 10 for i in range(n)], 10, lshape=shape)
            times = Model(make_network(model), data).benchmark(
                data, cost=CrossEntropyMulti(), optimizer=make_optimizer("adam", 1e-3, 1), niterations=args.iterations
            )
            fprop, bprop, step = (times[part]["median"] for part in ("fprop", "bprop", "iteration"))
            say(f"{f'{model} on {name}':<24}{fprop:>10.2f}{bprop:>10.2f}{step:>10.2f}{1000 * n / step:>12,.0f}")
            results.append({"model": model, "backend": name, "shape": shape, "batch_size": n, "ms": times})
    if args.json:
        write_atomic(args.json, f"{json.dumps(results, indent=1)}\n".encode())
