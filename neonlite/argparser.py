"""NeonArgparser: the command-line options of neon's scripts."""

from __future__ import annotations

import argparse
import configparser
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.backend.bfloat16 import INSTALL_COMMAND, is_available
from neonlite.backend.runtimes import default_runtime, list_runtimes
from neonlite.backend.shape_dtype import DATATYPES, dtype_of
from neonlite.version import __version__

LOG_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # indexed by the number of -v, less one


class NeonArgparser(argparse.ArgumentParser):
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
        self.add_argument("--version", action="version", version=f"neonlite {__version__}")
        self.add_argument("-c", "--config", type=Path, metavar="FILE", help="file with lines option = value")
        self.add_argument("-v", "--verbose", action="count", default=1, help="log more; -v -v logs everything")
        self.add_argument("--no_progress_bar", "--no-progress-bar", action="store_true", help="print no progress bar")

        run = self.add_argument_group("run options")
        run.add_argument("-w", "--data_dir", "--data-dir", default="", metavar="FOLDER", help="folder of the data sets")
        run.add_argument(
            "-e", "--epochs", type=positive_int, default=10, help="number of epochs (default: %(default)s)"
        )
        run.add_argument(
            "-s", "--save_path", "--save-path", type=Path, metavar="FILE", help="write checkpoints to FILE"
        )
        run.add_argument(
            "--serialize", type=positive_int, nargs="?", const=1, default=0, help="epochs between checkpoints"
        )
        run.add_argument("--model_file", "--model-file", type=Path, metavar="FILE", help="resume from this checkpoint")
        run.add_argument("-l", "--log", type=Path, metavar="FILE", help="also write the log to FILE")
        run.add_argument(
            "-o", "--output_file", "--output-file", type=Path, metavar="FILE", help="write the history as HDF5"
        )
        run.add_argument("-eval", "--eval_freq", "--eval-freq", type=positive_int, help="epochs between evaluations")
        run.add_argument(
            "-H", "--history", type=positive_int, default=1, help="number of checkpoints to keep (default: %(default)s)"
        )
        run.add_argument("--log_token", "--log-token", default="", help=argparse.SUPPRESS)
        run.add_argument("--manifest", action="append", default=[], metavar="KEY:VALUE", help=argparse.SUPPRESS)
        run.add_argument("--manifest_root", "--manifest-root", type=Path, help=argparse.SUPPRESS)

        be = self.add_argument_group("backend options")
        be.add_argument(
            "-b", "--backend", help=f"one of {', '.join(list_runtimes())} (default: mkl if it is installed, else cpu)"
        )
        be.add_argument("-i", "--device_id", "--device-id", type=int, default=0, help="device (default: %(default)s)")
        be.add_argument("-m", "--max_devices", "--max-devices", type=int, help=argparse.SUPPRESS)
        be.add_argument("-r", "--rng_seed", "--rng-seed", "--seed", type=int, help="random seed")
        be.add_argument(
            "-u", "--rounding", type=int, nargs="?", const=1, default=0, help="round 16-bit weights stochastically"
        )
        be.add_argument("-d", "--datatype", choices=DATATYPES, default="f32", help="%(choices)s (default: %(default)s)")
        be.add_argument(
            "-z",
            "--batch_size",
            "--batch-size",
            type=positive_int,
            default=128,
            help="batch size (default: %(default)s)",
        )
        be.add_argument("--caffe", action="store_true", help="compute output sizes of convolution and pooling as Caffe")
        be.add_argument("--deterministic", action="store_true", help="use only reproducible algorithms")

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
        argv = list(sys.argv[1:] if args is None else args)
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("-c", "--config", type=Path, action="append", default=[])
        files = [*self.default_config_files, *finder.parse_known_args(argv)[0].config]
        config_argv = [argument for file in files for argument in self._read_config(Path(file))]
        result: argparse.Namespace = super().parse_args([*config_argv, *argv], namespace)
        self._configure_logging(result)
        result.backend = result.backend or default_runtime()
        result.datatype = self._datatype(result.datatype)
        result.compat_mode = "caffe" if result.caffe else None
        result.rounding = int(result.rounding > 0)
        result.manifest = self._manifest(result.manifest)
        result.callback_args = {
            "output_file": result.output_file,
            "eval_freq": result.eval_freq,
            "progress_bar": not result.no_progress_bar,
            "save_path": result.save_path,
            "serialize": result.serialize,
            "history": result.history,
            "model_file": result.model_file,
            "log_token": result.log_token,
        }
        if gen_be:
            try:
                gen_backend(**extract_valid_args(result, gen_backend))
            except (ImportError, RuntimeError, ValueError) as error:
                self.error(str(error))
        return result

    def _datatype(self, value: Any) -> Any:
        """Return the NumPy dtype for the value of the option, such as float32 for "f32"."""
        if value == "bf16" and not is_available():
            self.error(f"bfloat16 needs ml_dtypes: {INSTALL_COMMAND}")
        return dtype_of(value)

    def _manifest(self, entries: Sequence[str]) -> dict[str, str]:
        """Return the entries KEY:VALUE as a dict."""
        if invalid := [entry for entry in entries if ":" not in entry]:
            self.error(f"--manifest: expected KEY:VALUE, got {invalid[0]}")
        return {key: value for key, _, value in (entry.partition(":") for entry in entries)}

    def _read_config(self, file: Path) -> list[str]:
        """Return the options of a configuration file as command-line arguments."""
        config = configparser.ConfigParser(interpolation=None, default_section="", allow_no_value=True)
        try:
            config.read_string("[options]\n" + file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            self.error(f"{file}: {error}")
        arguments = []
        for key, value in (item for section in config.sections() for item in config[section].items()):
            if (value or "true").lower() == "true":
                arguments.append(f"--{key}")
            elif value.startswith("[") and value.endswith("]"):  # an option that can be repeated
                arguments += [f"--{key}={entry.strip()}" for entry in value[1:-1].split(",")]
            elif value.lower() != "false":
                arguments.append(f"--{key}={value}")
        return arguments

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


def positive_int(text: str) -> int:
    """Parse a positive integer. Raise ArgumentTypeError if the text is not one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text}")
    return int(text)
