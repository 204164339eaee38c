"""The rules of the house: who may import whom, what an import costs, and what must be complete."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from reference import REFERENCE

import neonlite
from neonlite import Backend
from neonlite.backend import stub
from neonlite.backend.executors.numpy_words import REDUCE, SHORT, WORDS
from neonlite.backend.runtimes import KNOWN
from neonlite.ops import OPS, TABLE, Op, missing

HOUSE = Path(neonlite.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted(HOUSE.rglob("*.py"))
MODULES = {
    ".".join(["neonlite", *p.relative_to(HOUSE).with_suffix("").parts]).removesuffix(".__init__"): p for p in FILES
}
every_module = pytest.mark.parametrize("module", MODULES)

# --- floors: a module imports from its own floor and those below ---------------------------------------------------

FLOORS = {
    "neonlite.ops": 0,
    "neonlite.optree": 1,
    "neonlite.show": 1,
    "neonlite.backend": 2,
    "neonlite.autodiff": 3,
    "neonlite.check": 3,
    "neonlite.layers": 4,
    "neonlite.transforms": 4,
    "neonlite.optimizers": 4,
    "neonlite.initializers": 4,
    "neonlite.callbacks": 4,
    "neonlite.data": 4,
    "neonlite.models": 5,
    "neonlite.argparser": 6,
    "neonlite.cli": 6,
    "neonlite": 7,
}
ARRAY_LIBRARIES = {"numpy", "scipy", "cupy", "cupyx", "torch", "jax", "mkl", "cudnn", "numexpr", "tensorflow"}
ARRAY_LIBRARIES |= {"array_api_compat", "array_api_strict", "opt_einsum", "ctypes"}


def floor(module: str) -> int:
    """Return the floor of a module: that of the longest name that it begins with."""
    return FLOORS[max((name for name in FLOORS if f"{module}.".startswith(f"{name}.")), key=len)]


def imports(path: Path, module: str) -> Iterator[tuple[str, bool]]:
    """Yield every module imported in a file, wherever the import stands, and whether it stands in a function."""
    tree = ast.parse(path.read_text())
    lazy = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = path.name == "__init__.py"
                base = ".".join([*module.split(".")[: len(module.split(".")) - node.level + inside], base]).rstrip(".")
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        yield from ((name, id(node) in lazy) for name in found)


def test_imports_are_found_wherever_they_stand(tmp_path):
    lines = ["import numpy as np, math", "from neonlite import show", "from neonlite.ops import OPS", "def f():"]
    lines += [
        "    import torch.nn",
        "    from . import plan",
        "    importlib.import_module('cupy')",
        "if x: import mkl",
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert sorted(imports(tmp_path / "a.py", "neonlite.backend.a")) == [
        ("cupy", True),
        ("math", False),
        ("mkl", False),
        ("neonlite.backend.plan", True),
        ("neonlite.ops", False),
        ("neonlite.show", False),
        ("numpy", False),
        ("torch.nn", True),
    ]


@every_module
def test_no_module_imports_from_a_floor_above(module):
    for name, lazy in imports(MODULES[module], module):
        if name.startswith("neonlite") and (module, name, lazy) != ("neonlite.optree", "neonlite.show", True):
            assert floor(name) <= floor(module), f"{module} climbs: it imports {name}"


@every_module
def test_no_array_library_above_the_backend(module):
    libraries = {name for name, _ in imports(MODULES[module], module) if name.split(".")[0] in ARRAY_LIBRARIES}
    if module.startswith(("neonlite.data.", "neonlite.models.")):  # files, images, answers are NumPy arrays on the host
        libraries -= {"numpy", "numpy.typing"}
    assert not libraries or floor(module) == FLOORS["neonlite.backend"], f"{module} imports {libraries}"


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("neonlite.ops", {"__future__", "math", "dataclasses", "typing", "collections.abc"}),
        ("neonlite.optree", {"neonlite.ops", "neonlite.show"}),
        ("neonlite.show", {"neonlite.optree", "neonlite.ops"}),
        ("neonlite.backend.plan", {"neonlite.optree", "neonlite.ops"}),
    ],
)
def test_the_lowest_floors_stand_on_almost_nothing(module, allowed):
    foreign = {
        name for name, _ in imports(MODULES[module], module) if name.split(".")[0] not in sys.stdlib_module_names
    }
    wanted = {name for name, _ in imports(MODULES[module], module)} if module == "neonlite.ops" else foreign
    assert wanted <= allowed


# --- what an import costs ------------------------------------------------------------------------------------------

HEAVY = (
    "array_api_compat array_api_strict opt_einsum tqdm safetensors numpy.random concurrent.futures importlib.metadata "
)
HEAVY += "difflib matplotlib h5py pooch torch cupy mkl multiprocessing subprocess socket asyncio urllib.request"
LOOK = f"""
import json, sys, threading
import numpy
before, events = set(sys.modules), []
sys.addaudithook(lambda event, args: events.append((event, str(args[:1]))))
import neonlite
BODY
kinds = "socket subprocess os ctypes shutil tempfile urllib".split()
happened = [e for e in events if e[0].split(".")[0] in kinds]
happened += [e for e in events if e[0] == "open" and not e[1].rstrip("',)").endswith((".py", ".pyc", ".so"))]
happened = [e for e in happened if e[0] not in ("os.listdir", "os.scandir")]
new = sorted(set(sys.modules) - before)
print(json.dumps([[m for m in {HEAVY.split()!r} if m in new], happened, threading.active_count()]))
"""


def in_a_fresh_process(body: str) -> Any:
    code = LOOK.replace("BODY", body)
    run = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE.parent
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "be = neonlite.gen_backend('cpu', rng_seed=1); (be.ones((3, 3)) * 2 + 1).asnumpyarray()",
        "be = neonlite.gen_backend('cpu', rng_seed=1); x = be.ones((3, 3), name='x'); tree = be.tanh(be.dot(x, x)); "
        "neonlite.Autodiff(tree, be).get_grad_asnumpyarray([x]); print(tree, file=sys.stderr)",
    ],
    ids=["import", "a small tree", "a gradient"],
)
def test_neither_import_nor_small_work_loads_a_heavy_module_or_touches_the_system(body):
    assert in_a_fresh_process(body) == [[], [], 1]


def test_what_touches_the_system_is_seen():
    heavy, happened, threads = in_a_fresh_process(
        "import socket, tqdm; open('/dev/null'); import threading; s = socket.socket()"
    )
    assert {"tqdm", "socket"} <= set(heavy)
    assert {event.split(".")[0] for event, _ in happened} >= {"open", "socket"}
    assert threads == 1


# --- words and promises --------------------------------------------------------------------------------------------


@every_module
def test_everything_public_has_a_docstring(module):
    loaded = import_module(module)
    missing_words = [] if inspect.getdoc(loaded) else [module]
    for name, thing in vars(loaded).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            missing_words += [] if thing.__doc__ else [name]
        if inspect.isclass(thing):
            inherited = {n for base in thing.__mro__[1:] for n in vars(base)}  # an override says what its base says
            members = {n: m for n, m in vars(thing).items() if not n.startswith("_") and n not in inherited}
            members = {n: m for n, m in members.items() if inspect.isroutine(m) or isinstance(m, property)}
            missing_words += [f"{name}.{n}" for n, m in members.items() if not inspect.getdoc(m)]
    assert not missing_words


@every_module
def test_users_never_meet_an_assert(module):
    tree = ast.parse(MODULES[module].read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def test_the_package_holds_what_it_names():
    assert sorted(neonlite.__all__) == neonlite.__all__
    assert all(hasattr(neonlite, name) for name in neonlite.__all__)
    assert neonlite.__version__.count(".") == 2
    assert (HOUSE / "py.typed").exists()


# --- the table is complete -----------------------------------------------------------------------------------------

every_row = pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
KINDS = {"elementwise", "reduction", "view", "library", "random", "tie"}
FOR_DERIVATIVES = {"slice", "unslice", "scatter"}  # made by views and rules, not by hand


def test_the_names_of_the_table_are_its_rows():
    assert [op.name for op in TABLE] == [name for name in OPS if OPS[name] in TABLE]
    assert len({op.name for op in TABLE}) == len({op.method for op in TABLE}) == len(TABLE)


@every_row
def test_a_row_says_all_that_it_must(op):
    assert op.kind in KINDS
    assert op.doc
    assert op.domain[0] < op.domain[1]
    assert (op.grad is missing) == (op.kind == "tie")
    if op.kind != "tie" and op.arity > 0 and op.kind != "random":
        operands = [p for p in inspect.signature(op.run).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        assert (
            len([p for p in operands if p.name not in ("axis", "axes", "to", "keepdims", "index", "value")]) == op.arity
        )


@every_row
def test_a_row_has_its_textbook_its_words_and_its_method(op):
    if op.kind != "tie":
        assert op.name in REFERENCE
    if op.kind == "elementwise":
        assert op.name in WORDS
    if op.kind == "reduction":
        assert op.name in REDUCE
    if op.kind != "tie" and op.name not in FOR_DERIVATIVES:
        method = getattr(Backend, op.method)
        assert method.__name__ == op.method
        assert method.__doc__.startswith("Return ")
        assert "out" in inspect.signature(method).parameters


def test_nothing_is_spelled_that_is_no_row():
    assert set(WORDS) <= {op.name for op in TABLE if op.kind == "elementwise"}
    assert {name for name, _, _ in SHORT} <= set(WORDS)
    assert set(REDUCE) == {op.name for op in TABLE if op.kind == "reduction"}
    assert set(REFERENCE) <= {op.name for op in TABLE}


def test_a_new_row_becomes_a_method():
    method = Backend.define_op(
        "third_power", lambda xp, x: x * x * x, lambda be, dz, z, x: (dz * (3 * x * x),), doc="x^3"
    )
    try:
        be = Backend("cpu")
        assert isinstance(OPS["third_power"], Op)
        assert method is Backend.third_power
        assert (method.__name__, method.__doc__) == ("third_power", "Return x^3.")
        assert be.third_power(be.array([[2.0]])).asnumpyarray() == 8
    finally:
        del OPS["third_power"], Backend.third_power


def test_the_stub_is_current():
    assert stub.text() == Path(stub.__file__).with_name("rows.pyi").read_text(), "run python -m neonlite.backend.stub"


def test_make_test_is_told_of_dependency_groups_that_there_are():
    root = Path(__file__).parents[1]
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    told = [root / "Makefile", root / "README.md", *DOCS.glob("*.md")]
    lines = re.findall(
        r'(?:TEST_GROUPS=|Dependency groups for the tests: )"([^"]+)"', "".join(p.read_text() for p in told)
    )
    assert "test runtimes gpu" in lines
    assert {name for line in lines for name in line.split()} <= groups.keys()
    assert groups["gpu"] == ["neonlite[cuda13]"]  # whose versions stand in one place


# --- the seam is narrow --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_a_runtime_takes_at_most_twenty_statements(name):
    module, cls, _ = KNOWN[name]
    (found,) = [n for n in ast.walk(ast.parse(MODULES[module].read_text())) if getattr(n, "name", "") == cls]
    statements = [n for n in ast.walk(found) if isinstance(n, ast.stmt) and not isinstance(n, ast.FunctionDef)]
    words = [n for n in statements if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    assert 5 < len(statements) - len(words) - 1 <= 20


# --- the guide's page of the backend -------------------------------------------------------------------------------

# Its methods, each with the arguments that it names, and defaults where the page gives them.
GUIDE = """
__init__(rng_seed=None, default_dtype, compat_mode=None, deterministic=None)
absolute(a, out=None) add(a, b, out=None) add_fc_bias(inputs, bias) allocate_backend(name)
argmax(a, axis=1, out=None, keepdims=True) argmin(a, axis=1, out=None, keepdims=True)
array(ary, dtype=None, name=None, persist_values=True, parallel=False, distributed=False) backend_choices()
batched_dot(A, B, C, alpha=1.0, beta=0.0, relu=False) begin(block, identifier)
binarize(a, stochastic=True, out=None) bprop_conv(layer, F, E, grad_I, alpha=1.0, repeat=1)
bprop_pool(layer, I, E, grad_I) check_caffe_compat() cleanup_backend() clip(a, a_min, a_max, out=None)
compound_bprop_lut(nin, inputs, error, error_t, dW, pad_idx, alpha=1.0, beta=0.0)
compound_dot(A, B, C, alpha=1.0, beta=0.0, relu=False)
compound_rnn_unroll_bprop(W_recur, delta_prev_s, delta_s, h_s, nout, num_steps, num_used_steps, activation,
reverse=True)
compound_rnn_unroll_fprop(W_recur, h_prev_s, h_ff_s, h_s, bias, nout, num_steps, num_used_steps, activation,
reverse=False)
conv_layer(dtype, N, C, K, D=1, H=1, W=1, T=1, R=1, S=1, pad_d=0, pad_h=0, pad_w=0, str_d=1, str_h=1, str_w=1,
relu=False, bsum=False)
deconv_layer(dtype, N, C, K, P, Q, R=1, S=1, pad_d=0, pad_h=0, pad_w=0, str_d=1, str_h=1, str_w=1)
distribute_data(tensor, layer_parallelism) divide(a, b, out=None) dot(a, b, out=None)
empty(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
empty_like(other_ary, name=None, persist_values=True) end(block, identifier) equal(a, b, out=None) execute(node)
exp(a, out=None) exp2(a, out=None) fabs(a, out=None) finite(a, out=None)
fprop_conv(layer, I, F, O, alpha=1.0, relu=False, repeat=1) fprop_pool(layer, I, O) gen_rng(seed=None)
greater(a, b, out=None) greater_equal(a, b, out=None)
iobuf(dim0, x=None, dtype=None, name=None, persist_values=True, shared=None, parallelism=None)
less(a, b, out=None) less_equal(a, b, out=None) log(a, out=None) log2(a, out=None)
make_binary_mask(out, keepthresh=0.5) max(a, axis=None, out=None, keepdims=True) maximum(a, b, out=None)
mean(a, axis=None, partial=None, out=None, keepdims=True) min(a, axis=None, out=None, keepdims=True)
minimum(a, b, out=None) multiply(a, b, out=None) negative(a, out=None) not_equal(a, b, out=None)
onehot(indices, axis, out=None)
ones(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
output_dim(X, S, padding, strides, pooling=False, dilation=1)
pool_layer(dtype, op, N, C, D=1, H=1, W=1, J=1, T=1, R=1, S=1, pad_j=0, pad_d=0, pad_h=0, pad_w=0,
str_j=None, str_d=None, str_h=None, str_w=None)
power(a, b, out=None) reciprocal(a, out=None) revert_tensor(tensor) rint(a, out=None)
rng_get_state(state) rng_reset() rng_set_state(state) safelog(a, out=None) set_caffe_compat() sgn(a, out=None)
shared_iobuf_size(shape, parallelism) shift(a, b, value=True, out=None) sig(a, out=None) sig2(a, out=None)
sqrt(a, out=None) square(a, out=None) std(a, axis=None, partial=None, out=None, keepdims=True)
subtract(a, b, out=None) sum(a, axis=None, out=None, keepdims=True) take(a, indices, axis, out=None)
tanh(a, out=None) tanh2(a, out=None) true_divide(a, b, out=None)
update_conv(layer, I, E, grad_F, alpha=1.0, repeat=1) update_fc_bias(err, out)
var(a, axis=None, partial=None, out=None, keepdims=True, binary=False) xnor_compound_dot(A, B, C, beta=0.0)
zeros(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
zeros_like(other_ary, name=None, persist_values=True)
"""
ENTRIES = [entry.strip() + ")" for entry in GUIDE.replace("\n", " ").split(")") if entry.strip()]


def test_the_page_has_87_members():
    assert len({entry.split("(")[0] for entry in ENTRIES}) == len(ENTRIES) == 87


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.split("(")[0])
def test_the_backend_has_what_the_guide_lists(entry):
    name, arguments = entry.rstrip(")").split("(")
    method = getattr(Backend, name)
    parameters = inspect.signature(method).parameters
    wanted = {word.strip().partition("=")[0]: word.partition("=")[2] for word in arguments.split(",") if word}
    assert [word for word in parameters if word in wanted] == list(wanted)
    for word, default in wanted.items():
        if default:
            assert parameters[word].default == ast.literal_eval(default), word
    assert name == "__init__" or inspect.getdoc(method)


# What neon's CPU backend has beyond the page, and neonlite as well (the rest is explained in docs/from_neon.md).
BEYOND = """
bsz compound_bprop_bn compound_fprop_bn compound_rnn_unroll_bprop_bibnrnn compound_rnn_unroll_fprop_bibnrnn
copy_transpose bprop_lrn fprop_lrn lrn_layer default_dtype dump_hist_data fill_normal get_time init_mark nms
record_mark rng rng_seed roipooling_bprop roipooling_fprop set_hist_buffers synchronize_mark
"""
LEFT_OUT = """
allocate_new_deltas allocate_new_outputs clean_data convert_data is_mkl batchnorm_layer bibnrnn_layer
mergebroadcast_layer mergesum_layer relu_layer fprop_relu fprop_skipnode fprop_softmax fprop_transform backends Relu
"""


def test_what_neon_has_beyond_the_page_is_there_or_explained():
    page = (HOUSE.parent / "docs" / "from_neon.md").read_text()
    assert not [name for name in BEYOND.split() if not hasattr(Backend, name)]
    assert not [name for name in LEFT_OUT.split() if hasattr(Backend, name) or f"`{name}`" not in page]


def test_the_axis_is_everything_unless_an_index_is_asked_for():
    def default(name: str) -> Any:
        return inspect.signature(getattr(Backend, name)).parameters["axis"].default

    assert [default(name) for name in ("sum", "max", "min", "mean", "var", "std")] == [None] * 6
    assert [default(name) for name in ("argmax", "argmin")] == [1, 1]


def test_the_page_of_speed_has_the_tables_that_were_measured() -> None:
    page = (DOCS / "performance.md").read_text()
    assert page == runpy.run_path(str(DOCS / "make_performance.py"))["text"](), "run python docs/make_performance.py"
    results = DOCS.parent / "benchmarks" / "results"
    for name in ("steps", "products"):
        rows = [line for line in (results / f"{name}.md").read_text().splitlines() if line.startswith("|")]
        assert len(rows) > 3
        assert "\n".join(rows) in page
        assert f"`python benchmarks/{name}.py`" in page
