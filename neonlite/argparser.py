"""What do scripts take from the command line?  neon's options, and the backend that they ask for."""

from __future__ import annotations

import argparse
import configparser
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.backend.runtimes import choices

DATATYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # of no -v, one, and two


class NeonArgparser(argparse.ArgumentParser):
    """An argparse parser that knows the options of neon's scripts; add your own with ``add_argument``.

    >>> from neonlite.argparser import NeonArgparser
    >>> parser = NeonArgparser("Train a network.", default_overrides={"batch_size": 64})
    >>> args = parser.parse_args(["-b", "cpu", "-e", "3"])
    >>> args.epochs, args.backend.bsz, args.callback_args["progress_bar"]
    (3, 64, True)

    ``default_overrides``: other values of what is not given. ``config_files``: files of ``option = value``, a line
    each, as ``-c`` takes them; what the command line says comes before what a file says.
    """

    def __init__(
        self,
        *args: Any,
        default_overrides: Mapping[str, Any] | None = None,
        config_files: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        if args:  # neon's scripts give their docstring first, where argparse expects the program's name
            kwargs.setdefault("description", args[0])
        super().__init__(**kwargs)
        self.config_files = list(config_files)
        self._add_options()
        unknown = set(default_overrides or {}) - {action.dest for action in self._actions}
        if unknown:
            raise ValueError(f"default_overrides are of options that there are; got {', '.join(sorted(unknown))}")
        self.set_defaults(**(default_overrides or {}))

    def _add_options(self) -> None:
        self.add_argument("--version", action="version", version=f"neonlite {version('neonlite')}")
        self.add_argument("-c", "--config", type=Path, metavar="FILE", help="a file of lines: option = value")
        self.add_argument("-v", "--verbose", action="count", default=1, help="tell more; -v -v: everything")
        self.add_argument("--no_progress_bar", "--no-progress-bar", action="store_true", help="draw no bar")

        run = self.add_argument_group("what is run")
        run.add_argument("-w", "--data_dir", "--data-dir", type=Path, metavar="FOLDER", help="where data sets lie")
        run.add_argument("-e", "--epochs", type=whole, default=10, help="how many; %(default)s unless given")
        run.add_argument("-s", "--save_path", "--save-path", type=Path, metavar="FILE", help="write the model here")
        run.add_argument("--serialize", type=whole, nargs="?", const=1, default=0, help="in every so many epochs")
        run.add_argument("--model_file", "--model-file", type=Path, metavar="FILE", help="go on from this model")
        run.add_argument("-l", "--log", type=Path, metavar="FILE", help="write the log to this file as well")
        run.add_argument("-o", "--output_file", "--output-file", type=Path, metavar="FILE", help="history, as HDF5")
        run.add_argument(
            "-eval", "--eval_freq", "--eval-freq", type=whole, help="epochs from one validation to the next"
        )
        run.add_argument("-H", "--history", type=whole, default=1, help="how many written models are kept")
        run.add_argument("--log_token", "--log-token", default="", help=argparse.SUPPRESS)
        run.add_argument("--manifest", action="append", default=[], help=argparse.SUPPRESS)
        run.add_argument("--manifest_root", "--manifest-root", type=Path, help=argparse.SUPPRESS)

        be = self.add_argument_group("the backend")
        be.add_argument("-b", "--backend", help=f"one of {', '.join(choices())}; mkl, where it is installed, else cpu")
        be.add_argument("-i", "--device_id", "--device-id", type=int, default=0, help="which device; %(default)s")
        be.add_argument("-m", "--max_devices", "--max-devices", type=int, help=argparse.SUPPRESS)
        be.add_argument("-r", "--rng_seed", "--rng-seed", "--seed", type=int, help="of all random numbers")
        be.add_argument("-u", "--rounding", type=int, nargs="?", const=10, default=0, help=argparse.SUPPRESS)
        be.add_argument("-d", "--datatype", choices=DATATYPES, default="f32", help="%(choices)s; %(default)s")
        be.add_argument("-z", "--batch_size", "--batch-size", type=whole, default=128, help="%(default)s unless given")
        be.add_argument("--caffe", action="store_true", help="sizes of convolution and pooling as Caffe counts them")
        be.add_argument("--deterministic", action="store_true", help="the same bits, run after run")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None, gen_be: bool = True
    ) -> argparse.Namespace:
        """Return what the command line says, with ``callback_args`` for Callbacks; ``gen_be``: make the backend, too.

        ``args.backend`` is then the backend. It is the current one, which layers and data take.
        """
        words = list(sys.argv[1:] if args is None else args)
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("-c", "--config", type=Path, action="append", default=[])
        files = [*self.config_files, *finder.parse_known_args(words)[0].config]
        said = [word for file in files for word in self._words(Path(file))]
        found: argparse.Namespace = super().parse_args([*said, *words], namespace)
        self._log(found)
        found.callback_args = {
            "output_file": found.output_file,
            "eval_freq": found.eval_freq,
            "progress_bar": not found.no_progress_bar,
            "save_path": found.save_path,
            "serialize": found.serialize,
            "history": found.history,
            "model_file": found.model_file,
            "log_token": found.log_token,
        }
        if gen_be:
            try:
                found.backend = gen_backend(
                    found.backend,
                    rng_seed=found.rng_seed,
                    datatype=DATATYPES[found.datatype],
                    batch_size=found.batch_size,
                    stochastic_round=bool(found.rounding),
                    device_id=found.device_id,
                    max_devices=found.max_devices,
                    compat_mode="caffe" if found.caffe else None,
                    deterministic=found.deterministic or None,
                )
            except (ImportError, RuntimeError, ValueError) as error:
                self.error(str(error))
        return found

    def _words(self, file: Path) -> list[str]:
        """Return what a file says, as words of a command line."""
        read = configparser.ConfigParser(interpolation=None, default_section="", allow_no_value=True)
        try:
            read.read_string("[options]\n" + file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            self.error(f"{file}: {error}")
        words = []
        for key, value in (item for section in read.sections() for item in read[section].items()):
            if (value or "true").lower() == "true":
                words.append(f"--{key}")
            elif value.lower() != "false":
                words.append(f"--{key}={value}")
        return words

    def _log(self, found: argparse.Namespace) -> None:
        """Send what is logged to the screen, and to a file."""
        log = logging.getLogger("neonlite")
        log.setLevel(LEVELS[min(max(found.verbose, 1), 3) - 1])
        if not log.hasHandlers():
            log.addHandler(logging.StreamHandler())
        if found.log is not None:
            try:
                handler = logging.FileHandler(found.log)
            except OSError as error:
                self.error(f"--log: {error}")
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            log.addHandler(handler)


def extract_valid_args(args: Any, func: Callable[..., Any], startidx: int = 0) -> dict[str, Any]:
    """Return what a function takes by name, from its parameter ``startidx`` on, among what a command line says.

    >>> extract_valid_args(NeonArgparser().parse_args(["-b", "cpu"], gen_be=False), lambda epochs, depth: None)
    {'epochs': 10}
    """
    names = list(inspect.signature(func).parameters)[startidx:]
    return {name: value for name, value in vars(args).items() if name in names}


def whole(text: str) -> int:
    """Return a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1; got {text}")
    return int(text)
