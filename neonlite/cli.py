"""What can be done without writing Python?  ``neonlite train digits``, and to look at what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.backend.runtimes import choices, info

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")


def parser() -> argparse.ArgumentParser:
    """Return what understands the command line."""
    from neonlite.models.zoo import MODELS, RECIPES

    top = argparse.ArgumentParser("neonlite", description="Train networks, look at them, and see what is installed.")
    top.add_argument("--version", action="version", version=f"neonlite {version('neonlite')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a network on a data set")
    train.add_argument("dataset", choices=RECIPES, help="%(choices)s")
    train.add_argument("--model", choices=MODELS, help="%(choices)s; else the one that suits the data set")
    train.add_argument("-e", "--epochs", type=whole, help="how many times all data is gone through")
    train.add_argument("-z", "--batch-size", "--batch_size", type=whole, help="images in a minibatch")
    train.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="%(choices)s; %(default)s unless given")
    train.add_argument("--lr", type=float, help="the learning rate at the beginning; it falls to 0 as a cosine")
    train.add_argument("-s", "--save", "--save_path", type=Path, metavar="FILE", help="write the model here each epoch")
    train.add_argument("--resume", type=Path, metavar="FILE", help="go on from a file that --save wrote")
    train.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves, with matplotlib")
    train.add_argument("-w", "--data-dir", "--data_dir", type=Path, metavar="FOLDER", help="where the data set lies")
    train.add_argument("--no-progress-bar", "--no_progress_bar", action="store_true", help="print results alone")
    common(train)

    judge = commands.add_parser("eval", help="judge a saved network on the part of its data that it did not learn from")
    judge.add_argument("file", type=Path, metavar="FILE")
    judge.add_argument("dataset", choices=RECIPES, help="%(choices)s")
    judge.add_argument("-w", "--data-dir", "--data_dir", type=Path, metavar="FOLDER", help="where the data set lies")
    common(judge)

    commands.add_parser("info", help="tell which runtimes there are, and what others need")

    draw = commands.add_parser("draw", help="print a network: layers, shapes, parameters, memory")
    draw.add_argument("model", choices=MODELS, help="%(choices)s")
    draw.add_argument("--shape", type=whole, nargs="+", default=[3, 32, 32], help="of the inputs: C H W, or F")
    draw.add_argument("-z", "--batch-size", "--batch_size", type=whole, default=128, help="%(default)s unless given")
    common(draw)
    return top


def common(command: argparse.ArgumentParser) -> None:
    """Add the options that all have who make a backend."""
    command.add_argument("-b", "--backend", help=f"one of {', '.join(choices())}; mkl, where it is installed, else cpu")
    command.add_argument("-r", "--seed", "--rng_seed", type=int, default=0, help="of all random numbers; %(default)s")


def whole(text: str) -> int:
    """Return a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1; got {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says; return its exit status."""
    given = parser().parse_args(arguments)
    act = {"train": train, "eval": judge, "info": tell, "draw": draw}[given.command]
    try:
        act(given)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (OSError, ImportError, ValueError, RuntimeError) as error:
        print(f"neonlite: {error}", file=sys.stderr)
        return 1
    return 0


def train(given: argparse.Namespace) -> None:
    """Train a network."""
    from neonlite.callbacks import Callbacks
    from neonlite.data import DATASETS
    from neonlite.models import Model
    from neonlite.models.zoo import MODELS, RECIPES
    from neonlite.transforms import Accuracy, CrossEntropyMulti

    recipe = RECIPES[given.dataset]
    be = gen_backend(given.backend, rng_seed=given.seed, batch_size=given.batch_size or recipe["batch_size"])
    found = DATASETS[given.dataset](given.data_dir)
    learn, valid = found.iterators()
    epochs = given.epochs or recipe["epochs"]
    name = given.model or recipe["model"]
    model = Model(given.resume or MODELS[name](found.nclass))
    cost = CrossEntropyMulti()
    optimizer = model.optimizer or make_optimizer(given.optimizer, given.lr or recipe["lr"], epochs)
    bar = not given.no_progress_bar
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=bar, save_path=given.save)
    print(f"{found!r}; {given.resume or name} on {be.name}, seed {be.rng_seed}")
    began = time.perf_counter()
    model.fit(learn, cost, optimizer, epochs, callbacks)
    seconds = time.perf_counter() - began
    right = 100 * model.eval(valid, Accuracy())[0]
    print(f"{right:.2f} % of {valid.ndata} right, after {model.epoch_index} epochs in {seconds:.1f} s")
    if given.save:
        print(f"the model: {given.save}")
    if given.plot:
        callbacks.history.plot(given.plot)
        print(f"the curves: {given.plot}")


def make_optimizer(name: str, rate: float, epochs: int) -> Any:
    """Return an optimizer whose rate falls as a cosine."""
    from neonlite import optimizers

    schedule = optimizers.CosineSchedule(epochs)
    if name == "sgd":
        return optimizers.GradientDescentMomentum(rate, 0.9, schedule=schedule)
    made = {"adam": optimizers.Adam, "adamw": optimizers.AdamW, "rmsprop": optimizers.RMSProp}[name]
    return made(learning_rate=rate, schedule=schedule)


def judge(given: argparse.Namespace) -> None:
    """Judge a saved network."""
    from neonlite.data import DATASETS
    from neonlite.models import Model
    from neonlite.models.zoo import RECIPES
    from neonlite.transforms import Accuracy

    gen_backend(given.backend, rng_seed=given.seed, batch_size=RECIPES[given.dataset]["batch_size"])
    model = Model(given.file)
    valid = DATASETS[given.dataset](given.data_dir).iterators()[1]
    print(f"{100 * model.eval(valid, Accuracy())[0]:.2f} % of {valid.ndata} right")


def tell(given: argparse.Namespace) -> None:
    """Tell which runtimes there are."""
    print(info())


def draw(given: argparse.Namespace) -> None:
    """Print a network."""
    from neonlite.layers import Sequential
    from neonlite.models.zoo import MODELS

    gen_backend(given.backend, rng_seed=given.seed, batch_size=given.batch_size)
    shape = given.shape[0] if len(given.shape) == 1 else tuple(given.shape)
    print(Sequential(MODELS[given.model](), name=given.model).summary(shape))


if __name__ == "__main__":
    sys.exit(main())
