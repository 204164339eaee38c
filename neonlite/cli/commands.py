"""The commands train, eval, predict, sample, info, draw and bench, and their output."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, TextIO

import neonlite as nl
from neonlite import files, messages
from neonlite.backend import runtimes
from neonlite.files import check_writable, encodable, printable, same_file, write_atomic

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
    rows = f"on {len(y)} row{'s' * (len(y) != 1)}"
    if model.classes is None:
        return ", ".join(f"{name} {value:.4g}" for name, value in model.evaluate(X, y).items()) + f" {rows}"
    accuracy, matrix = model.evaluate(X, y, ["accuracy", nl.transforms.ConfusionMatrix()]).values()
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
    from neonlite.data.datasets import load_corpus

    if name == "text":
        options = {key: metadata[key] for key in ("vocab", "time_steps") if metadata and key in metadata}
        if path is None and metadata and "text" in metadata:
            raise ValueError(
                f"expected the text that the network was trained on, {metadata['text']}. Pass it by -w PATH."
            )
        corpus = load_corpus(path, **options)
        if shrink_batch:
            limit = (min(map(len, corpus.texts.values())) - 1) // corpus.time_steps
            nl.backend.current_backend().bsz = max(1, min(nl.backend.current_backend().bsz, limit))
        return corpus, *corpus.iterators()
    dataset = nl.data.DATASETS[name](path)
    return dataset, *dataset.iterators(augment=augment)


def make_metric(name: str) -> Any:
    """Return the metric for a data set."""
    return nl.transforms.BitsPerCharacter() if name == "text" else nl.transforms.Accuracy()


def format_evaluation(name: str, model: Any, valid_set: Any) -> str:
    """Evaluate a network on a validation set, and return the result as text."""
    value = model.eval(valid_set, make_metric(name))[0]
    if name == "text":
        return f"{value:.3f} bits per character on {valid_set.ndata * valid_set.time_steps:,} characters"
    return f"accuracy {100 * value:.2f} % on {valid_set.ndata} rows"


def run_eval(args: argparse.Namespace) -> None:
    """Evaluate a saved network."""
    from neonlite.layers.buffers import num_features
    from neonlite.models.training_state import TrainingState
    from neonlite.models.zoo import RECIPES

    be = nl.gen_backend(args.backend, batch_size=TrainingState.read(args.file).get_field(int, "backend", "batch_size"))
    model = nl.Model(args.file)
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

    if args.output:
        files.check_output("--output", args.output)
        for what, path in ("the data", args.dataset), ("the checkpoint", args.file):
            if same_file(path, args.output):
                raise ValueError(f"--output and {what} are one file, {path}; expected two files")
    elif sys.stdout is None:
        raise OSError("expected an open standard output, got a closed one. Pass --output FILE")
    nl.gen_backend(args.backend)
    model: Any = nl.Model(args.file, weights_only=True)
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
        files.write_output(args.output, text.encode())
    elif sys.stdout and sys.stdout.isatty():
        say(text, end="")
    elif sys.stdout:  # the bytes of --output, whatever the encoding of standard output is
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def run_sample(args: argparse.Namespace) -> None:
    """Generate text with a saved network."""
    from neonlite.models.generation import sample

    nl.gen_backend(args.backend)
    model = nl.Model(args.file, weights_only=True)
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
    schedule = nl.optimizers.CosineSchedule(epochs)
    if name == "sgd":
        return nl.optimizers.GradientDescentMomentum(rate, 0.9, schedule=schedule)
    make = {"adam": nl.optimizers.Adam, "adamw": nl.optimizers.AdamW, "rmsprop": nl.optimizers.RMSProp}[name]
    return make(learning_rate=rate, schedule=schedule)


def run_info(args: argparse.Namespace) -> None:
    """Print versions, runtimes and installed extras."""
    say(f"neonlite {nl.__version__}, Python {sys.version.split()[0]}, NumPy {version('numpy')}")
    say(f"\nruntimes:\n{runtimes.info()}\n\nextras:")
    for extra, package in EXTRA_PACKAGES.items():
        try:
            status = f"yes  {package} {version(package)}"
        except PackageNotFoundError:
            status = f'no   pip install "neonlite[{extra}]"'
        say(f"{extra:<11}  {status}")


def run_draw(args: argparse.Namespace) -> None:
    """Print the summary of a network."""
    from neonlite.models.zoo import MODELS

    nl.gen_backend(args.backend, batch_size=args.batch_size or 128)
    if args.model not in MODELS and Path(args.model).is_file():
        say(nl.Model(args.model, weights_only=True).summary())
        return
    say(nl.Sequential(make_network(args.model), name=args.model).summary(get_input_shape(args)))


def make_network(name: str) -> Any:
    """Return the layers of a network of the zoo."""
    from neonlite.models.zoo import MODELS

    if name not in MODELS:
        expected = f"a file or one of the networks {', '.join(MODELS)}"
        raise ValueError(f"expected {expected}, got {name}.{messages.did_you_mean(name, MODELS)}")
    return MODELS[name]()


def get_input_shape(args: argparse.Namespace) -> int | tuple[int, ...]:
    """Return the shape of the inputs: (C, H, W), or F."""
    sizes = args.shape or args.sizes
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def run_bench(args: argparse.Namespace) -> None:
    """Measure the time of training steps."""
    names = [args.backend] if args.backend else [runtime.name for runtime in runtimes.info() if runtime.is_usable]
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
            nl.gen_backend(name, rng_seed=0, batch_size=n)
            data = nl.data.ArrayIterator(rows, [i % 10 for i in range(n)], 10, lshape=shape)
            times = nl.Model(make_network(model), data).benchmark(
                data,
                cost=nl.transforms.CrossEntropyMulti(),
                optimizer=make_optimizer("adam", 1e-3, 1),
                niterations=args.iterations,
            )
            fprop, bprop, step = (times[part]["median"] for part in ("fprop", "bprop", "iteration"))
            say(f"{f'{model} on {name}':<24}{fprop:>10.2f}{bprop:>10.2f}{step:>10.2f}{1000 * n / step:>12,.0f}")
            results.append({"model": model, "backend": name, "shape": shape, "batch_size": n, "ms": times})
    if args.json:
        write_atomic(args.json, f"{json.dumps(results, indent=1)}\n".encode())


# --- train, on a data set or a CSV file, in one or several processes; it resumes and saves training ---

CSV_EPOCHS = 200
CSV_BATCH_SIZE = 32
CSV_RATE = 0.003
HIDDEN_SIZES = (64, 64)
VALIDATION_SPLIT = 0.2
MAX_INTEGER_CLASSES = 20  # different integers that are classes by default
CSV_OPTIONS = ("target", "task", "hidden", "validation_split", "ignore")  # of train, for CSV files only
RECIPE_OPTIONS = ("model", "data_dir")  # of train, for data sets only
CSV_SETTINGS = {  # option of train for a CSV file -> the types of its value; beside the target in a checkpoint
    "task": str | None,
    "ignore": list | None,
    "validation_split": float | int | None,
    "batch_size": int,
}


def run_train(args: argparse.Namespace) -> None:
    """Train a network on a data set or a CSV file."""
    from neonlite.models.training_state import check_replaceable

    if args.plot and not find_spec("matplotlib"):
        raise ImportError('--plot needs matplotlib: pip install "neonlite[viz]"')
    is_csv = isinstance(args.dataset, Path)
    unused = [option for option in (RECIPE_OPTIONS if is_csv else CSV_OPTIONS) if getattr(args, option) is not None]
    if unused:
        kind = "a CSV file" if is_csv else f"the data set {args.dataset}"
        raise ValueError(f"{', '.join(map(format_option, unused))} cannot be used with {kind}")
    if args.plot:
        args.plot = check_plot_path(args.plot)
    check_distinct_files(args)
    if args.save:
        check_replaceable("--save", args.save)
    if is_csv and args.processes > 1 and files.is_stream(args.dataset):
        raise ValueError(f"-n {args.processes}: expected a file, which each process reads; {args.dataset} is a FIFO")
    rank, size = join_processes(args)
    (train_on_csv if is_csv else train_on_dataset)(args, rank, size)


def join_processes(args: argparse.Namespace) -> tuple[int, int]:
    """Return the rank of this process and the number of processes; start them first if they do not exist yet.

    The first process exits when those that it has started have ended. Ranks other than 0 print nothing. After a
    restart, they resume from the checkpoint that was saved before.
    """
    communicator = nl.distributed.world()
    if communicator.size == 1 and args.processes > 1:
        if args.restarts and (args.save.exists() if args.save else not args.resume):
            got = f"{args.save}, which exists. To continue it, use --resume" if args.save else "none"
            raise ValueError(f"--restarts: expected a new file as --save, from which a restart resumes, got {got}")
        command = [sys.executable, "-m", "neonlite.cli", *args.command_line]
        sys.exit(nl.distributed.run(command, args.processes, args.hosts, args.restarts))
    for option in ("hosts", "restarts"):
        if getattr(args, option) and args.processes == 1:
            raise ValueError(f"--{option}: expected the number of processes, such as -n 4, got none")
    if args.restarts and args.save and args.save.exists():
        args.resume = args.save
    if communicator.rank:
        sys.stdout = sys.stderr = io.StringIO()
    return communicator.rank, communicator.size


def split_batch(batch_size: int, rank: int, size: int) -> int:
    """Return the part of a batch size that is that of a process."""
    if batch_size < size:
        raise ValueError(f"--batch-size: expected a row for each of {size} processes, got {batch_size}")
    return batch_size // size + (rank < batch_size % size)


def train_on_dataset(args: argparse.Namespace, rank: int, size: int) -> None:
    """Train a network on a data set by its recipe."""
    from neonlite.models.zoo import LANGUAGE_MODELS, MODELS, recipe

    name, batch_size, metadata = read_resume_file(args) if args.resume else (args.model, args.batch_size, {})
    settings = recipe(args.dataset, name)
    if (settings["model"] in LANGUAGE_MODELS) != (args.dataset == "text"):
        networks = LANGUAGE_MODELS if args.dataset == "text" else MODELS
        raise ValueError(
            f"expected a network for {args.dataset}, one of {', '.join(networks)}, got {settings['model']}."
        )
    be = nl.gen_backend(args.backend, rng_seed=args.seed or 0, batch_size=batch_size or settings["batch_size"])
    dataset, train_set, valid_set = load_data(
        args.dataset, args.data_dir, settings["augment"], metadata or settings, not batch_size
    )
    be.bsz = split_batch(be.bsz, rank, size)
    if args.resume:
        model = nl.Model(args.resume)
        optimizer, epochs = resume_optimizer(model.optimizer, args)
        run_label = str(args.resume)
    else:
        epochs = args.epochs or settings["epochs"]
        layers = (MODELS | LANGUAGE_MODELS)[settings["model"]](dataset.nclass)
        model = nl.Model(layers, name=f"{args.dataset}.{settings['model']}")
        model.metadata = {"vocab": dataset.vocab, "time_steps": dataset.time_steps} if args.dataset == "text" else {}
        if args.dataset == "text" and args.data_dir:
            model.metadata["text"] = args.data_dir.name
        optimizer = make_optimizer(args.optimizer or "adam", args.lr or settings["lr"], epochs)
        run_label = f"{settings['model']}, seed {be.rng_seed},"
    save, progress_bar = args.save or args.resume, not args.no_progress_bar
    callbacks = nl.callbacks.Callbacks(
        model, eval_set=valid_set, metric=make_metric(args.dataset), progress_bar=progress_bar, save_path=save
    )
    for callback in stopping_callbacks(args.patience):
        callbacks.add_callback(callback)
    say(f"{dataset!r}; {run_label} on {be.name}")
    start = time.perf_counter()
    with print_resume_command(args):
        model.fit(train_set, nl.transforms.CrossEntropyMulti(), optimizer, epochs, callbacks, distributed=size > 1)
    if rank:
        return
    check_finite(model, save)
    say(f"{format_evaluation(args.dataset, model, valid_set)}, after {format_training(model, start)}")
    finish_training(args, model, callbacks.history, save)


def stopping_callbacks(patience: int) -> list[Any]:
    """Return the callbacks that end training: for NaN, and for a validation cost that no longer falls."""
    return [nl.callbacks.TerminateOnNaN(), *([nl.callbacks.EarlyStop(patience)] if patience else [])]


def check_finite(model: Any, save: Path | None) -> None:
    """Raise RuntimeError if training ended with NaN or infinity."""
    nonfinite = model.nonfinite_weights()
    if nonfinite or not math.isfinite(model.step_cost):
        where = f" The model was saved to {save}.nan instead of {save}." if save and nonfinite else ""
        raise RuntimeError(f"training failed with NaN or infinity.{where} Reduce --lr.")


def format_training(model: Any, start: float) -> str:
    """Return the number of epochs, and the time since the start."""
    epochs = f"{model.epoch_index} epoch{'s' * (model.epoch_index != 1)}"
    return f"{epochs} in {time.perf_counter() - start:.1f} s"


def finish_training(args: argparse.Namespace, model: Any, history: Any, save: Path | None) -> None:
    """Save and plot the results of a training, and print which epoch has the weights, and the files."""
    costs = history.records.get("val_loss") if args.patience else None
    if costs:
        epoch, cost = min(costs, key=lambda record: (math.isnan(record[1]), record[1]))
        say(f"weights of epoch {epoch:.0f}, which has the lowest validation cost, {cost:.4g}")
    if save:
        model.save_params(save)  # with the best weights, and even if there was no epoch left to train
    say(f"model: {save or 'not saved; -s FILE saves it'}")
    if args.plot:
        history.plot(args.plot)
        say(f"plot: {args.plot}")


def train_on_csv(args: argparse.Namespace, rank: int, size: int) -> None:
    """Train a network on the rows of a CSV file."""
    from neonlite.data.csv_files import read_csv
    from neonlite.models.training_data import split_rows
    from neonlite.models.zoo import csv_mlp

    rows = read_csv_settings(args) if args.resume else None
    target, ignored = args.target, args.ignore or []
    label = target if args.task == "classify" else None
    table = read_csv(args.dataset, lambda name: None if name in ignored else "text" if name == label else "any")
    if target is None:
        raise ValueError(f"--target: expected the column to predict, one of {messages.listed(table.names)}, got none")
    table.check_names(target, option="--target")
    table.check_names(*ignored, option="--ignore")
    if target in ignored:
        raise ValueError(f"--ignore: expected other columns than the target {target!r}, got {' '.join(ignored)}")
    names = [name for name in table.names if name not in (target, *ignored)]
    if not names:
        raise ValueError(f"{table.path}: expected at least one column besides the target and ignored columns")
    if rows not in (None, len(table)):
        raise ValueError(
            f"{table.path}: expected the {rows} rows that {args.resume} was trained on, got {len(table)}. To train on "
            "other rows, leave out --resume."
        )
    is_classes, y = choose_task(table, target, args.task)
    X = {name: table.values(name) for name in names}
    be = nl.gen_backend(args.backend, rng_seed=args.seed or 0)
    args.batch_size = args.batch_size or CSV_BATCH_SIZE
    if args.resume:
        model = nl.Model(args.resume)
        optimizer, epochs = resume_optimizer(model.optimizer, args)
    else:
        epochs = args.epochs or CSV_EPOCHS
        layers = csv_mlp(len(set(y.tolist())) if is_classes else None, args.hidden or HIDDEN_SIZES)
        model = nl.Model(layers, name=table.path.stem)
        settings = {name: getattr(args, name) for name in CSV_SETTINGS}
        model.metadata = {"target": target, "csv": {**settings, "rows": len(table)}}
        optimizer = make_optimizer(args.optimizer or "adam", args.lr or CSV_RATE, epochs)
    if model.epoch_index >= epochs:
        raise ValueError(
            f"{args.resume}: expected epochs left to train, got {model.epoch_index} of {epochs} trained. Pass "
            f"--epochs {model.epoch_index + 1} or more."
        )
    split = VALIDATION_SPLIT if args.validation_split is None else args.validation_split
    callbacks = stopping_callbacks(args.patience if split else 0)
    save = args.save or args.resume
    if save:
        callbacks.append(nl.callbacks.SerializeModelCallback(save))
    start = time.perf_counter()
    with print_resume_command(args):
        history = model.fit(
            X,
            y,
            epochs=epochs - model.epoch_index,
            batch_size=split_batch(args.batch_size, rank, size),
            optimizer=optimizer,
            validation_split=split,
            callbacks=callbacks,
            progress_bar=not args.no_progress_bar,
            distributed=size > 1,
        )
    if rank:
        return
    check_finite(model, save)
    say(f"inputs: {model.input_encoder}\ntarget: {model.target_encoder}")
    selected: Any = slice(None)
    kind = "training"
    if split:
        (_, selected), kind = split_rows(y if is_classes else [0] * len(y), split, be.rng_seed), "validation"
    metrics = format_metrics(model, {name: x[selected] for name, x in X.items()}, y[selected])
    say(f"{kind} rows: {metrics}\ntrained {format_training(model, start)}")
    finish_training(args, model, history, save)


def choose_task(table: Any, target: str, task: str | None) -> tuple[bool, Any]:
    """Return whether a column of a CSV file has classes, and its labels or numbers; print what was decided."""
    from neonlite.encoders.inputs import have_decimal_commas

    table.target = target
    values = table.numbers(target) if task == "regress" else table.values(target)
    kind, n = values.dtype.kind, len({*values.tolist()})
    is_few = kind in "iu" and n <= min(MAX_INTEGER_CLASSES, len(values) / 2)
    is_classes = task == "classify" or (task is None and (kind == "T" or is_few))
    found = "numbers with decimals" if kind == "f" else f"{'few' if is_few else 'many'} different integers"
    other = "numbers: --task regress" if is_classes else "classes: --task classify"
    if kind == "T":
        found = "text; numbers have a decimal point" if have_decimal_commas(values.tolist()) else "text"
    reason = f"--task {task}" if task else found if kind == "T" else f"{found}; for {other}"
    say(f"{table.path}: {len(table)} rows; predicting {'classes' if is_classes else 'numbers'} of {target} ({reason})")
    if not is_classes:
        return False, values.astype("float64")
    if n < 2 or n == len(values):
        problem = f"{n} different value{'s' * (n != 1)} in {len(values)} row{'s' * (len(values) != 1)}"
        expected = f"at least two classes in column {target!r}, one of them in several rows"
        raise ValueError(f"{table.path}: expected {expected}, got {problem}, such as {values[0]}")
    return True, table.texts(target) if kind == "f" else values  # the labels as in the file


@contextmanager
def print_resume_command(args: argparse.Namespace) -> Iterator[None]:
    """Print the command that resumes a training, if this one is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # the second SIGINT, or SIGTERM or SIGHUP
        if save := args.save or args.resume:
            data_option = ["-w", str(args.data_dir)] if args.data_dir else []
            command = ["neonlite", "train", str(args.dataset), "--resume", str(save), *data_option]
            print_error(f"to resume: {shlex.join(command)}")
        raise


def check_plot_path(path: Path) -> Path:
    """Return the path of a plot with an extension. Raise an error before training if it is not writable."""
    from neonlite.callbacks.history import History

    extensions = History().plot().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in ("", *extensions):
        supported = ", ".join("." + extension for extension in extensions)
        raise ValueError(f"--plot: {path}: expected an extension of an image file, one of {supported}.")
    check_writable("--plot", path)
    return path if path.suffix else path.with_suffix(".png")


def check_distinct_files(args: argparse.Namespace) -> None:
    """Raise ValueError if two options, other than --save and --resume, name the same file."""
    paths = {"--plot": args.plot, "--data-dir": args.data_dir, "--save": args.save, "--resume": args.resume}
    if isinstance(args.dataset, Path):
        paths["the data"] = args.dataset
    for (option, path), (other_option, other) in combinations([(key, x) for key, x in paths.items() if x], 2):
        if same_file(path, other) and (option, other_option) != ("--save", "--resume"):
            raise ValueError(f"{option} and {other_option} name one file, {path}; expected two files")


def check_resume_options(args: argparse.Namespace, *names: str) -> None:
    """Raise ValueError if there are options beside --resume whose values are in the checkpoint, except in a restart."""
    if args.resume == args.save:
        return
    fixed = [name for name in names if getattr(args, name) is not None]
    if fixed:
        options = ", ".join(map(format_option, fixed))
        these = "this setting" if len(fixed) == 1 else "these settings"
        raise ValueError(
            f"{options} cannot be used with --resume: {args.resume} contains {these}. "
            f"Remove {options}, or train without --resume."
        )


def read_csv_settings(args: argparse.Namespace) -> int:
    """Set the options of a training on a CSV file to those in the checkpoint to resume from; return its rows."""
    from neonlite.models.training_state import TrainingState

    check_resume_options(args, "target", *CSV_SETTINGS, "hidden", "optimizer", "lr", "seed")
    state = TrainingState.read(args.resume)
    if "csv" not in state.get_field(dict, "metadata"):
        raise ValueError(
            f"{args.resume}: expected a checkpoint of a training on a CSV file, neonlite train data.csv --save FILE, "
            "got another model"
        )
    args.target = state.get_field(str, "metadata", "target")
    for name, kind in CSV_SETTINGS.items():
        setattr(args, name, state.get_field(kind, "metadata", "csv", name))
    if not all(isinstance(name, str) for name in args.ignore or []):
        raise ValueError(f"{args.resume}: metadata.csv.ignore: expected names of columns, got {args.ignore}")
    rows: int = state.get_field(int, "metadata", "csv", "rows")
    return rows


def read_resume_file(args: argparse.Namespace) -> tuple[str | None, int, dict[str, Any]]:
    """Return the name of the network, the batch size and the metadata of the checkpoint to resume from."""
    from neonlite.models import training_state, zoo

    check_resume_options(args, "model", "optimizer", "lr", "batch_size", "seed")
    state = training_state.TrainingState.read(args.resume)
    dataset, _, name = state.get_field(str, "name").rpartition(".")
    if dataset in zoo.RECIPES and dataset != args.dataset:
        raise ValueError(
            f"{args.resume}: expected a network trained on {args.dataset}, got one trained on {dataset}. "
            f"Run: neonlite train {dataset} --resume {args.resume}"
        )
    batch_size, metadata = state.get_field(int, "backend", "batch_size"), state.get_field(dict, "metadata")
    if "csv" in metadata:
        raise ValueError(
            f"{args.resume}: expected a network trained on {args.dataset}, got one trained on a CSV file. "
            f"Run: neonlite train data.csv --resume {args.resume}"
        )
    return name if name in zoo.MODELS | zoo.LANGUAGE_MODELS else None, batch_size, metadata


def resume_optimizer(optimizer: Any, args: argparse.Namespace) -> tuple[Any, int]:
    """Return the optimizer of a checkpoint and the total number of epochs; --epochs overrides the latter."""
    if optimizer is None or not isinstance(optimizer.schedule, nl.optimizers.CosineSchedule):
        raise ValueError(
            f"{args.resume}: expected a checkpoint of neonlite train, got another model. "
            "Resume it by Model(path).fit(...)."
        )
    optimizer.schedule.total_epochs = args.epochs or optimizer.schedule.total_epochs
    return optimizer, int(optimizer.schedule.total_epochs)
