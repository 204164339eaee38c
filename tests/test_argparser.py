"""Scripts that were written for neon's options find them, and their mistakes are told."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.argparser import NeonArgparser, extract_valid_args
from neonlite.backend.current import current
from neonlite.callbacks import Callbacks
from neonlite.data import iris
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti


def parsed(line: str, **more):
    return NeonArgparser("A script.", **more).parse_args(line.split())


def test_a_script_of_neons_kind_trains_from_its_command_line(tmp_path):
    parser = NeonArgparser(__doc__, default_overrides={"batch_size": 16, "epochs": 4})
    parser.add_argument("--keep", type=float, default=1.0)
    args = parser.parse_args(["-b", "cpu", "-r", "3", "--no_progress_bar", "--keep", "0.9", "-s", f"{tmp_path / 'i'}"])
    train, valid = iris(args.data_dir).iterators()
    model = Model(zoo.mlp(3, keep=args.keep))
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), **args.callback_args)
    model.fit(train, CrossEntropyMulti(), Adam(), num_epochs=args.epochs, callbacks=callbacks)
    assert model.epoch_index == 4
    assert Model(tmp_path / "i").epoch_index == 4


def test_the_backend_is_made_as_it_is_asked_for():
    args = parsed("-b cpu -z 64 -r 11 -d f64 --caffe --deterministic")
    be = args.backend
    assert be is current()
    assert (be.name, be.bsz, be.rng_seed, be.compat_mode, be.deterministic) == ("cpu", 64, 11, "caffe", True)
    assert be.zeros((1, 1)).dtype == np.float64


def test_no_backend_is_made_unless_it_is_wanted():
    be = gen_backend("cpu")
    args = NeonArgparser().parse_args(["-b", "gpu"], gen_be=False)
    assert current() is be
    assert args.backend == "gpu"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("", "progress_bar", True),
        ("--no_progress_bar", "progress_bar", False),
        ("--serialize", "serialize", 1),
        ("--serialize 3", "serialize", 3),
        ("-eval 2", "eval_freq", 2),
        ("--eval-freq 2", "eval_freq", 2),
        ("-H 5", "history", 5),
        ("-H 5", "model_file", None),
    ],
)
def test_callbacks_are_told(line, name, value):
    args = NeonArgparser().parse_args(line.split(), gen_be=False)
    assert args.callback_args[name] == value


def test_a_file_gives_options_and_the_command_line_comes_first(tmp_path):
    file, first = tmp_path / "run.cfg", tmp_path / "first.cfg"
    file.write_text(
        "# of a script\nepochs = 7\nbatch-size: 9\nno_progress_bar = true\ncaffe = false\n[more]\nseed = 4\n"
    )
    first.write_text("epochs = 6\nhistory = 2\n")
    args = parsed(f"-b cpu -c {file} -z 8", config_files=[first])
    assert (args.epochs, args.batch_size, args.rng_seed, args.history) == (7, 8, 4, 2)
    assert args.no_progress_bar
    assert not args.caffe


def test_what_the_shell_says_is_read_unless_arguments_are_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", "-e", "2", "-b", "cpu"])
    assert NeonArgparser().parse_args().epochs == 2


def test_the_log_is_written_to_a_file(tmp_path):
    parsed(f"-b cpu -v -l {tmp_path / 'run.log'}")
    log = logging.getLogger("neonlite")
    log.info("said")
    for handler in log.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.close()
            log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    assert (tmp_path / "run.log").read_text().endswith("said\n")


@pytest.mark.parametrize(("words", "seen"), [("", 1), ("-v", 2), ("-v -v", 3), ("-vvv", 3)])
def test_what_is_logged_is_seen_as_much_as_is_asked_for(words, seen):
    script = """
import logging
from neonlite.argparser import NeonArgparser
NeonArgparser().parse_args()
log = logging.getLogger("neonlite")
log.warning("warned"), log.info("told"), log.debug("all")
"""
    command = [sys.executable, "-c", script, "-b", "cpu", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr.split() == ["warned", "told", "all"][:seen]


def test_a_function_is_given_what_it_takes():
    def made(batch_size, epochs, width=1): ...

    args = parsed("-b cpu -e 3")
    assert extract_valid_args(args, made) == {"batch_size": 128, "epochs": 3}
    assert extract_valid_args(args, made, startidx=1) == {"epochs": 3}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-b gup", "did you mean 'gpu'?"),
        ("-b cpu -i 7", "7"),
        ("-d f99", "invalid choice: 'f99'"),
        ("-z 0", "a whole number from 1; got 0"),
        ("-c /nowhere", "/nowhere"),
        ("-b cpu -l /nowhere/log", "--log: [Errno 2] No such file or directory: '/nowhere/log'"),
        ("--nothing 3", "unrecognized arguments: --nothing"),
        ("-c {file}", "--nothing=3"),
    ],
)
def test_mistakes_are_told_in_one_line_with_the_usage(capsys, tmp_path, line, words):
    file = tmp_path / "wrong.cfg"
    file.write_text("nothing = 3\n")
    with pytest.raises(SystemExit) as ended:
        parsed(line.format(file=file))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_defaults_of_options_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="got bacth_size"):
        NeonArgparser(default_overrides={"bacth_size": 3})
