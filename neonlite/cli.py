"""What can be done without writing Python?  ``neonlite train digits``, and to look at what came of it."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from neonlite.argparser import whole
from neonlite.backend import gen_backend
from neonlite.backend.runtimes import choices, info

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
EXTRAS = {"viz": "matplotlib", "hdf5": "h5py", "datasets": "pooch", "notebook": "notebook"}  # and what they bring


def parser() -> argparse.ArgumentParser:
    """Return what understands the command line."""
    from neonlite.models.zoo import MODELS, READERS, RECIPES

    top = argparse.ArgumentParser("neonlite", description="Train networks, look at them, and see what is installed.")
    top.add_argument("--version", action="version", version=f"neonlite {version('neonlite')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(act: Any, name: str, words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words)
        made.set_defaults(act=act)
        return made

    train_ = command(train, "train", "train a network on a data set")
    train_.add_argument("dataset", choices=RECIPES, help="%(choices)s")
    networks = [*MODELS, *READERS]
    train_.add_argument("--model", choices=networks, help="%(choices)s; else the one that suits the data set")
    train_.add_argument("-e", "--epochs", type=whole, help="how many times all data is gone through")
    train_.add_argument("-z", "--batch-size", "--batch_size", type=whole, help="rows in a minibatch")
    train_.add_argument("--optimizer", choices=OPTIMIZERS, help="%(choices)s; adam unless given")
    train_.add_argument("--lr", type=rate, help="the learning rate at the beginning; it falls to 0 as a cosine")
    train_.add_argument(
        "-s", "--save", "--save_path", type=Path, metavar="FILE", help="write the model here each epoch"
    )
    train_.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on from a file that --save wrote, and keep it so"
    )
    train_.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves, with matplotlib")
    train_.add_argument("--no-progress-bar", "--no_progress_bar", action="store_true", help="print results alone")
    seed(train_)
    common(train_, data=True)

    judge_ = command(judge, "eval", "judge a saved network on the part of its data that it did not learn from")
    judge_.add_argument("file", type=Path, metavar="FILE", help="that train --save wrote")
    judge_.add_argument("dataset", choices=RECIPES, nargs="?", help="%(choices)s; else the one it learned from")
    common(judge_, data=True)

    write_ = command(write, "sample", "have a network that learned from a text write")
    write_.add_argument("file", type=Path, metavar="FILE", help="that train text --save wrote")
    write_.add_argument("--prompt", default="", help="what the text begins with")
    write_.add_argument("--length", type=whole, default=300, help="of what it writes, in characters; %(default)s")
    write_.add_argument("--temperature", type=level, default=0.7, help="how much it dares; 0: nothing; %(default)s")
    seed(write_)
    common(write_)

    command(tell, "info", "tell which runtimes there are, and what others need")

    draw_ = command(draw, "draw", "print a network: layers, shapes, parameters, memory")
    draw_.add_argument("model", help=f"{', '.join(MODELS)}; or a file that train --save wrote")
    common(draw_, sizes=[3, 32, 32])

    bench_ = command(bench, "bench", "time the steps of networks on every runtime that is there")
    bench_.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}; mlp and lenet unless given")
    bench_.add_argument("-n", "--iterations", type=whole, default=20, help="steps that are timed; %(default)s")
    bench_.add_argument("--json", type=Path, metavar="FILE", help="write the times here as well")
    common(bench_, sizes=[1, 28, 28])
    return top


def common(command: argparse.ArgumentParser, data: bool = False, sizes: list[int] | None = None) -> None:
    """Add the options that several commands have."""
    command.add_argument("-b", "--backend", help=f"one of {', '.join(choices())}; mkl, where it is installed, else cpu")
    if data:
        command.add_argument(
            "-w", "--data-dir", "--data_dir", type=Path, metavar="PATH", help="where the data lies; a text's file"
        )
    if sizes:
        shape = " ".join(map(str, sizes))
        command.add_argument("--shape", type=whole, nargs="+", help=f"of the inputs: C H W, or F; {shape} unless given")
        command.add_argument("-z", "--batch-size", "--batch_size", type=whole, help="rows in a minibatch; or 128")
        command.set_defaults(sizes=sizes)


def seed(command: argparse.ArgumentParser) -> None:
    """Add the seed."""
    command.add_argument("-r", "--seed", "--rng_seed", type=natural, help="of all random numbers; 0 unless given")


def rate(text: str) -> float:
    """Return a number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"a number above 0; got {text}")
    return found


def level(text: str) -> float:
    """Return a number from 0."""
    try:
        return float(text) and rate(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"a number from 0; got {text}") from None


def natural(text: str) -> int:
    """Return a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number from 0; got {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says; return its exit status."""
    try:
        given = parser().parse_args(arguments)
        given.act(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in neonlite info | head: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ImportError, ValueError, IndexError, RuntimeError) as error:
        print(f"neonlite: {error}", file=sys.stderr)
        return 1
    return 0


# --- training --------------------------------------------------------------------------------------------------------


def train(given: argparse.Namespace) -> None:
    """Train a network."""
    from neonlite.callbacks import Callbacks
    from neonlite.models import Model
    from neonlite.models.zoo import MODELS, READERS, recipe
    from neonlite.transforms import CrossEntropyMulti

    if given.plot and not find_spec("matplotlib"):
        raise ImportError('--plot draws with matplotlib: pip install "neonlite[viz]"')
    if given.plot:
        picture(given.plot)
    name, size, notes = kept(given) if given.resume else (given.model, given.batch_size, {})
    way = recipe(given.dataset, name)
    if (way["model"] in READERS) != (given.dataset == "text"):
        fit = READERS if given.dataset == "text" else MODELS
        raise ValueError(f"{way['model']} is no network for {given.dataset}; there are {', '.join(fit)}")
    be = gen_backend(given.backend, rng_seed=given.seed or 0, batch_size=size or way["batch_size"])
    found, learn, valid = data(given.dataset, given.data_dir, way["augment"], notes or way, not size)
    if given.resume:
        model = Model(given.resume)
        optimizer, epochs = taken_up(model.optimizer, given)
        about = str(given.resume)
    else:
        epochs = given.epochs or way["epochs"]
        model = Model((MODELS | READERS)[way["model"]](found.nclass), name=f"{given.dataset}.{way['model']}")
        model.notes = {"vocab": found.vocab, "time_steps": found.time_steps} if given.dataset == "text" else {}
        if given.dataset == "text" and given.data_dir:
            model.notes["text"] = given.data_dir.name
        optimizer = make_optimizer(given.optimizer or "adam", given.lr or way["lr"], epochs)
        about = f"{way['model']}, seed {be.rng_seed},"
    save, bar = given.save or given.resume, not given.no_progress_bar
    callbacks = Callbacks(model, eval_set=valid, metric=metric(given.dataset), progress_bar=bar, save_path=save)
    print(f"{found!r}; {about} on {be.name}")
    began = time.perf_counter()
    try:
        model.fit(learn, CrossEntropyMulti(), optimizer, epochs, callbacks)
    except KeyboardInterrupt:
        if save:
            where = f" -w {shlex.quote(str(given.data_dir))}" if given.data_dir else ""
            print(f"to go on: neonlite train {given.dataset} --resume {save}{where}", file=sys.stderr)
        raise
    seconds = time.perf_counter() - began
    print(f"{judged(given.dataset, model, valid)}, after {model.epoch_index} epochs in {seconds:.1f} s")
    if given.save and given.resume:
        model.save_params(given.save)  # also when there was no epoch left
    if save:
        print(f"the model: {save}")
    if given.plot:
        callbacks.history.plot(given.plot)
        print(f"the curves: {given.plot}")


def data(
    name: str, path: Any, augment: Any = None, notes: dict[str, Any] | None = None, suited: bool = True
) -> tuple[Any, Any, Any]:
    """Return a data set, and what is learned from and judged by; of a text as a recipe or a model's notes say.

    ``suited``: minibatches are smaller where a text has too few characters.
    """
    from neonlite.backend import current
    from neonlite.data import DATASETS
    from neonlite.data.corpora import corpus

    if name == "text":
        known = {key: notes[key] for key in ("vocab", "time_steps") if notes and key in notes}
        if path is None and notes and "text" in notes:
            raise ValueError(f"it learned from {notes['text']}: say where the text lies that this is for: -w PATH")
        found = corpus(path, **known)
        if suited:
            most = (min(map(len, found.texts.values())) - 1) // found.time_steps
            current().bsz = max(1, min(current().bsz, most))
        return found, *found.iterators()
    images = DATASETS[name](path)
    return images, *images.iterators(augment=augment)


def metric(name: str) -> Any:
    """Return what a network for a data set is judged by."""
    from neonlite.transforms import Accuracy, BitsPerCharacter

    return BitsPerCharacter() if name == "text" else Accuracy()


def judged(name: str, model: Any, valid: Any) -> str:
    """Return how well a network does on a validation set, in words."""
    value = model.eval(valid, metric(name))[0]
    if name == "text":
        return f"{value:.3f} bits per character of {valid.ndata * valid.time_steps:,}"
    return f"{100 * value:.2f} % of {valid.ndata} right"


def picture(path: Path) -> None:
    """Raise an error, before training rather than behind it, when a picture can not be drawn, or not be written."""
    from neonlite.callbacks.callback import writable
    from neonlite.callbacks.history import History

    endings = History().plot().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in ("", *endings):
        raise ValueError(f"--plot: {path}: pictures end in {', '.join('.' + ending for ending in endings)}")
    writable("--plot", path)


def kept(given: argparse.Namespace) -> tuple[str | None, int, dict[str, Any]]:
    """Return the network, the minibatch and the notes of the file that training goes on from."""
    from neonlite.models.state import State
    from neonlite.models.zoo import MODELS, READERS, RECIPES

    settled = [option for option in ("model", "optimizer", "batch_size", "seed") if getattr(given, option) is not None]
    if settled:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in settled)
        raise ValueError(f"{options}: {given.resume} settles that; leave it out, or train anew")
    state = State.read(given.resume)
    learned, _, name = state.field(str, "name").rpartition(".")
    if learned in RECIPES and learned != given.dataset:
        raise ValueError(f"{given.resume} learned from {learned}: neonlite train {learned} --resume {given.resume}")
    size, notes = state.field(int, "backend", "batch_size"), state.field(dict, "notes")
    return name if name in MODELS | READERS else None, size, notes


def taken_up(optimizer: Any, given: argparse.Namespace) -> tuple[Any, int]:
    """Return the optimizer of a file, and until which epoch; what the command line says comes first."""
    from neonlite.optimizers import CosineSchedule

    if optimizer is None or not isinstance(optimizer.schedule, CosineSchedule):
        raise ValueError(f"{given.resume}: neonlite train did not write it; go on with Model(path).fit(...)")
    optimizer.schedule.total_epochs = given.epochs or optimizer.schedule.total_epochs
    optimizer.learning_rate = given.lr or optimizer.learning_rate
    return optimizer, int(optimizer.schedule.total_epochs)


def make_optimizer(name: str, rate: float, epochs: int) -> Any:
    """Return an optimizer whose rate falls as a cosine."""
    from neonlite import optimizers

    schedule = optimizers.CosineSchedule(epochs)
    if name == "sgd":
        return optimizers.GradientDescentMomentum(rate, 0.9, schedule=schedule)
    made = {"adam": optimizers.Adam, "adamw": optimizers.AdamW, "rmsprop": optimizers.RMSProp}[name]
    return made(learning_rate=rate, schedule=schedule)


# --- looking ---------------------------------------------------------------------------------------------------------


def judge(given: argparse.Namespace) -> None:
    """Judge a saved network."""
    from neonlite.layers.buffers import features
    from neonlite.models import Model
    from neonlite.models.state import State
    from neonlite.models.zoo import RECIPES

    be = gen_backend(given.backend, batch_size=State.read(given.file).field(int, "backend", "batch_size"))
    model = Model(given.file)
    name = given.dataset or model.name.split(".")[0]
    if name not in RECIPES:
        raise ValueError(f"{given.file}: it does not say what it learned from: name one of {', '.join(RECIPES)}")
    found, _, valid = data(name, given.data_dir, notes=model.notes)
    shape = valid.shape if name == "text" else found.lshape
    if features(model.layers.in_shape) != features(shape):
        raise ValueError(f"{given.file} takes inputs of {model.layers.in_shape}; those of {name} are {shape}")
    if name != "text":
        be.bsz = min(128, valid.ndata)
    print(judged(name, model, valid))


def write(given: argparse.Namespace) -> None:
    """Have a network write."""
    from neonlite.models import Model
    from neonlite.models.sample import sample

    gen_backend(given.backend, batch_size=1)
    model = Model(given.file)
    vocab = model.notes.get("vocab")
    if not vocab:
        raise ValueError(f"{given.file}: it has no vocabulary: neonlite train text --save FILE writes one that has")
    prompt = given.prompt or ("\n" if "\n" in vocab else vocab[0])
    index = {word: i for i, word in enumerate(vocab)}
    strange = sorted({letter for letter in prompt if letter not in index})
    if strange:
        raise ValueError(f"the prompt has letters that the network never read: {', '.join(map(repr, strange))}")
    print(given.prompt, end="")
    for word in sample(model, [index[letter] for letter in prompt], given.length, given.temperature, given.seed or 0):
        print(vocab[word], end="", flush=True)
    print()


def tell(given: argparse.Namespace) -> None:
    """Tell what is installed."""
    print(f"neonlite {version('neonlite')}, Python {sys.version.split()[0]}, NumPy {version('numpy')}")
    print(f"\nruntimes:\n{info()}\n\nextras:")
    for extra, package in EXTRAS.items():
        found = f"yes  {package} {version(package)}" if find_spec(package) else f'no   pip install "neonlite[{extra}]"'
        print(f"{extra:<8}  {found}")


def draw(given: argparse.Namespace) -> None:
    """Print a network."""
    from neonlite.layers import Sequential
    from neonlite.models import Model
    from neonlite.models.zoo import MODELS

    gen_backend(given.backend, batch_size=given.batch_size or 128)
    if given.model not in MODELS and Path(given.model).is_file():
        print(Model(given.model, weights_only=True).summary())
        return
    print(Sequential(network(given.model), name=given.model).summary(shape_of(given)))


def network(name: str) -> Any:
    """Return the layers of a network of the zoo."""
    from difflib import get_close_matches

    from neonlite.models.zoo import MODELS

    if name not in MODELS:
        close = get_close_matches(name, MODELS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"there is no network and no file {name}; networks are {', '.join(MODELS)}{hint}")
    return MODELS[name]()


def shape_of(given: argparse.Namespace) -> int | tuple[int, ...]:
    """Return the shape that a command line says: (C, H, W), or F."""
    sizes = given.shape or given.sizes
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def bench(given: argparse.Namespace) -> None:
    """Time the steps of networks."""
    from neonlite.callbacks.callback import writable
    from neonlite.data import ArrayIterator
    from neonlite.models import Model
    from neonlite.transforms import CrossEntropyMulti

    names = [given.backend] if given.backend else [found.name for found in info() if found.usable]
    names = [name for name in names if name != "strict" or given.backend]  # strict checks; it is not meant to be fast
    shape, n = shape_of(given), given.batch_size or 128
    draw = random.Random(0).random
    rows = [[draw() for _ in range(math.prod(given.shape or given.sizes))] for _ in range(n)]
    print(f"milliseconds, medians of {given.iterations} steps of {n} rows of {shape}")
    print(f"{'':<24}{'forward':>10}{'back':>10}{'step':>10}{'rows/s':>12}")
    times = []
    for model in given.models:  # before an hour of others
        network(model)
    if given.json:
        writable("--json", given.json)
    for model in given.models or ["mlp", "lenet"]:
        for name in names:
            gen_backend(name, rng_seed=0, batch_size=n)
            data = ArrayIterator(rows, [i % 10 for i in range(n)], 10, lshape=shape)
            made = Model(network(model), data)
            found = made.benchmark(
                data, cost=CrossEntropyMulti(), optimizer=make_optimizer("adam", 1e-3, 1), niterations=given.iterations
            )
            fprop, bprop, step = (found[part]["median"] for part in ("fprop", "bprop", "iteration"))
            print(f"{f'{model} on {name}':<24}{fprop:>10.2f}{bprop:>10.2f}{step:>10.2f}{1000 * n / step:>12,.0f}")
            times.append({"model": model, "backend": name, "shape": shape, "batch_size": n, "ms": found})
    if given.json:
        given.json.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
