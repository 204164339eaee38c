"""Processes started by MPI: results, output, errors, signals, and that none is left behind.

Tests ``neonlite/distributed/__init__.py`` and its command, ``neonlite/distributed/__main__.py``.
"""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from neonlite.distributed import RANK_SHELL, RUN_CALL, environment, launch, mpiexec_command, run
from neonlite.distributed.__main__ import main
from neonlite.models.training_state import read_checkpoint

pytest.importorskip("mpi4py")
pytest.importorskip("cloudpickle")
try:
    mpiexec_command([], 1)
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

PIP = 'pip install "neonlite[mpi]"'
CLI = [sys.executable, "-m", "neonlite.distributed"]
RECORD_SIGNALS = """
import os, signal, sys, time
from mpi4py import MPI
rank, received = MPI.COMM_WORLD.rank, []
def record(number, frame):
    received.append(number)
    with open(f"signals-{rank}", "a") as file:
        file.write(f"{number}\\n")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, record)
with open(f"pid-{rank}", "w") as file:
    file.write(f"{os.getpid()} ")
while not (received and "--stay" not in sys.argv):
    time.sleep(0.02)
time.sleep(0.3)  # the rest of the training step
sys.exit(128 + received[0])
"""


def wait_for(condition, seconds=20):
    """Return whether a condition is met in time."""
    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return result


def is_running(pid):
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


def pids(folder, n=2):
    """Return the process ids that n ranks have written."""
    written = [path.read_text() for path in folder.glob("pid-*")]
    return [int(text) for text in written] if len(written) == n and all(x.endswith(" ") for x in written) else []


def none_is_left(ids):
    return wait_for(lambda: not any(map(is_running, ids)), 5)


@pytest.fixture
def start_script(tmp_path):
    """Return a function that runs RECORD_SIGNALS on two ranks, and returns the launching process and their ids."""
    (tmp_path / "script.py").write_text(RECORD_SIGNALS)
    started = []

    def start(*arguments):
        hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, which children inherit
        try:
            command = [*CLI, "-n", "2", "script.py", *arguments]
            started.append(subprocess.Popen(command, cwd=tmp_path, start_new_session=True))
        finally:
            signal.signal(signal.SIGHUP, hangup)
        ids = wait_for(lambda: pids(tmp_path))
        assert ids
        return started[0], ids

    yield start
    for process in started:
        process.kill()
        process.wait()


# --- launch: results and output ---


def test_the_result_is_that_of_rank_0():
    def rank_and_size():
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    assert launch(rank_and_size, 3) == (0, 3)
    assert launch(rank_and_size, 1) == (0, 1)


def test_closures_and_lambdas_get_arrays_and_return_them():
    x, scale = np.arange(6.0).reshape(2, 3), 2
    y = launch(lambda a, b=0: a * scale + b + x, 2, np.ones((2, 3)), b=5)
    np.testing.assert_array_equal(y, x + 7)


def test_each_rank_is_another_process_in_the_same_folder_with_the_same_path():
    assert launch(lambda: (os.getpid(), os.getcwd(), sys.path), 1)[0] != os.getpid()
    _, folder, path = launch(lambda: (os.getpid(), os.getcwd(), sys.path), 1)
    assert folder == os.getcwd()
    assert {x for x in sys.path if x} <= set(path)


def test_output_appears_in_the_callers_streams_in_complete_lines(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    def speak():
        for i in range(1000):
            print("to", "stdout", i, "✓")
        print("to stderr", file=sys.stderr)

    launch(speak, 2)
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == sorted(f"to stdout {i} ✓" for i in range(1000) for rank in range(2))
    assert err.splitlines().count("to stderr") == 2


def test_output_appears_while_the_function_runs(tmp_path, monkeypatch):
    class Stream(io.StringIO):
        def write(self, text):
            if "ready" in text:
                (tmp_path / "seen").touch()
            return super().write(text)

    def wait():
        print("ready")
        end = time.monotonic() + 10
        while not (tmp_path / "seen").exists() and time.monotonic() < end:
            time.sleep(0.02)
        return (tmp_path / "seen").exists()

    monkeypatch.setattr(sys, "stdout", Stream())
    assert launch(wait, 1)


def test_a_function_of_a_script_runs_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from neonlite.distributed import launch\ndef f(x): return x + y\ny = 1\nprint(launch(f, 2, 4))")
    assert subprocess.check_output([sys.executable, script], text=True, cwd=tmp_path) == "5\n"


def test_a_function_of_a_notebook_runs_and_its_output_appears_in_the_cell():
    nbformat, nbclient = pytest.importorskip("nbformat.v4"), pytest.importorskip("nbclient")
    cells = [
        "from neonlite.distributed import launch\ndef f(x):\n    print('hello')\n    return x + 1",
        "launch(f, 1, 2)",
    ]
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    assert "".join(x.text for x in outputs if x.get("name") == "stdout") == "hello\n"
    assert [x.data["text/plain"] for x in outputs if x.output_type == "execute_result"] == ["3"]


# --- launch: errors ---


def test_an_error_of_rank_1_names_it_and_ends_all_ranks(tmp_path):
    def fail():
        from mpi4py import MPI

        (tmp_path / f"pid-{MPI.COMM_WORLD.rank}").write_text(f"{os.getpid()} ")
        if MPI.COMM_WORLD.rank == 1:
            raise ValueError("a wrong value")
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"rank 1 has raised an error(.|\n)*in fail\n(.|\n)*ValueError: a wrong value"
    ):
        launch(fail, 2)
    assert time.monotonic() - start < 10
    assert none_is_left(pids(tmp_path))


def test_the_death_of_a_rank_is_an_error_and_ends_all_ranks(tmp_path):
    def die():
        from mpi4py import MPI

        (tmp_path / f"pid-{MPI.COMM_WORLD.rank}").write_text(f"{os.getpid()} ")
        print("before the death", file=sys.stderr)
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RuntimeError, match=r"a process has ended .*exit status [1-9](.|\n)*before the death"):
        launch(die, 2)
    assert none_is_left(pids(tmp_path))


def test_the_other_ranks_have_time_to_report_a_rank_that_was_killed(capfd):
    def die():
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        print("rank 1 has died", flush=True)
        time.sleep(60)

    with pytest.raises(RuntimeError, match="exit status"):
        launch(die, 2)
    assert "rank 1 has died" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("exit", "message"), [(os._exit, "exit status 0"), (sys.exit, "rank 0 has raised(.|\n)*SystemExit")]
)
def test_a_function_that_ends_its_process_is_an_error(exit, message):
    with pytest.raises(RuntimeError, match=message):
        launch(lambda: exit(0), 1)


def test_what_cannot_be_pickled_is_a_type_error():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"expected a function and arguments that can be pickled.*in the function"):
        launch(lambda: lock, 1)
    with pytest.raises(TypeError, match=r"expected a result that can be pickled, got <unlocked"):
        launch(lambda: threading.Lock(), 1)


@pytest.mark.parametrize(("fn", "n", "kind"), [(print, 0, ValueError), (print, 1.5, TypeError), (3, 1, TypeError)])
def test_wrong_arguments_are_errors(fn, n, kind):
    with pytest.raises(kind, match="launch: expected"):
        launch(fn, n)


def test_ctrl_c_ends_all_ranks_and_is_raised_in_the_caller(tmp_path):
    def work():
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
        try:
            (tmp_path / f"pid-{rank}").write_text(f"{os.getpid()} ")
            time.sleep(60)
        except KeyboardInterrupt:
            (tmp_path / f"interrupted-{rank}").touch()
            raise

    def press():
        if wait_for(lambda: pids(tmp_path)):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launch(work, 2)
    thread.join()
    assert len(list(tmp_path.glob("interrupted-*"))) == 2
    assert none_is_left(pids(tmp_path))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- python -m neonlite.distributed: signals ---


@pytest.mark.parametrize(("sent", "received"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")])
def test_a_signal_is_forwarded_once_to_each_rank(start_script, tmp_path, sent, received):
    process, ids = start_script()
    os.killpg(process.pid, getattr(signal, sent))  # the process group, as a terminal does
    assert process.wait(20) == 128 + getattr(signal, sent)
    assert [(tmp_path / f"signals-{rank}").read_text() for rank in range(2)] == [f"{getattr(signal, received):d}\n"] * 2
    assert none_is_left(ids)


def test_a_second_signal_kills_all_ranks(start_script, tmp_path):
    process, ids = start_script("--stay")
    process.send_signal(signal.SIGTERM)
    assert wait_for(lambda: len(list(tmp_path.glob("signals-*"))) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert none_is_left(ids)


def test_no_rank_is_left_if_the_launching_process_is_killed(start_script):
    if sys.platform != "linux":
        pytest.skip("only Linux has PR_SET_PDEATHSIG")
    process, ids = start_script("--stay")
    process.kill()
    assert none_is_left(ids)


# --- what a job leaves ---

LAUNCH_PLAIN_MPI = """
import os, sys, time
from pathlib import Path
from neonlite.distributed import launch

def work(folder, kind):
    import re
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    MPI.COMM_WORLD.Barrier()
    shared = re.findall("/dev/shm/mpich_[a-z0-9_]+", Path("/proc/self/maps").read_text())
    assert shared
    (folder / "shared").write_text(shared[0])
    (folder / f"pid-{rank}").write_text(f"{os.getpid()} ")
    if rank == 1:
        if kind == "exit":
            os._exit(3)
        if kind == "kill":
            os.kill(os.getpid(), 9)
        if kind == "raise":
            raise ValueError
        if kind == "interrupt":
            raise KeyboardInterrupt
    time.sleep(60)

launch(work, 2, Path(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture
def start_launch(tmp_path):
    """Return a function that launches a function on two ranks, and returns the process and the ids of the ranks."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "script.py").write_text(LAUNCH_PLAIN_MPI)
    started = []

    def start(kind):
        command = [sys.executable, "script.py", str(tmp_path), kind]
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True))
        ids = wait_for(lambda: pids(tmp_path))
        assert ids
        return started[0], ids

    yield start
    for process in started:
        process.kill()
        process.communicate()


def nothing_is_left(folder, ids):
    """Return whether all ranks have ended, and left neither temporary files nor shared memory."""
    shared = Path((folder / "shared").read_text())
    return wait_for(
        lambda: not any(map(is_running, ids)) and not list((folder / "tmp").iterdir()) and not shared.exists(), 15
    )


@pytest.mark.parametrize("kind", ["exit", "kill", "raise", "interrupt"])
def test_a_rank_that_ends_abnormally_ends_the_job_and_leaves_nothing(start_launch, tmp_path, kind):
    process, ids = start_launch(kind)
    assert process.wait(20) != 0
    assert nothing_is_left(tmp_path, ids)


def test_a_launching_process_that_is_killed_leaves_nothing(start_launch, tmp_path):
    process, ids = start_launch("sleep")
    process.kill()
    assert nothing_is_left(tmp_path, ids)


def test_processes_of_mpi_that_are_killed_before_they_are_connected_leave_no_shared_memory(tmp_path):
    """They have not called ``world()``, which removes the names of the files."""
    (tmp_path / "script.py").write_text(
        "import os, re, pathlib, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "name = re.findall('/dev/shm/mpich_[a-z0-9_]+$', maps, re.M)[0]\n"
        "pathlib.Path('shared').write_text(name) if MPI.COMM_WORLD.rank else os.kill(os.getpid(), 9)\ntime.sleep(60)"
    )
    assert subprocess.run([*CLI, "-n", "2", "script.py"], cwd=tmp_path, timeout=60, check=False).returncode != 0
    assert not Path((tmp_path / "shared").read_text()).exists()


def run_script(folder, code):
    """Return the exit status of a script on two ranks, and its output and errors."""
    (folder / "script.py").write_text(f"import os, subprocess, sys, time\n{code}\n")
    done = subprocess.run(
        [*CLI, "-n", "2", "script.py"], cwd=folder, timeout=100, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("code", "rank"),
    [
        ("comm.rank and os._exit(0)\ncomm.barrier()", "1"),
        ("comm.rank or os._exit(0)", "0"),
        ("comm.rank and os._exit(0)", "1"),
        ("os._exit(0)", "[01]"),
        ("comm.rank or os.kill(os.getpid(), 9)", "0"),
        ("if comm.rank: raise KeyboardInterrupt", "1"),
    ],
)
def test_a_rank_that_ends_irregularly_is_named_and_the_exit_status_is_not_0(tmp_path, code, rank):
    status, _, errors = run_script(tmp_path, f"from neonlite.distributed import world\ncomm = world()\n{code}")
    assert status != 0
    assert re.search(f"^neonlite: rank {rank} .*(ended|interrupted)", errors, re.MULTILINE), errors


def test_a_rank_that_is_not_connected_may_end_by_os_exit(tmp_path):
    assert run_script(tmp_path, "os._exit(0)") == (0, "", "")


# Rank 0 waits in the initialization of MPI, which no signal ends; without mpiexec's help it waits forever.
@pytest.mark.parametrize(
    ("end", "expected"),
    [("1 / 0", 1), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.killpg(0, 15)", 143)],
)
def test_a_rank_that_fails_before_it_is_connected_ends_all(tmp_path, end, expected):
    code = (
        "if int(os.environ['PMI_RANK']):\n    time.sleep(1)\n    " + end + "\n"
        "from neonlite.distributed import world\nprint('waits', flush=True)\nworld()"
    )
    status, output, errors = run_script(tmp_path, code)
    assert (status, output) == (expected, "waits\n"), errors


def test_an_error_of_all_ranks_before_they_are_connected_is_printed_alone(tmp_path):
    code = "sys.stderr.write('all fail\\n')\nsys.exit(1)"  # one write, so that the ranks do not mix their lines
    assert run_script(tmp_path, code) == (1, "", "all fail\n" * 2)


def test_a_forked_child_may_exit_by_any_way(tmp_path):
    code = (
        "from neonlite.distributed import world\ncomm = world()\n"
        "for end in (lambda: sys.exit(3), lambda: os._exit(3), lambda: 1 / 0):\n"
        "    if not (child := os.fork()):\n        end()\n"
        "    comm.barrier()\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "comm.barrier()"
    )
    status, output, errors = run_script(tmp_path, code)
    assert (status, sorted("".join(output.split()))) == (0, list("113333")), errors
    assert errors.count("ZeroDivisionError: ") == 2
    assert "neonlite" not in errors.replace(str(tmp_path), "")


@pytest.mark.slow  # END_SECONDS of the supervisor
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()"])
@pytest.mark.parametrize("start", ["subprocess.Popen(['sleep', '100'])", "os.fork() or time.sleep(100)"])
def test_a_job_ends_some_seconds_after_its_ranks_and_kills_the_processes_that_they_have_left(tmp_path, start, end):
    code = f"from neonlite.distributed import world\ncomm = world()\nif comm.rank:\n    {start}\n    {end}"
    begin = time.monotonic()
    assert (run_script(tmp_path, code)[0] == 0) == (end == "sys.exit()")
    assert time.monotonic() - begin < 60


def test_an_interrupt_of_one_rank_ends_all_at_once(tmp_path):
    code = "from neonlite.distributed import world\nc = world()\nif c.rank: raise KeyboardInterrupt\nc.barrier()\n"
    (tmp_path / "script.py").write_text(code)
    env = {**os.environ, "NEONLITE_TIMEOUT": "1000"}
    done = subprocess.run(
        [*CLI, "-n", "2", "script.py"], cwd=tmp_path, env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert re.search(
        r"rank 1 .* was interrupted \(KeyboardInterrupt\), but rank 0 waits for it in barrier", done.stderr
    )


LAUNCH_UNTIL_IT_ENDS = """
import itertools, os, signal, sys, time
import numpy as np
from neonlite.distributed import launch, world

def work(kind, step):
    comm = world()
    for i in itertools.count():
        comm.all_reduce(np.ones(1000))
        if i == step and comm.rank == 1:
            if kind == "exit":
                os._exit(0)
            if kind == "kill":
                os.kill(os.getpid(), 9)
            if kind == "raise":
                raise ValueError
            if kind == "interrupt":
                raise KeyboardInterrupt
            if kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if kind == "hang":
                time.sleep(1000)

launch(work, 2, sys.argv[1], int(sys.argv[2]))
"""


def unused_shared_memory():
    """Return the files of MPICH in shared memory that no process has mapped or open."""
    files = {str(path) for path in Path("/dev/shm").glob("mpich_*")}
    for process in Path("/proc").glob("[0-9]*"):
        for folder in ("fd", "map_files"):
            try:
                links = os.listdir(process / folder)
            except OSError:
                continue
            for link in links:
                with contextlib.suppress(OSError):
                    files.discard(os.readlink(process / folder / link))
    return files


@pytest.mark.slow
def test_twenty_abnormal_ends_leave_no_file_and_no_process(tmp_path):
    """Errors of a rank, after a random number of steps, and signals to the launching process, at random times."""
    if sys.platform != "linux":
        pytest.skip("shared memory of Linux")
    rng = np.random.default_rng(zlib.crc32(os.environ.get("NEONLITE_TEST_SEED", "0").encode()))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "script.py").write_text(LAUNCH_UNTIL_IT_ENDS)
    before = unused_shared_memory()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "NEONLITE_TIMEOUT": "1", "NAME_OF_TEST": str(tmp_path)}
    kinds = ["exit", "kill", "raise", "interrupt", "stop", "hang", "SIGINT", "SIGTERM", "SIGKILL", "SIGKILL"]

    def processes():
        environments = [path for path in Path("/proc").glob("[0-9]*/environ") if path.stat().st_uid == os.geteuid()]
        return [path for path in environments if f"NAME_OF_TEST={tmp_path}" in text_of(path)]

    def text_of(path):
        try:
            return path.read_text()
        except OSError:
            return ""

    for kind in kinds * 2:
        command = [sys.executable, "script.py", kind, str(rng.integers(1000))]
        hangup = signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, which children inherit
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
        signal.signal(signal.SIGINT, hangup)
        if kind.startswith("SIG"):
            time.sleep(rng.uniform(0.3, 2.5))  # before, while and after the ranks connect
            process.send_signal(getattr(signal, kind))
        assert process.wait(60) != 0
        assert wait_for(lambda: not processes(), 20), kind
        assert list((tmp_path / "tmp").iterdir()) == [], kind
        assert wait_for(lambda: unused_shared_memory() <= before, 20), kind  # those of other tests come and go


def test_a_signal_before_the_rank_starts_ends_its_shell():
    interrupted = RANK_SHELL.replace("trap f=x INT TERM;", "trap f=x INT TERM; kill -INT $$;")
    assert interrupted != RANK_SHELL
    command = ["sh", "-c", interrupted, sys.executable, sys.executable, "-c", "print('the rank ran')"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (130, "")


def test_ctrl_c_during_the_imports_of_a_rank_waits_until_it_is_connected(tmp_path):
    package = tmp_path / "neonlite"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "distributed.py").write_text("""
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    pass  # as some imports do
def run_call(folder, n):
    print(signal.SIGINT in signal.sigpending())
""")
    command = [sys.executable, "-c", RUN_CALL, "folder", "2"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, cwd=tmp_path, check=False)
    assert result.stdout == "True\n"
    assert launch(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []), 1) == set()


# --- the network ---


def test_the_ranks_of_one_host_listen_on_the_loopback_address_alone():
    """Also mpiexec listens, on all addresses; its children inherit the socket."""

    def listening():
        from neonlite.distributed import monitor, world

        addresses = []
        server_info = monitor.server_info
        monitor.server_info = lambda host, listener: (
            addresses.append(listener.getsockname()[0]) or server_info(host, listener)
        )
        world().barrier()

        def sockets(process):
            links = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()]
            rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}

        return addresses, world().all_gather_objects(sorted(sockets("self") - sockets(os.getppid())))

    assert launch(listening, 2) == (["127.0.0.1"], [[], []])


# --- run, and its command line ---


def test_run_returns_the_exit_status():
    assert run([sys.executable, "-c", "pass"], 2) == 0
    assert run([sys.executable, "-c", "import sys; sys.exit(3)"], 2) == 3


def test_the_command_runs_a_script_or_a_module_with_its_arguments(tmp_path):
    (tmp_path / "script.py").write_text("import sys; sys.stdout.write(f'{sys.argv[1:]}\\n')")
    for script in (["script.py"], ["-m", "script"]):
        command = [*CLI, "-n", "2", *script, "-n", "7", "--help"]
        assert subprocess.check_output(command, text=True, cwd=tmp_path) == "['-n', '7', '--help']\n" * 2


# --- restarts ---

RESUMING = """
import os, signal, sys
import numpy as np
import neonlite as nl
from neonlite.callbacks import Callback, Callbacks, SerializeModelCallback
from neonlite.distributed import world
from neonlite.layers import Affine, Dropout

path, kills = sys.argv[1], sys.argv[2:]
comm = world()
comm.shard_states = "sharded" in kills
be = nl.gen_backend("cpu", batch_size=8, rng_seed=1)
generator = np.random.default_rng(0)
X, y = generator.random((90, 5), np.float32), generator.integers(0, 3, 90)
train = nl.data.ArrayIterator(X, y, nclass=3, shuffle=True)
layers = [Affine(6, activation="relu"), Dropout(0.8), Affine(3, activation="softmax")]
model = nl.Model(path if os.path.exists(path) else layers)


class Kill(Callback):
    def on_minibatch_end(self, epoch, minibatch):
        name = f"{epoch}-{minibatch}"
        if comm.rank == 1 and name in kills and not os.path.exists(name):
            open(name, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = Callbacks(model, progress_bar=False)
callbacks.add_callback(SerializeModelCallback(path))
callbacks.add_callback(Kill())
model.fit(train, "cross_entropy", "adam", 4, callbacks, distributed=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["sharded"]])
def test_a_job_whose_rank_is_killed_is_started_again_and_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path, capfd, monkeypatch, options
):
    (tmp_path / "train.py").write_text(RESUMING)
    monkeypatch.chdir(tmp_path)
    assert main(["-n", "2", "--restarts", "3", "train.py", "killed.neon", "0-2", "2-3", *options]) == 0
    errors = capfd.readouterr().err
    assert main(["-n", "2", "train.py", "whole.neon"]) == 0
    assert re.findall("restart . of 3", errors) == ["restart 1 of 3", "restart 2 of 3"]
    (killed, whole) = (read_checkpoint(tmp_path / f"{name}.neon")[1] for name in ("killed", "whole"))
    assert killed.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(killed[name], values, strict=True)


@pytest.mark.long
def test_a_job_that_fails_again_and_again_ends_with_a_message(tmp_path, capfd, monkeypatch):
    (tmp_path / "script.py").write_text("open('starts', 'a').write('x'); raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert run([sys.executable, "script.py"], 1, restarts=2) == 3
    assert (tmp_path / "starts").read_text() == "xxx"
    *others, last = [line for line in capfd.readouterr().err.splitlines() if "the job" in line]
    assert [line.partition(" s: ")[2] for line in others] == ["restart 1 of 2.", "restart 2 of 2."]
    assert re.fullmatch(
        r"neonlite: the job has ended with exit status 3 after \d+\.\d s. No restart of 2 is left.", last
    )


@pytest.mark.long
@pytest.mark.parametrize("end", ["raise SystemExit(143)", "pass"])
def test_a_job_that_a_signal_has_ended_is_not_started_again(tmp_path, end, monkeypatch):
    (tmp_path / "script.py").write_text(f"open('starts', 'a').write('x')\n{end}")
    monkeypatch.chdir(tmp_path)
    run([sys.executable, "script.py"], 1, restarts=2)
    assert (tmp_path / "starts").read_text() == "x"


def test_the_command_prints_an_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(SystemExit, match="1"):
        main(["-n", "2", "script.py"])
    assert capsys.readouterr().err == f"python -m neonlite.distributed: several processes need mpi4py: {PIP}\n"


@pytest.mark.parametrize("package", ["mpi4py", "cloudpickle"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{package}: {re.escape(PIP)}"):
        launch(print, 2)


def test_a_missing_mpiexec_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"mpiexec, which is not on PATH: {re.escape(PIP)}"):
        mpiexec_command(["true"], 2)


VERSIONS = {
    "mpich": "HYDRA build details:",
    "open mpi 5": "mpiexec (Open MPI) 5.0.11",
    "open mpi 4": "mpiexec (OpenRTE) 4.1",
}


@pytest.mark.parametrize("mpi", VERSIONS)
def test_hosts_are_options_of_the_installed_mpi(mpi, monkeypatch, tmp_path):
    (tmp_path / "mpiexec").write_text(f"#!/bin/sh\necho '{VERSIONS[mpi]}'\n")
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "hosts.txt").write_text("host1\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def options(hosts=None):
        command = mpiexec_command(["program", "-x"], 3, hosts)
        assert command[0] == str(tmp_path / "mpiexec")
        assert command[-2:] == ["program", "-x"]
        return command[1 : command.index("sh")]

    bind = [] if mpi == "mpich" else ["--bind-to", "none"]
    names, file = ("-hosts", "-f") if mpi == "mpich" else ("--host", "--hostfile")
    here = ["-launcher", "fork", "-hosts", "localhost"] if mpi == "mpich" else bind
    assert options() == [*here, "-n", "3"]
    assert options("host1:2,host2") == [*bind, names, "host1:2,host2", "-n", "3"]
    assert options(str(tmp_path / "hosts.txt")) == [*bind, file, str(tmp_path / "hosts.txt"), "-n", "3"]
    with pytest.raises(FileNotFoundError, match="expected the names of hosts or the path of a host file"):
        options(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "hosts", ["-oProxyCommand=id", "host1,-l", "host1:2,", "", "host 1", "host1:x", "a;b", "host1:2:3", "$(id)"]
)
@pytest.mark.parametrize("is_file", [False, True])
def test_hosts_are_names_and_no_options_of_ssh(hosts, is_file, tmp_path):
    if is_file:
        (tmp_path / "hosts.txt").write_text("# a comment\nhost1:2 slots=2\n\n" + "\n".join(hosts.split(",")))
        if hosts in ("host1:2,", "", "host 1"):  # an empty line, and a name with options
            return
    with pytest.raises(ValueError, match="hosts: expected names of letters, digits"):
        mpiexec_command(["program"], 2, str(tmp_path / "hosts.txt") if is_file else hosts)


def test_a_host_file_without_a_host_is_an_error(tmp_path):
    (tmp_path / "hosts.txt").write_text("# none\n")
    with pytest.raises(ValueError, match=r"got '' in the host file"):
        mpiexec_command(["program"], 2, str(tmp_path / "hosts.txt"))


def test_the_cpus_are_divided_among_the_ranks_unless_the_environment_sets_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(7), raising=False)
    assert [environment(n, None)["OMP_NUM_THREADS"] for n in (1, 3, 20)] == ["7", "2", "1"]
    assert "OMP_NUM_THREADS" not in environment(2, "host1,host2")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment(3, None)["OMP_NUM_THREADS"] == "5"


def test_ucx_uses_shared_memory_on_one_host_unless_the_environment_sets_its_transports(monkeypatch):
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert environment(2, None)["UCX_TLS"] == "self,sm"
    assert "UCX_TLS" not in environment(2, "host1,host2")
    monkeypatch.setenv("UCX_TLS", "all")
    assert environment(2, None)["UCX_TLS"] == "all"
