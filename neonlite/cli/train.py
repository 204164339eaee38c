"""The command train, on a data set or a CSV file, in one or several processes; it resumes and saves training."""

from __future__ import annotations

import argparse
import io
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.cli import commands
from neonlite.files import check_writable, is_stream, same_file
from neonlite.messages import listed

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
        raise ValueError(f"{', '.join(map(commands.format_option, unused))} cannot be used with {kind}")
    if args.plot:
        args.plot = check_plot_path(args.plot)
    check_distinct_files(args)
    if args.save:
        check_replaceable("--save", args.save)
    if is_csv and args.processes > 1 and is_stream(args.dataset):
        raise ValueError(f"-n {args.processes}: expected a file, which each process reads; {args.dataset} is a FIFO")
    rank, size = join_processes(args)
    (train_on_csv if is_csv else train_on_dataset)(args, rank, size)


def join_processes(args: argparse.Namespace) -> tuple[int, int]:
    """Return the rank of this process and the number of processes; start them first if they do not exist yet.

    The first process exits when those that it has started have ended. Ranks other than 0 print nothing.
    """
    from neonlite.distributed import run, world

    communicator = world()
    if communicator.size == 1 and args.processes > 1:
        sys.exit(run([sys.executable, "-m", "neonlite.cli", *args.command_line], args.processes, args.hosts))
    if args.hosts and args.processes == 1:
        raise ValueError("--hosts: expected the number of processes, such as -n 4, got none")
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
    from neonlite.callbacks import Callbacks
    from neonlite.models import Model
    from neonlite.models.zoo import LANGUAGE_MODELS, MODELS, recipe
    from neonlite.transforms import CrossEntropyMulti

    name, batch_size, metadata = read_resume_file(args) if args.resume else (args.model, args.batch_size, {})
    settings = recipe(args.dataset, name)
    if (settings["model"] in LANGUAGE_MODELS) != (args.dataset == "text"):
        networks = LANGUAGE_MODELS if args.dataset == "text" else MODELS
        raise ValueError(
            f"expected a network for {args.dataset}, one of {', '.join(networks)}, got {settings['model']}."
        )
    be = gen_backend(args.backend, rng_seed=args.seed or 0, batch_size=batch_size or settings["batch_size"])
    dataset, train_set, valid_set = commands.load_data(
        args.dataset, args.data_dir, settings["augment"], metadata or settings, not batch_size
    )
    be.bsz = split_batch(be.bsz, rank, size)
    if args.resume:
        model = Model(args.resume)
        optimizer, epochs = resume_optimizer(model.optimizer, args)
        run_label = str(args.resume)
    else:
        epochs = args.epochs or settings["epochs"]
        layers = (MODELS | LANGUAGE_MODELS)[settings["model"]](dataset.nclass)
        model = Model(layers, name=f"{args.dataset}.{settings['model']}")
        model.metadata = {"vocab": dataset.vocab, "time_steps": dataset.time_steps} if args.dataset == "text" else {}
        if args.dataset == "text" and args.data_dir:
            model.metadata["text"] = args.data_dir.name
        optimizer = commands.make_optimizer(args.optimizer or "adam", args.lr or settings["lr"], epochs)
        run_label = f"{settings['model']}, seed {be.rng_seed},"
    save, progress_bar = args.save or args.resume, not args.no_progress_bar
    callbacks = Callbacks(
        model, eval_set=valid_set, metric=commands.make_metric(args.dataset), progress_bar=progress_bar, save_path=save
    )
    for callback in stopping_callbacks(args.patience):
        callbacks.add_callback(callback)
    commands.say(f"{dataset!r}; {run_label} on {be.name}")
    start = time.perf_counter()
    with print_resume_command(args):
        model.fit(train_set, CrossEntropyMulti(), optimizer, epochs, callbacks, distributed=size > 1)
    if rank:
        return
    check_finite(model, save)
    commands.say(f"{commands.format_evaluation(args.dataset, model, valid_set)}, after {format_training(model, start)}")
    finish_training(args, model, callbacks.history, save)


def stopping_callbacks(patience: int) -> list[Any]:
    """Return the callbacks that end training: for NaN, and for a validation cost that no longer falls."""
    from neonlite.callbacks import EarlyStop, TerminateOnNaN

    return [TerminateOnNaN(), *([EarlyStop(patience)] if patience else [])]


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
        commands.say(f"weights of epoch {epoch:.0f}, which has the lowest validation cost, {cost:.4g}")
    if save:
        model.save_params(save)  # with the best weights, and even if there was no epoch left to train
    commands.say(f"model: {save or 'not saved; -s FILE saves it'}")
    if args.plot:
        history.plot(args.plot)
        commands.say(f"plot: {args.plot}")


def train_on_csv(args: argparse.Namespace, rank: int, size: int) -> None:
    """Train a network on the rows of a CSV file."""
    from neonlite.callbacks import SerializeModelCallback
    from neonlite.data.csv_files import read_csv
    from neonlite.models import Model
    from neonlite.models.training_data import split_rows
    from neonlite.models.zoo import csv_mlp

    rows = read_csv_settings(args) if args.resume else None
    target, ignored = args.target, args.ignore or []
    label = target if args.task == "classify" else None
    table = read_csv(args.dataset, lambda name: None if name in ignored else "text" if name == label else "any")
    if target is None:
        raise ValueError(f"--target: expected the column to predict, one of {listed(table.names)}, got none")
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
    be = gen_backend(args.backend, rng_seed=args.seed or 0)
    args.batch_size = args.batch_size or CSV_BATCH_SIZE
    if args.resume:
        model = Model(args.resume)
        optimizer, epochs = resume_optimizer(model.optimizer, args)
    else:
        epochs = args.epochs or CSV_EPOCHS
        layers = csv_mlp(len(set(y.tolist())) if is_classes else None, args.hidden or HIDDEN_SIZES)
        model = Model(layers, name=table.path.stem)
        settings = {name: getattr(args, name) for name in CSV_SETTINGS}
        model.metadata = {"target": target, "csv": {**settings, "rows": len(table)}}
        optimizer = commands.make_optimizer(args.optimizer or "adam", args.lr or CSV_RATE, epochs)
    if model.epoch_index >= epochs:
        raise ValueError(
            f"{args.resume}: expected epochs left to train, got {model.epoch_index} of {epochs} trained. Pass "
            f"--epochs {model.epoch_index + 1} or more."
        )
    split = VALIDATION_SPLIT if args.validation_split is None else args.validation_split
    callbacks = stopping_callbacks(args.patience if split else 0)
    save = args.save or args.resume
    if save:
        callbacks.append(SerializeModelCallback(save))
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
    commands.say(f"inputs: {model.input_encoder}\ntarget: {model.target_encoder}")
    selected: Any = slice(None)
    kind = "training"
    if split:
        (_, selected), kind = split_rows(y if is_classes else [0] * len(y), split, be.rng_seed), "validation"
    metrics = commands.format_metrics(model, {name: x[selected] for name, x in X.items()}, y[selected])
    commands.say(f"{kind} rows: {metrics}\ntrained {format_training(model, start)}")
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
    commands.say(
        f"{table.path}: {len(table)} rows; predicting {'classes' if is_classes else 'numbers'} of {target} ({reason})"
    )
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
            commands.print_error(f"to resume: {shlex.join(command)}")
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
    """Raise ValueError if there are options beside --resume whose values are in the checkpoint."""
    fixed = [name for name in names if getattr(args, name) is not None]
    if fixed:
        options = ", ".join(map(commands.format_option, fixed))
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
    from neonlite.models.training_state import TrainingState
    from neonlite.models.zoo import LANGUAGE_MODELS, MODELS, RECIPES

    check_resume_options(args, "model", "optimizer", "lr", "batch_size", "seed")
    state = TrainingState.read(args.resume)
    dataset, _, name = state.get_field(str, "name").rpartition(".")
    if dataset in RECIPES and dataset != args.dataset:
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
    return name if name in MODELS | LANGUAGE_MODELS else None, batch_size, metadata


def resume_optimizer(optimizer: Any, args: argparse.Namespace) -> tuple[Any, int]:
    """Return the optimizer of a checkpoint and the total number of epochs; --epochs overrides the latter."""
    from neonlite.optimizers import CosineSchedule

    if optimizer is None or not isinstance(optimizer.schedule, CosineSchedule):
        raise ValueError(
            f"{args.resume}: expected a checkpoint of neonlite train, got another model. "
            "Resume it by Model(path).fit(...)."
        )
    optimizer.schedule.total_epochs = args.epochs or optimizer.schedule.total_epochs
    return optimizer, int(optimizer.schedule.total_epochs)
