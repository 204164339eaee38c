"""Files are written atomically, whatever else happens in their folder at the same time."""

from __future__ import annotations

import io
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neonlite import gen_backend
from neonlite.callbacks import Callbacks, History
from neonlite.callbacks.monitoring import SaveBestStateCallback
from neonlite.cli import main
from neonlite.data import Text
from neonlite.files import check_writable, encodable, same_file, write_atomic
from neonlite.initializers import Constant
from neonlite.layers import Affine
from neonlite.models import Model

posix = pytest.mark.skipif(os.name == "nt", reason="modes, links and devices of POSIX")


def small() -> Model:
    """Return a network that can be saved."""
    gen_backend("cpu", rng_seed=1, batch_size=2)
    model = Model([Affine(1, Constant(1))])
    model.initialize(3)
    return model


def save_model(path: Path) -> None:
    small().save_params(path)


def write_history(path: Path) -> None:
    pytest.importorskip("h5py")
    History().write(path)


def plot_history(path: Path) -> None:
    pytest.importorskip("matplotlib")
    History().plot(path)


def write_times(path: Path) -> None:
    assert main(["bench", "mlp", "-b", "cpu", "-n", "1", "-z", "2", "--shape", "4", "--json", str(path)]) == 0


def split_text(path: Path) -> None:
    """Write NAME_train.EXT, which is the given path, and NAME_valid.EXT."""
    whole = path.with_stem(path.stem.removesuffix("_train"))
    whole.write_text("one two three four " * 9)
    assert Text.create_valid_file(whole)[0] == str(path)


every_writer = pytest.mark.parametrize(
    "write", [lambda path: write_atomic(path, b"new"), save_model, write_history, plot_history, write_times, split_text]
)


# --- the replaced file -----------------------------------------------------------------------------------------------


@every_writer
def test_a_file_is_synchronized_before_it_replaces_the_target_and_its_folder_afterwards(tmp_path, monkeypatch, write):
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(file: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def recording_replace(part: Any, file: Any) -> None:
        events.append("replace")
        replace(part, file)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    write(tmp_path / "m_train.png")
    assert events[:3] == ["file", "replace", "folder"]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


@posix
@every_writer
def test_a_link_is_kept_and_its_target_is_replaced_with_its_mode(tmp_path, write):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    target, link = tmp_path / "there" / "target.png", tmp_path / "here" / "m_train.png"
    link.symlink_to(Path("..") / "there" / "target.png")
    write(link)  # the target is not there yet
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
    for mode in (0o600, 0o640, 0o755):
        target.write_bytes(b"old")
        target.chmod(mode)
        write(link)
        assert link.is_symlink()
        assert target.read_bytes() not in (b"old", b"")
        assert stat.S_IMODE(target.stat().st_mode) == mode
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["target.png"]


@posix
def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "m").symlink_to("m")
    for write in (lambda path: write_atomic(path, b"new"), save_model):
        with pytest.raises(OSError, match="symbolic links"):
            write(tmp_path / "m")
    assert (tmp_path / "m").is_symlink()


def character_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null is
    except PermissionError:
        pytest.skip("only root makes devices")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as created:
        folder = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must be short
        try:
            created.bind(path.name)
        finally:
            os.chdir(folder)


KINDS = (
    {"a character device": character_device, "a FIFO": os.mkfifo, "a socket": unix_socket} if os.name != "nt" else {}
)


@posix
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_a_fifo_and_a_socket_are_never_replaced(tmp_path, capsys, kind, linked):
    path, name = tmp_path / "special", tmp_path / ("link" if linked else "special")
    KINDS[kind](path)
    before = path.lstat()
    if linked:
        name.symlink_to(path)
    message = f"expected the path of a regular file, or of a new one; {name} is {kind}"
    with pytest.raises(OSError, match=message):
        write_atomic(name, b"new")
    with pytest.raises(OSError, match=f"model.save_params: {message}"):
        save_model(name)
    assert main(["train", "iris", "-e", "1", "-b", "cpu", "--no-progress-bar", "--save", str(name)]) == 1
    assert f"save_path: {message}" in capsys.readouterr().err
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


# --- the temporary file ----------------------------------------------------------------------------------------------


@posix
def test_the_temporary_file_is_new_follows_no_link_and_has_a_unique_name(tmp_path, monkeypatch):
    opened, real = [], os.open

    def recording_open(path: Any, flags: int, *mode: int) -> int:
        if str(path).endswith(".part"):
            opened.append((str(path), flags, *mode))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", recording_open)
    for _ in range(3):
        write_atomic(tmp_path / "m", b"new")
    names, flags, modes = zip(*opened, strict=True)
    assert len(set(names)) == 3
    assert all(flag & os.O_CREAT and flag & os.O_EXCL and flag & os.O_NOFOLLOW for flag in flags)
    assert modes == (0o666, 0o600, 0o600)  # others cannot read what the previous file protected


WRITER = """
import os, sys
from neonlite.files import write_atomic
os.fsync = lambda file: None
print("ready", flush=True)
sys.stdin.readline()
for i in range(300):
    write_atomic(sys.argv[1], sys.argv[2].encode() * 50_000)
"""


@pytest.mark.long
def test_processes_that_write_one_file_at_the_same_time_do_not_interfere(tmp_path):
    path = tmp_path / "m"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, letter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for letter in "ab"
    ]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
    assert [writer.communicate()[1] for writer in writers] == [b"", b""]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {b"a" * 50_000, b"b" * 50_000}
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


@posix
def test_temporary_files_of_killed_processes_are_removed_and_those_of_live_ones_are_not(tmp_path):
    import fcntl

    left, held = (tmp_path / f"m.{digit * 16}.part" for digit in "0f")
    others = [tmp_path / name for name in ("m.part", "m.0.part", f"mm.{'0' * 16}.part", f"m.{'0' * 16}.part.neon")]
    for path in (left, held, *others):
        path.write_bytes(b"part")
    with open(held, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomic(tmp_path / "m", b"new")
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "m", held, *others])
    write_atomic(tmp_path / "m", b"newer")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "m", *others])


@posix
def test_a_temporary_file_that_another_process_removed_is_created_again(tmp_path, monkeypatch):
    import fcntl

    real, removed = fcntl.flock, []

    def slow(descriptor: int, how: int) -> None:
        """Lock a file after another process removed it."""
        if not removed:
            removed.extend(tmp_path.glob("m.*.part"))
            removed[0].unlink()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    write_atomic(tmp_path / "m", b"new")
    assert len(removed) == 1
    assert (tmp_path / "m").read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_previous_file_and_nothing_else(tmp_path, monkeypatch, call, error):
    path = tmp_path / "m"
    path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


@posix
@pytest.mark.parametrize("name", ["m" * 234, "m" * 255, "é" * 127])
def test_a_long_file_name_is_shortened_in_the_temporary_file(tmp_path, name):
    import fcntl

    path = tmp_path / name
    write_atomic(path, b"new")
    write_atomic(path, b"newer")
    assert path.read_bytes() == b"newer"
    real = fcntl.flock
    try:
        fcntl.flock = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            write_atomic(path, b"no")
    finally:
        fcntl.flock = real
    assert len(list(tmp_path.iterdir())) == 2  # as a killed process leaves it
    write_atomic(path, b"newest")
    assert [x.name for x in tmp_path.iterdir()] == [name]


def test_a_file_is_written_to_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # like the mode w+x without r, which does not affect root
    write_atomic(tmp_path / "m", b"new")
    assert (tmp_path / "m").read_bytes() == b"new"


@pytest.mark.parametrize("path", [None, 3, b"m", "", "a\0b"])
def test_an_argument_that_is_not_a_path_is_rejected_by_name(path):
    for call, what in (
        (lambda: small().save_params(path), "model.save_params"),
        (lambda: SaveBestStateCallback(path), "SaveBestStateCallback: path"),
        (lambda: write_atomic(path, b"new"), "write_atomic"),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert str(error.value) == f"{what}: expected a path, got {path!r}"


# --- one path for two files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--save c.png --plot c.png", "--plot and --save name one file"),
        ("--save c.png --plot c", "--plot and --save name one file"),
        ("--save c.png --plot ./no/../c.png", "--plot and --save name one file"),
        ("--save c.png --plot link.png", "--plot and --save name one file"),
        ("--resume c.png --plot c.png", "--plot and --resume name one file"),
        ("--save a --resume c.png --plot c.png", "--plot and --resume name one file"),
        ("--data-dir c.png --save c.png", "--data-dir and --save name one file"),
        ("--data-dir c.png --plot c.png", "--plot and --data-dir name one file"),
    ],
)
def test_options_that_name_one_file_are_refused(tmp_path, monkeypatch, capsys, arguments, message):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("no").mkdir()
    Path("c.png").write_text("a text " * 100)
    if "link" in arguments:
        Path("link.png").symlink_to("c.png")
    assert main(["train", "text", "-b", "cpu", *arguments.split()]) == 1
    assert message in capsys.readouterr().err
    assert Path("c.png").read_text() == "a text " * 100


def test_callbacks_that_write_one_file_are_refused(tmp_path, monkeypatch):
    model = small()
    monkeypatch.chdir(tmp_path)
    callbacks = Callbacks(model, progress_bar=False, save_path=tmp_path / "m")
    with pytest.raises(
        ValueError, match="SerializeModelCallback and SaveBestStateCallback: expected different files, got m"
    ):
        callbacks.add_callback(SaveBestStateCallback("m"))
    callbacks.add_callback(SaveBestStateCallback("best"))


def test_two_paths_are_one_file_by_links_also_hard_ones(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    assert not same_file(one, other)
    one.write_bytes(b"")
    other.hardlink_to(one)
    assert same_file(one, other)
    assert check_writable("x", str(one)) == str(one)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "ä → 数"),
        ("cp1252", "ä \\u2192 \\u6570"),
        ("ascii", "\\xe4 \\u2192 \\u6570"),
        ("no such", "\\xe4 \\u2192 \\u6570"),
    ],
)
def test_the_characters_that_a_stream_cannot_encode_are_escaped(encoding, expected):
    assert encodable("ä → 数", SimpleNamespace(encoding=encoding)) == expected
    assert encodable("ä → 数", io.StringIO()) == "ä → 数"
