"""The neonlite command: its options and its exit status; train, eval, predict, sample, draw, bench, info."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import neonlite as nl
from neonlite.argparser import ConfigParser, add_backend_option, add_option, number, positive_float, positive_int
from neonlite.cli import commands
from neonlite.messages import did_you_mean, use_wordings

__all__ = ["main"]

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
WORDINGS = {  # of the messages of the library
    "num_epochs": "--epochs {}",
    "validation_split": "--validation-split {}",
    "batch_size": "Use --batch-size {} or less.",
    "ignore": "Ignore it: --ignore {}",
    "decimal": "",
    "EarlyStop": "early stopping",
    "without EarlyStop": "Pass --patience 0",
}


def make_parser() -> ConfigParser:
    """Return the parser of the command line."""
    parser = ConfigParser(
        "neonlite",
        description="Train and evaluate networks, print their structure, and list what is installed.",
        epilog="Set NEONLITE_DEBUG=1 in the environment to print the traceback of an error.",
    )
    parser.add_argument("--version", action="version", version=f"neonlite {nl.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    rows: tuple[tuple[Callable[..., None], Callable[[ConfigParser], None] | None, str], ...] = (
        (commands.run_train, add_train_options, "train a network on a data set or a CSV file"),
        (commands.run_eval, add_eval_options, "evaluate a saved network on a validation set or a CSV file"),
        (commands.run_predict, add_predict_options, "print the predictions of a saved network for a CSV file, as CSV"),
        (commands.run_sample, add_sample_options, "generate text with a network trained on text"),
        (commands.run_info, None, "list the installed runtimes, and how to install the others"),
        (commands.run_draw, add_draw_options, "print a network: layers, shapes, parameters, memory"),
        (commands.run_bench, add_bench_options, "measure training steps of networks on every installed runtime"),
    )
    for handler, add_options, description in rows:
        name = handler.__name__.removeprefix("run_")
        command: ConfigParser = subparsers.add_parser(name, help=description, description=description)
        command.add_options = add_options
        command.set_defaults(handler=handler)
    return parser


def add_train_options(train: ConfigParser) -> None:
    """Add the arguments of the command train."""
    from neonlite.models.zoo import LANGUAGE_MODELS, MODELS, RECIPES, csv_mlp

    train.add_argument("dataset", type=dataset_or_csv, help=f"{', '.join(RECIPES)}, or a CSV file")
    networks = [*MODELS, *LANGUAGE_MODELS]
    train.add_argument("--model", choices=networks, help="%(choices)s (default: the recommended one for the data set)")
    epochs = (
        "maximum number of epochs, in total with --resume; the learning rate decreases over this number, also if "
        f"training ends earlier (default: that of the recipe; {commands.CSV_EPOCHS} for a CSV file)"
    )
    add_option(train, "epochs", "-e", of=nl.Model.fit, help=epochs)
    patience = (
        "end training when the validation cost has not fallen for N epochs; the weights with the lowest cost are "
        "restored. 0: train all epochs and use the last weights; with --resume, continue also after training has "
        "ended early (default: %(default)s)"
    )
    add_option(train, "patience", of=nl.callbacks.EarlyStop, type=non_negative_int, metavar="N", help=patience)
    batch_sizes = f"batch size (default: that of the recipe; {commands.CSV_BATCH_SIZE} for a CSV file)"
    add_option(train, "batch_size", "-z", of=nl.Model.fit, help=batch_sizes)
    add_option(train, "optimizer", of=nl.Model.fit, choices=OPTIMIZERS, help="%(choices)s (default: adam)")
    rates = "initial learning rate; it decreases to 0 over --epochs by a cosine schedule"
    add_option(train, "lr", type=positive_float, help=rates)
    add_option(train, "save", "-s", "--save_path", type=Path, help="write a checkpoint to FILE after each epoch")
    add_option(train, "resume", type=Path, help="resume training from a checkpoint of --save, and update it")
    add_option(train, "plot", type=Path, metavar="PNG", help="plot the training history with matplotlib")
    add_option(train, "progress_bar", of=nl.Model.fit, help="do not print progress")
    add_seed_option(train)
    add_common_options(train, data=True)
    processes = train.add_argument_group("options for several processes", "needs: pip install 'neonlite[mpi]'")
    numbers = (
        "train in N processes, which compute equal parts of each minibatch: the result does not depend on N, "
        "except for rounding and batch normalization (default: %(default)s)"
    )
    add_option(processes, "processes", "-n", type=positive_int, default=1, metavar="N", help=numbers)
    hosts = "the hosts of the processes, such as host1:2,host2:2, or a host file (default: this host)"
    add_option(processes, "hosts", of=nl.distributed.run, help=hosts)
    restarts = "after a process has failed, start all again from the checkpoint of --save, up to N times (default: 0)"
    add_option(processes, "restarts", of=nl.distributed.run, type=non_negative_int, metavar="N", help=restarts)
    table = train.add_argument_group("options for a CSV file")
    add_option(table, "target", metavar="COLUMN", help="the column to predict; the other columns are the inputs")
    tasks = (
        "predict classes or numbers (default: classes for text, and for integers with at most "
        f"{commands.MAX_INTEGER_CLASSES} different values; else numbers)"
    )
    add_option(table, "task", choices=("classify", "regress"), help=tasks)
    sizes = f"sizes of the hidden layers (default: {' '.join(map(str, commands.HIDDEN_SIZES))})"
    add_option(table, "hidden", of=csv_mlp, nargs="+", metavar="SIZE", help=sizes)
    default = f"0 disables --patience (default: {commands.VALIDATION_SPLIT})"
    split = f"fraction of the rows to validate on, at random; {default}"
    add_option(table, "validation_split", of=nl.Model.fit, type=fraction, default=None, metavar="FRACTION", help=split)
    add_option(table, "ignore", nargs="+", metavar="COLUMN", help="columns that are not inputs")


def add_eval_options(evaluate: ConfigParser) -> None:
    """Add the arguments of the command eval."""
    from neonlite.models.zoo import RECIPES

    evaluate.add_argument("file", type=Path, metavar="FILE", help="checkpoint of train --save")
    datasets = f"{', '.join(RECIPES)}, or a CSV file (default: the data set it was trained on)"
    evaluate.add_argument("dataset", type=dataset_or_csv, nargs="?", help=datasets)
    add_common_options(evaluate, data=True)


def add_predict_options(predict: ConfigParser) -> None:
    """Add the arguments of the command predict."""
    predict.add_argument("file", type=Path, metavar="FILE", help="checkpoint of train --save, trained on a CSV file")
    predict.add_argument("dataset", type=Path, metavar="CSV", help="the rows; columns that are not inputs are ignored")
    add_option(predict, "proba", action="store_true", help="print the probability of each class")
    add_option(predict, "output", "-o", type=Path, help="write to FILE instead of standard output")
    cells = (
        "for spreadsheets: quote all cells, and write ' before those that are formulas for them, which start with "
        "=, +, -, @, a tab or a line break and are not numbers"
    )
    add_option(predict, "safe_cells", action="store_true", help=cells)
    add_common_options(predict)


def add_sample_options(sample: ConfigParser) -> None:
    """Add the arguments of the command sample."""
    from neonlite.models.generation import sample as generate

    sample.add_argument("file", type=Path, metavar="FILE", help="checkpoint of train text --save")
    add_option(sample, "prompt", default="", help="text to continue")
    add_option(sample, "length", of=generate, default=300, help="number of characters (default: %(default)s)")
    temperatures = "sampling temperature; 0 is greedy decoding (default: %(default)s)"
    add_option(sample, "temperature", of=generate, type=non_negative_float, default=0.7, help=temperatures)
    add_seed_option(sample)
    add_common_options(sample)


def add_draw_options(draw: ConfigParser) -> None:
    """Add the arguments of the command draw."""
    from neonlite.models.zoo import MODELS

    draw.add_argument("model", help=f"{', '.join(MODELS)}, or a checkpoint of train --save")
    add_common_options(draw, sizes=[3, 32, 32])


def add_bench_options(bench: ConfigParser) -> None:
    """Add the arguments of the command bench."""
    from neonlite.models.zoo import MODELS

    bench.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)} (default: mlp lenet)")
    steps = "number of steps to measure (default: %(default)s)"
    add_option(bench, "iterations", "-n", type=positive_int, default=20, help=steps)
    add_option(bench, "json", type=Path, help="also write the times to FILE")
    add_common_options(bench, sizes=[1, 28, 28])


def add_common_options(command: ConfigParser, data: bool = False, sizes: list[int] | None = None) -> None:
    """Add the options that several commands share."""
    command.add_config_option()
    add_backend_option(command)
    if data:
        add_option(command, "data_dir", "-w", type=Path, metavar="PATH", help="folder of the data set, or a text file")
    if sizes:
        shape = f"shape of the inputs, C H W or F (default: {' '.join(map(str, sizes))})"
        add_option(command, "shape", type=positive_int, nargs="+", help=shape)
        add_option(command, "batch_size", "-z", type=positive_int, help="batch size (default: 128)")
        command.set_defaults(sizes=sizes)


def add_seed_option(command: argparse.ArgumentParser) -> None:
    """Add the option for the random seed."""
    add_option(command, "seed", "-r", "--rng_seed", type=non_negative_int, help="random seed (default: 0)")


def dataset_or_csv(text: str) -> str | Path:
    """Return the name of a data set, or the path of a CSV file. Raise ArgumentTypeError if the text is neither."""
    from neonlite.models.zoo import RECIPES

    if text in RECIPES:
        return text
    if Path(text).suffix or Path(text).exists() or len(Path(text).parts) > 1:
        return Path(text)
    choices = f"{', '.join(RECIPES)}, or a CSV file"
    raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {choices}).{did_you_mean(text, RECIPES)}")


non_negative_int = number("a non-negative integer", int, lambda n: n >= 0)
non_negative_float = number("a non-negative number", float, lambda x: 0 <= x < math.inf)
fraction = number("a number from 0 to below 1", float, lambda x: 0 <= x < 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status. A signal that ends training raises SystemExit(128 + signal)."""
    status, args = 0, argparse.Namespace(command_line=list(sys.argv[1:] if arguments is None else arguments))
    try:
        make_parser().parse_args(arguments, args)
        with commands.print_warnings(args), use_wordings(WORDINGS):
            args.handler(args)
    except SystemExit:
        commands.flush_streams(0)
        raise
    except KeyboardInterrupt:
        commands.print_error("interrupted")
        status = 130
    except BrokenPipeError:  # as in neonlite info | head
        status = 141
    except Exception as error:
        if os.environ.get("NEONLITE_DEBUG", "0") not in ("", "0"):
            raise
        if (communicator := commands.connected()) is not None:
            time.sleep(2 * (communicator.rank > 0))  # an error of all processes is reported by rank 0
            communicator.abort(commands.format_message(commands.format_error(error), args))
        commands.print_error(f"neonlite: {commands.format_message(commands.format_error(error), args)}")
        status = 1
    return commands.flush_streams(status)
