"""Command-line parsers that read configuration files; NeonArgparser, with the options of neon's scripts."""

from __future__ import annotations

import argparse
import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, NoReturn

import neonlite as nl
from neonlite.backend import creation
from neonlite.backend.runtimes import default_runtime, list_runtimes
from neonlite.files import open_input, printable
from neonlite.messages import did_you_mean
from neonlite.typing import INSTALL_ML_DTYPES, has_bfloat16

LOG_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # indexed by the number of -v, less one
MAX_CONFIG_BYTES = 1 << 20  # a larger file was given by mistake
CALLBACK_OPTIONS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (  # parameters of Callbacks
    ("save_path", ("-s",), {"help": "write checkpoints to FILE"}),
    ("serialize", (), {"nargs": "?", "const": 1, "help": "epochs between checkpoints"}),
    ("model_file", (), {"help": "resume from this checkpoint"}),
    ("output_file", ("-o",), {"help": "write the history as HDF5"}),
    ("eval_freq", ("-eval",), {"help": "epochs between evaluations"}),
    ("history", ("-H",), {"help": "number of checkpoints to keep (default: %(default)s)"}),
    ("log_token", (), {"default": "", "help": argparse.SUPPRESS}),
)


class ConfigParser(argparse.ArgumentParser):
    """An argument parser whose option ``--config`` names a file with a line ``option = value`` for each option.

    The command line overrides the file. Control characters in error messages are escaped.
    """

    default_config_files: Sequence[Any] = ()
    add_options: Callable[[ConfigParser], None] | None = None  # of a command, which adds them when it is parsed

    def add_config_option(self) -> None:
        """Add the option --config."""
        text = "read options from FILE, with lines option = value; those of the command line override them"
        self.add_argument("-c", "--config", type=Path, metavar="FILE", help=text)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments of the files that the command line names, and then those of the command line."""
        add_options, self.add_options = self.add_options, None
        if add_options is not None:
            add_options(self)
        argv = list(sys.argv[1:] if args is None else args)
        if any(action.dest == "config" for action in self._actions):
            reader = self._options()
            reader.add_argument("-c", "--config", type=Path, action="append", default=list(self.default_config_files))
            with suppress(argparse.ArgumentError):  # which is reported below
                files = reader.parse_known_args(argv)[0].config
                argv = [argument for file in files for argument in self._read_config(Path(file))] + argv
        return super().parse_known_args(argv, namespace)

    def _options(self) -> argparse.ArgumentParser:
        """Return a parser of the options that a file may contain, which raises ArgumentError."""
        parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        for action in self._actions:
            if action.option_strings and action.dest not in ("help", "version", "config"):
                option = copy(action)
                option.required = False
                parser._add_action(option)
        return parser

    def _read_config(self, file: Path) -> list[str]:
        """Return the options of a configuration file as command-line arguments."""
        try:
            with open_input(file) as stream:
                text = stream.read(MAX_CONFIG_BYTES + 1)
            if len(text) > MAX_CONFIG_BYTES:
                raise ValueError(f"expected at most {MAX_CONFIG_BYTES} bytes, got more")
            lines = text.decode("utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            self.error(f"{file}: {error}")
        reader = self._options()
        options = {name.lstrip("-").replace("-", "_"): x for x in reader._actions for name in x.option_strings}
        arguments: dict[str, list[str]] = {}
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line[0] in "#;[":  # a comment, or the name of a section
                continue
            key, value = (*map(str.strip, re.split("[=:]", line, maxsplit=1)), "")[:2]
            action = options.get(key.replace("-", "_"))
            try:
                if action is None:
                    raise ValueError(f"expected the name of an option, got {key!r}.{did_you_mean(key, options)}")
                if action.dest in arguments:
                    raise ValueError(f"expected each option once, got {key} again")
                arguments[action.dest] = [*format_arguments(action, value)]
                reader.parse_args(arguments[action.dest])
            except (argparse.ArgumentError, ValueError) as error:
                self.error(f"{file}, line {number}: {error}")
        # --config ends the values of an option that has several
        return [*(argument for found in arguments.values() for argument in found), f"--config={file}"]

    def error(self, message: str) -> NoReturn:
        """Print a message and exit."""
        super().error(printable(message, ""))


def format_arguments(option: argparse.Action, value: str) -> Iterator[str]:
    """Yield the command-line arguments of an option and its value in a configuration file."""
    name, is_true = option.option_strings[-1], value.lower() in ("", "true")
    if option.nargs == 0:
        if not is_true and value.lower() != "false":
            raise ValueError(f"{name}: expected true or false, got {value!r}")
        if is_true:
            yield name
        return
    is_list = value.startswith("[") and value.endswith("]")
    entries = [entry.strip() for entry in value[1:-1].split(",")] if is_list else [value]
    if option.nargs in ("+", "*"):
        yield from (name, *entries)
    elif option.nargs == "?" and is_true:
        yield name
    else:
        yield from (f"{name}={entry}" for entry in entries)


class NeonArgparser(ConfigParser):
    """An argparse parser with the options of neon's scripts; add your own with ``add_argument``.

    Parameters
    ----------
    *args
        The description, as in neon, where scripts pass their docstring.
    default_overrides : dict of str to object, optional
        Defaults that replace those of options, by attribute name.
    default_config_files : sequence of str or Path
        Files with a line ``option = value`` for each option, as for ``-c``. Options of the command line override those
        of files.
    **kwargs
        Arguments of argparse.ArgumentParser.

    Raises
    ------
    ValueError
        If ``default_overrides`` names unknown options.

    Examples
    --------
    >>> import numpy as np
    >>> from neonlite.argparser import NeonArgparser
    >>> parser = NeonArgparser("Train a network.", default_overrides={"batch_size": 64})
    >>> args = parser.parse_args(["-b", "cpu", "-e", "3", "--manifest", "train:list.csv"])
    >>> args.epochs, args.backend, args.batch_size, args.callback_args["progress_bar"]
    (3, 'cpu', 64, True)
    >>> args.datatype in [np.float32, np.float16], args.manifest
    (True, {'train': 'list.csv'})
    """

    def __init__(
        self,
        *args: Any,
        default_overrides: Mapping[str, Any] | None = None,
        default_config_files: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        if args:  # the description, where argparse expects the name of the program
            kwargs.setdefault("description", args[0])
        super().__init__(**kwargs)
        self.default_config_files = list(default_config_files)
        self._add_options()
        unknown = set(default_overrides or {}) - {action.dest for action in self._actions}
        if unknown:
            raise ValueError(f"default_overrides: expected names of options, got {', '.join(sorted(unknown))}.")
        self.set_defaults(**(default_overrides or {}))

    def _add_options(self) -> None:

        self.add_argument("--version", action="version", version=f"neonlite {nl.__version__}")
        self.add_config_option()
        self.add_argument("-v", "--verbose", action="count", default=1, help="log more; -v -v logs everything")
        add_option(self, "progress_bar", of=nl.callbacks.Callbacks, help="print no progress bar")

        run = self.add_argument_group("run options")
        add_option(run, "data_dir", "-w", default="", metavar="FOLDER", help="folder of the data sets")
        add_option(run, "epochs", "-e", type=positive_int, default=10, help="number of epochs (default: %(default)s)")
        for name, flags, settings in CALLBACK_OPTIONS:
            add_option(run, name, *flags, of=nl.callbacks.Callbacks, **settings)
        add_option(run, "log", "-l", type=Path, help="also write the log to FILE")
        add_option(run, "manifest", action="append", default=[], metavar="KEY:VALUE", help=argparse.SUPPRESS)
        add_option(run, "manifest_root", type=Path, help=argparse.SUPPRESS)

        be = self.add_argument_group("backend options")
        add_backend_option(be)
        add_option(be, "device_id", "-i", of=nl.gen_backend, type=int, help="device (default: %(default)s)")
        add_option(be, "max_devices", "-m", of=nl.gen_backend, type=int, help=argparse.SUPPRESS)
        add_option(be, "rng_seed", "-r", "--seed", of=nl.gen_backend, type=int, help="random seed")
        add_option(
            be, "rounding", "-u", type=int, nargs="?", const=1, default=0, help="round 16-bit weights stochastically"
        )
        datatypes = "%(choices)s (default: %(default)s)"
        add_option(be, "datatype", "-d", choices=creation.DATATYPES, default="f32", help=datatypes)
        add_option(be, "batch_size", "-z", of=nl.gen_backend, default=128, help="batch size (default: %(default)s)")
        add_option(be, "caffe", action="store_true", help="compute output sizes of convolution and pooling as Caffe")
        add_option(be, "deterministic", action="store_true", help="use only reproducible algorithms")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None, gen_be: bool = True
    ) -> argparse.Namespace:
        """Parse the options and create the backend.

        The backend becomes the current one; ``gen_backend(**extract_valid_args(args, gen_backend))`` creates one with
        the same options. As in neon, the namespace has ``backend`` (the name of the runtime), ``datatype`` (a NumPy
        dtype), ``manifest`` (a dict), ``data_dir`` (a string, by default empty) and ``rounding`` (1 or 0, for
        ``stochastic_round``).

        Parameters
        ----------
        args : sequence of str, optional
            The command line; default: that of the process.
        namespace : argparse.Namespace, optional
            Object to set the attributes on; default: a new one.
        gen_be : bool
            Whether to create a backend with the options; default: True.

        Returns
        -------
        argparse.Namespace
            The options, and ``callback_args``, a dict of arguments of Callbacks.
        """
        result: argparse.Namespace = super().parse_args(args, namespace)
        self._configure_logging(result)
        result.backend = result.backend or default_runtime()
        result.datatype = self._datatype(result.datatype)
        result.compat_mode = "caffe" if result.caffe else None
        result.rounding = int(result.rounding > 0)
        result.manifest = self._manifest(result.manifest)
        result.callback_args = {name: getattr(result, name) for name, *_ in CALLBACK_OPTIONS}
        result.callback_args["progress_bar"] = not result.no_progress_bar
        if gen_be:
            try:
                nl.gen_backend(**extract_valid_args(result, nl.gen_backend))
            except (ImportError, RuntimeError, ValueError) as error:
                self.error(str(error))
        return result

    def _datatype(self, value: Any) -> Any:
        """Return the NumPy dtype for the value of the option, such as float32 for "f32"."""
        if value == "bf16" and not has_bfloat16():
            self.error(f"bfloat16 needs ml_dtypes: {INSTALL_ML_DTYPES}")
        return creation.dtype_of(value)

    def _manifest(self, entries: Sequence[str]) -> dict[str, str]:
        """Return the entries KEY:VALUE as a dict."""
        if invalid := [entry for entry in entries if ":" not in entry]:
            self.error(f"--manifest: expected KEY:VALUE, got {invalid[0]}")
        return {key: value for key, _, value in (entry.partition(":") for entry in entries)}

    def _configure_logging(self, args: argparse.Namespace) -> None:
        """Log to standard error, and to the file of --log."""
        log = logging.getLogger("neonlite")
        log.setLevel(LOG_LEVELS[min(max(args.verbose, 1), 3) - 1])
        if not log.hasHandlers():
            log.addHandler(logging.StreamHandler())
        if args.log is not None:
            try:
                handler = logging.FileHandler(args.log)
            except OSError as error:
                self.error(f"--log: {error}")
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            log.addHandler(handler)


def add_backend_option(command: Any) -> None:
    """Add the option for the runtime of the backend."""
    runtimes = ", ".join(list_runtimes())
    add_option(
        command,
        "backend",
        "-b",
        of=nl.gen_backend,
        help=f"one of {runtimes} (default: mkl if it is installed, else cpu)",
    )


def extract_valid_args(args: Any, func: Callable[..., Any], startidx: int = 0) -> dict[str, Any]:
    """Return the parsed options that are parameters of a function.

    Parameters
    ----------
    args : argparse.Namespace
        The options.
    func : callable
        The function.
    startidx : int
        Number of leading parameters to skip; default: 0.

    Returns
    -------
    dict of str to object
        Keyword arguments for the function.

    Examples
    --------
    >>> extract_valid_args(NeonArgparser().parse_args(["-b", "cpu"], gen_be=False), lambda epochs, depth: None)
    {'epochs': 10}
    """
    names = list(inspect.signature(func).parameters)[startidx:]
    return {name: value for name, value in vars(args).items() if name in names}


def number(expected: str, kind: Callable[[str], Any], is_valid: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a function that parses numbers, or raises ArgumentTypeError; of integers only digits are accepted."""

    def parse(text: str) -> Any:
        """Return the number that a text contains."""
        try:
            value = kind(text) if kind is not int or text.isdecimal() else math.nan
        except ValueError:
            value = math.nan
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        return value

    return parse


positive_int = number("a positive integer", int, lambda n: n >= 1)
positive_float = number("a positive number", float, lambda x: 0 < x < math.inf)
PARSERS = {"int": positive_int, "float": positive_float, "Path": Path}  # by types in annotations


def add_option(command: Any, name: str, *flags: str, of: Callable[..., Any] | None = None, **settings: Any) -> None:
    """Add the option --NAME to a parser or a group; an underscore in it may also be a hyphen.

    ``of``: the function with this parameter. Its annotation and default are those of the option, unless ``settings``,
    arguments of ``add_argument``, has others. The option of a parameter that is True by default is --no-NAME.
    """
    if of is not None:
        parameter = inspect.signature(of).parameters[name]
        if isinstance(parameter.default, bool):
            settings["action"] = "store_true"
            name = f"no_{name}" if parameter.default else name
        else:
            types = [x for x in re.split(r"\W+", str(parameter.annotation)) if x in PARSERS]
            settings = {"type": PARSERS[types[0]] if types else None, **settings}
            if parameter.default not in (None, parameter.empty):
                settings.setdefault("default", parameter.default)
    if settings.get("type") is Path:
        settings.setdefault("metavar", "FILE")
    names = dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"])
    command.add_argument(*flags, *names, dest=name, **settings)
