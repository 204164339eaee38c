"""Project rules: which module may import which, the cost of an import, complete tables, and the guide's API page."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from helpers import parametrize
from helpers.parametrize import each
from helpers.reference import REFERENCE

import neonlite
from neonlite import Backend
from neonlite.backend.objects import is_builtin
from neonlite.backend.runtimes import BUILTIN_RUNTIMES
from neonlite.backend.runtimes.cuda import op_templates as cuda
from neonlite.backend.runtimes.numpy import templates as numpy
from neonlite.backend.runtimes.onednn import post_ops
from neonlite.ops import OP_TABLE, OPS, Op, missing_gradient, opened_instead

PACKAGE = Path(neonlite.__file__).parent
TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(["neonlite", *p.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): p for p in FILES
}

# --- levels: a module imports from its own level and those below ---

LEVELS = {
    "neonlite.files": 0,
    "neonlite.typing": 0,
    "neonlite.ops": 0,
    "neonlite.version": 0,
    "neonlite.messages": 1,
    "neonlite.name_hints": 1,
    "neonlite.optree": 1,
    "neonlite.numpy_methods": 1,
    "neonlite.tree_inference": 1,
    "neonlite.tree_structure": 1,
    "neonlite.visualize": 1,
    "neonlite.backend": 3,
    "neonlite.array_api": 3,
    "neonlite.array_namespace": 3,
    "neonlite.autodiff": 3,
    "neonlite.control_flow": 3,
    "neonlite.variables": 3,
    "neonlite.explorer": 3,
    "neonlite.functions": 3,
    "neonlite.gradcheck": 3,
    "neonlite.programs": 3,
    "neonlite.layers": 4,
    "neonlite.transforms": 4,
    "neonlite.optimizers": 4,
    "neonlite.initializers": 4,
    "neonlite.callbacks": 4,
    "neonlite.data": 4,
    "neonlite.encoders": 4,
    "neonlite.distributed": 4,
    "neonlite.distributed.__main__": 6,
    "neonlite.models": 5,
    "neonlite.sklearn": 6,
    "neonlite": 7,
    # applications, which import the package as users do
    "neonlite.argparser": 8,
    "neonlite.cli": 8,
}
# the levels of neonlite/backend/: a module imports only from its own level and from those below
BACKEND_LEVELS = {
    0: "concurrency measure objects validation",
    1: "planning",  # op-trees alone
    # arrays
    2: "tensor batch_size creation transaction random",
    3: "planning.assignment",  # the run path
    4: "primitives",
    5: "runtimes",
    6: "op_methods tree_methods tree_operands custom_ops",
    7: "backend",
}
BACKEND_LEVEL_OF_MODULE = {
    f"neonlite.backend.{name}": n for n, names in BACKEND_LEVELS.items() for name in names.split()
}
BACKEND_LEVEL_OF_MODULE["neonlite.backend"] = max(BACKEND_LEVELS)
# the class Backend has functions of array_api, autodiff and gradcheck, which import only what is below it
LEVELS = {name: 2 for name, n in BACKEND_LEVEL_OF_MODULE.items() if n < 7} | LEVELS
OPTREE_PARTS = {"neonlite.tree_structure", "neonlite.tree_inference", "neonlite.numpy_methods"}
ARRAY_LIBRARIES = {"numpy", "scipy", "cupy", "cupyx", "torch", "jax", "mkl", "cudnn", "numexpr", "tensorflow"}
ARRAY_LIBRARIES |= {"array_api_compat", "array_api_strict", "opt_einsum", "ctypes"}


def level(module: str) -> int:
    """Return the level of a module: that of its longest listed prefix."""
    return of_longest_prefix(LEVELS, module)


def of_longest_prefix(numbers: dict[str, int], module: str) -> int:
    """Return the number of the longest prefix of a module's name."""
    return numbers[max((name for name in numbers if f"{module}.".startswith(f"{name}.")), key=len)]


IMPORT_FUNCTIONS = ("import_module", "__import__")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file, the module first."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path, module: str) -> Iterator[tuple[str, bool]]:
    """Yield every module that a file imports, also inside functions, and whether only type checkers import it."""
    nodes = nodes_of(path)
    blocks = [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    typed = {id(n) for block in blocks for statement in block.body for n in ast.walk(statement)}
    for node in nodes:
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = path.name == "__init__.py"
                base = ".".join([*module.split(".")[: len(module.split(".")) - node.level + inside], base]).rstrip(".")
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
        elif (
            isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in IMPORT_FUNCTIONS
        ):
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        yield from ((name, id(node) in typed) for name in found)


@cache
def imports_of(module: str) -> list[tuple[str, bool]]:
    """Return the imports of a module of the package."""
    return list(imports(MODULES[module], module))


def imported_when_run(module: str) -> set[str]:
    """Return the modules that a module of the package imports, except for type checkers."""
    return {name for name, is_typed in imports_of(module) if not is_typed}


def test_imports_are_found_at_module_level_in_functions_and_for_type_checkers(tmp_path):
    lines = ["import numpy as np, math", "from neonlite import visualize", "from neonlite.ops import OPS", "def f():"]
    lines += [
        "    import torch.nn",
        "    from . import tensor",
        "    importlib.import_module('cupy')",
        "if x: import mkl",
        "if TYPE_CHECKING: import jax",
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert sorted(imports(tmp_path / "a.py", "neonlite.backend.a")) == [
        ("cupy", False),
        ("jax", True),
        ("math", False),
        ("mkl", False),
        ("neonlite.backend.tensor", False),
        ("neonlite.ops", False),
        ("neonlite.visualize", False),
        ("numpy", False),
        ("torch.nn", False),
    ]


@pytest.mark.long
def test_no_module_imports_from_a_higher_level():
    pairs = [(module, name) for module in MODULES for name, _ in imports_of(module) if name.startswith("neonlite")]
    assert not [f"{module} imports {name}" for module, name in pairs if level(name) > level(module)]


@pytest.mark.long
def test_no_module_of_the_backend_imports_from_a_higher_level_of_it():
    names = [name for name in MODULES if name.startswith("neonlite.backend")]
    pairs = [
        (module, name) for module in names for name, _ in imports_of(module) if name.startswith("neonlite.backend")
    ]
    levels = {name: of_longest_prefix(BACKEND_LEVEL_OF_MODULE, name) for pair in pairs for name in pair}
    assert not [f"{module} imports {name}" for module, name in pairs if levels[name] > levels[module]]


def test_every_listed_module_of_the_backend_exists():
    assert set(BACKEND_LEVEL_OF_MODULE) <= set(MODULES)
    assert {x for x in MODULES if x.count(".") == 2 and x.startswith("neonlite.backend.")} <= set(
        BACKEND_LEVEL_OF_MODULE
    )


@pytest.mark.long
def test_no_modules_import_each_other_in_a_cycle():
    graph = {x: {name for name, _ in imports_of(x) if name in MODULES and name != x} for x in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


def array_libraries(module: str) -> set[str]:
    """Return the array libraries that a module imports and must not import."""
    libraries = {name for name in imported_when_run(module) if name.split(".")[0] in ARRAY_LIBRARIES}
    # NumPy arrays on the host; in array_api, NumPy's dtypes and its rules for indices
    above = (
        "neonlite.data.",
        "neonlite.encoders.",
        "neonlite.models.",
        "neonlite.sklearn.",
        "neonlite.array_api.",
        "neonlite.distributed.",
    )
    if f"{module}.".startswith(above):
        libraries -= {"numpy", "numpy.typing"}
    if module == "neonlite.distributed.communicator":
        libraries -= {"cupy", "cupy.cuda"}  # for NCCL
    if module == "neonlite.distributed.supervisor":
        libraries -= {"ctypes"}  # for Linux's prctl
    return libraries


@pytest.mark.long
def test_no_array_library_above_the_backend():
    others = [module for module in MODULES if not f"{module}.".startswith("neonlite.backend.")]
    assert not {module: libraries for module in others if (libraries := array_libraries(module))}


TABLE = {f"neonlite.ops.{name}" for name in ("composites", "functions", "images", "linalg", "recurrent")}
TABLE |= {"neonlite.ops", "neonlite.typing"}


VISUALIZE = {name for name in MODULES if f"{name}.".startswith("neonlite.visualize.")}
DRAWING = {*TABLE, *VISUALIZE, "neonlite.files", "neonlite.messages", "neonlite.tree_structure"}


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("neonlite.typing", {"ml_dtypes"}),
        ("neonlite.ops.functions", {"neonlite.typing"}),
        *(
            (f"neonlite.ops.{x}", {"neonlite.typing", "neonlite.ops.functions"})
            for x in ("composites", "images", "linalg", "recurrent")
        ),
        ("neonlite.ops", TABLE - {"neonlite.ops"}),
        ("neonlite.tree_structure", TABLE),
        ("neonlite.messages", {"neonlite.tree_structure", "neonlite.typing"}),
        *((module, DRAWING) for module in sorted(VISUALIZE)),
        ("neonlite.optree", {*TABLE, *OPTREE_PARTS, "neonlite.messages", "neonlite.visualize"}),
        ("neonlite.backend.planning.steps", {*TABLE, "neonlite.tree_structure"}),
    ],
)
def test_the_lowest_levels_import_almost_nothing(module, allowed):
    imported = imported_when_run(module)
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} <= allowed
    if module in TABLE:
        assert imported - allowed <= {
            *("__future__", "collections.abc", "dataclasses", "functools", "itertools", "math", "types", "typing"),
        }


# --- the cost of an import ---

HEAVY = (
    "array_api_compat array_api_strict opt_einsum tqdm safetensors numpy.random concurrent.futures importlib.metadata "
)
HEAVY += "difflib matplotlib h5py pooch torch cupy mkl sklearn multiprocessing subprocess socket asyncio urllib.request"
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
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
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


def test_system_access_is_detected():
    heavy, happened, threads = in_a_fresh_process(
        "import socket, tqdm; open('/dev/null'); import threading; s = socket.socket()"
    )
    assert {"tqdm", "socket"} <= set(heavy)
    assert {event.split(".")[0] for event, _ in happened} >= {"open", "socket"}
    assert threads == 1


# --- docstrings and files ---


def undocumented(module: str) -> list[str]:
    """Return the public objects of a module that have no docstring."""
    loaded = import_module(module)
    names = [] if inspect.getdoc(loaded) else [module]
    for name, thing in vars(loaded).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            names += [] if thing.__doc__ else [name]
        if inspect.isclass(thing):
            inherited = {n for base in thing.__mro__[1:] for n in vars(base)}  # an override says what its base says
            members = {n: m for n, m in vars(thing).items() if not n.startswith("_") and n not in inherited}
            members = {n: m for n, m in members.items() if inspect.isroutine(m) or isinstance(m, property)}
            names += [f"{name}.{n}" for n, m in members.items() if not inspect.getdoc(m)]
    return names


def test_everything_public_has_a_docstring():
    assert not [name for module in MODULES for name in undocumented(module)]


WRITES = {"write_text", "write_bytes", "savefig", "touch", "fdopen", "mkstemp", "rename", "renames"}
MAY_WRITE = {
    "neonlite.files",
    "neonlite.backend.runtimes.cuda.simulator",  # a text for the compiler, in a temporary folder
    "neonlite.callbacks.history",  # matplotlib and HDF5 write to memory
}


def calls_that_write(module: str) -> list[str]:
    """Return the calls of a module that write files."""
    found = []
    for call in (node for node in nodes_of(MODULES[module]) if isinstance(node, ast.Call)):
        last = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if last not in {"open", "File", "replace", *WRITES}:
            continue
        name = ast.unparse(call.func)
        modes = [str(x.value) for x in (*call.args, *(k.value for k in call.keywords)) if isinstance(x, ast.Constant)]
        opens = last in ("open", "File") and {"w", "a", "x", "+"} & set("".join(modes[-1:]))
        if opens or name == "os.replace" or last in WRITES:
            found.append(f"{name}, line {call.lineno}")
    return found


@pytest.mark.long
def test_files_are_written_by_one_function():
    found = {module: calls for module in MODULES if module not in MAY_WRITE and (calls := calls_that_write(module))}
    assert not found, "write_atomic writes files"


def test_the_package_exports_what_all_lists():
    assert sorted(neonlite.__all__) == neonlite.__all__
    assert all(hasattr(neonlite, name) for name in neonlite.__all__)
    assert neonlite.__version__.count(".") == 2
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("package", ["initializers", "layers", "optimizers", "transforms"])
def test_the_objects_of_a_package_are_of_built_in_classes(package):
    classes = [x for name in MODULES for x in vars(import_module(name)).values() if name.split(".")[1:2] == [package]]
    classes = [x for x in classes if isinstance(x, type) and issubclass(x, neonlite.NervanaObject)]
    assert len(classes) > 5
    assert not [x.__name__ for x in classes if not is_builtin(x)]


# --- the table is complete ---

KINDS = {"elementwise", "reduction", "view", "library", "random", "structural", "composite"}


def test_the_names_of_the_table_are_its_rows():
    assert [op.name for op in OP_TABLE] == [name for name in OPS if OPS[name] in OP_TABLE]
    assert len({op.name for op in OP_TABLE}) == len({op.method for op in OP_TABLE}) == len(OP_TABLE)


def test_every_row_is_complete():
    names = ("axis", "axes", "to", "keepdims", "index", "value")
    for op in OP_TABLE:
        assert op.kind in KINDS, op
        assert op.doc, op
        assert op.sample_range[0] < op.sample_range[1], op
        assert (op.kind == "composite") == (op.run is opened_instead), op
        assert op.formula is not None or op.kind != "composite", op
        assert (op.grad is missing_gradient) == (op.kind == "structural" or op.opens_to_differentiate), op
        if op.kind != "structural" and op.arity > 0 and op.kind != "random":
            f = op.formula or op.run
            found = [p for p in inspect.signature(f).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
            assert len([p for p in found[1:] if p.name not in names]) == op.arity, op


def test_every_row_has_a_reference():
    assert {op.name for op in OP_TABLE if op.kind != "structural"} <= REFERENCE.keys()


def test_every_row_has_a_method_or_says_that_it_has_none():
    assert [op.name for op in OP_TABLE if not op.has_method and hasattr(Backend, op.method)] == []
    for op in (op for op in OP_TABLE if op.kind != "structural" and op.has_method):
        method = getattr(Backend, op.method)
        assert method.__name__ == op.method
        assert method.__doc__.startswith("Return ")
        assert "out" in inspect.signature(method).parameters


# Templates are optional. These ops have them for speed: on a GPU a stage is fused only if all its ops have one, and
# NumPy's write into blocks that stay in the cache.
FUSED = {"neg", "abs", "sgn", "sqr", "sqrt", "exp", "exp2", "log", "log2", "safelog", "sig", "tanh", "rint", "finite"}
FUSED |= {"cast", "stop_gradient", "add", "sub", "mul", "div", "pow", "maximum", "minimum", "shift", "where"}
FUSED |= {"eq", "ne", "lt", "le", "gt", "ge"}


def test_ops_that_must_be_fast_have_templates():
    assert set(numpy.OP_TEMPLATES) & set(cuda.OP_TEMPLATES) >= FUSED
    assert {"sum", "max", "min"} <= set(numpy.REDUCTION_UFUNCS)
    assert {"sum", "max", "min", "argmax", "argmin"} <= set(cuda.REDUCE_TEMPLATES)


def test_templates_and_references_are_of_ops_of_the_table():
    elementwise = {op.name for op in OP_TABLE if op.kind == "elementwise"}
    reductions = {op.name for op in OP_TABLE if op.kind == "reduction"}
    assert set(numpy.OP_TEMPLATES) | set(cuda.OP_TEMPLATES) | set(post_ops.ELTWISE_FUNCTIONS) <= elementwise
    for templates in (numpy, cuda):
        special = {name for name, _, _ in templates.CONSTANT_TEMPLATES} | set(templates.INTEGER_TEMPLATES)
        assert special <= set(templates.OP_TEMPLATES)
    assert set(numpy.UINT8_TEMPLATES) <= set(numpy.OP_TEMPLATES)
    assert set(numpy.OP_COST) <= elementwise
    assert set(cuda.OP_TEMPLATES) >= cuda.EXACT_OPS
    assert set(post_ops.BINARY_ALG) | set(post_ops.ELTWISE_ALG) - {"reciprocal"} <= elementwise
    assert set(numpy.REDUCTION_UFUNCS) <= reductions
    assert set(cuda.REDUCE_TEMPLATES) <= reductions | {op.name for op in OP_TABLE if op.result_dtype == "index"}
    assert set(REFERENCE) <= {op.name for op in OP_TABLE}


def test_a_new_row_becomes_a_method():
    method = Backend.define_op(
        "third_power", lambda xp, x: x * x * x, lambda be, dz, z, x: (dz * (3 * x * x),), doc="x^3"
    )
    try:
        be = Backend("cpu")
        assert isinstance(OPS["third_power"], Op)
        assert method is Backend.third_power
        assert (method.__name__, (method.__doc__ or "").splitlines()[0]) == ("third_power", "Return x^3.")
        assert be.third_power(be.array([[2.0]])).asnumpyarray() == 8
    finally:
        del OPS["third_power"], Backend.third_power


@pytest.mark.parametrize(("path", "text"), runpy.run_path(str(DOCS / "make_stubs.py"))["render_stubs"]().items())
def test_the_stubs_are_current(path, text):
    assert text == (PACKAGE / path).read_text(), "run python docs/make_stubs.py"


def test_the_dependency_groups_named_for_make_test_exist():
    root = Path(__file__).parents[1]
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    files = [root / "Makefile", root / "README.md", *DOCS.glob("*.md")]
    lines = re.findall(
        r'(?:TEST_GROUPS=|Dependency groups for the tests: )"([^"]+)"', "".join(p.read_text() for p in files)
    )
    assert "test runtimes gpu" in lines
    assert {name for line in lines for name in line.split()} <= groups.keys()
    assert groups["gpu"] == ["neonlite[cuda13]"]  # whose versions stand in one place


def test_the_functions_that_the_documentation_names_are_in_the_files_that_it_names():
    text = " ".join((DOCS / "internals.md").read_text().split())
    named = re.findall(r"`([\w.]+)` in `([\w/]+)\.py`", text)
    assert {"create_node", "RunMethods.run", "Plan", "BlockedExecutor.compile", "run_plan"} <= {
        name for name, _ in named
    }
    for name, path in named:
        attrgetter(name)(import_module(f"neonlite.{path.replace('/', '.')}"))


@pytest.mark.long
def test_test_modules_do_not_import_each_other():
    may_import = re.compile(r"^ *(?:import|from) .*(?:conftest|test_)|^from \.|import_module|__import__", re.MULTILINE)
    for path in (path for path in TESTS.rglob("*.py") if may_import.search(path.read_text())):
        modules = {name.split(".")[0] for name, _ in imports(path, path.stem)}
        shared = sorted(name for name in modules if name == "conftest" or name.startswith("test_"))
        assert not shared, f"{path.name} imports {shared}: what test modules share belongs in tests/helpers/"


# Tests of no module in particular: of the documentation, of rules for all files, and of other folders.
CROSS_CUTTING = "docstrings errors examples guide house language mistakes neon_scripts notebooks release reprs tour"


def modules_tested_by(path: Path) -> set[Path]:
    """Return the modules that a test file names: by its path, or as ``neonlite/x/y.py`` in its docstring."""
    folder, stem = path.parent.relative_to(TESTS), path.stem.removeprefix("test_")
    docstring = re.match(r'"""(.*?)"""|', path.read_text(), re.DOTALL)
    modules = {PACKAGE / name for name in re.findall(r"\bneonlite/([\w/]+\.py)", docstring[1] or "")}
    named = modules_by_folder()[PACKAGE / folder]
    return modules | {module for name, module in named if f"{stem}_".startswith(f"{name}_")}


@cache
def modules_by_folder() -> dict[Path, list[tuple[str, Path]]]:
    """Return the names and files of the modules in each folder; a package is in its own and in the one above."""
    found = defaultdict(list)
    for module in FILES:
        if module.name == "__init__.py":
            found[module.parent.parent].append((module.parent.name, module))
        found[module.parent].append((module.parent.name if module.name == "__init__.py" else module.stem, module))
    return found


def test_the_tests_of_a_module_are_found_by_its_path():
    """``tests/x/test_y.py`` or ``test_y_<subject>.py`` tests ``neonlite/x/y.py``; other files name their modules."""
    tested = {path: modules_tested_by(path) for path in TESTS.rglob("test_*.py")}
    cross_cutting = {TESTS / f"test_{name}.py" for name in CROSS_CUTTING.split()}
    cross_cutting |= {path for path in tested if path.parent.name in ("benchmarks", "platforms")}
    assert sorted(path for path, modules in tested.items() if not modules) == sorted(cross_cutting)
    named = set().union(*tested.values())
    assert sorted(named - set(FILES)) == []
    definitions = (ast.FunctionDef, ast.ClassDef)
    with_code = {path for path in FILES if any(isinstance(n, definitions) for n in nodes_of(path)[0].body)}
    assert sorted(with_code - named) == []


# --- runtimes are short ---


@pytest.mark.parametrize("name", BUILTIN_RUNTIMES)
def test_a_runtime_takes_at_most_twenty_statements(name):
    module, cls, _ = BUILTIN_RUNTIMES[name]
    (found,) = [n for n in nodes_of(MODULES[module]) if getattr(n, "name", "") == cls]
    statements = [n for n in ast.walk(found) if isinstance(n, ast.stmt) and not isinstance(n, ast.FunctionDef)]
    words = [n for n in statements if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    assert 3 < len(statements) - len(words) - 1 <= 20


# --- the guide's page of the backend ---

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


@each("entry", ENTRIES)
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
    page = (PACKAGE.parent / "docs" / "from_neon.md").read_text()
    assert not [name for name in BEYOND.split() if not hasattr(Backend, name)]
    assert not [name for name in LEFT_OUT.split() if hasattr(Backend, name) or f"`{name}`" not in page]


def test_the_axis_is_everything_unless_an_index_is_asked_for():
    def default(name: str) -> Any:
        return inspect.signature(getattr(Backend, name)).parameters["axis"].default

    assert [default(name) for name in ("sum", "max", "min", "mean", "var", "std")] == [None] * 6
    assert [default(name) for name in ("argmax", "argmin")] == [1, 1]


def test_the_chapter_to_read_first_is_as_short_as_the_documentation_says() -> None:
    chapter = (DOCS / "internals.md").read_text().partition("## A chapter to read first")[2].partition("\n## ")[0]
    mark, limit = re.findall(r"its line `(.*?)`:\s+together at most (\d+) lines", chapter)[0]
    lines = []
    for path in re.findall(r"^\| \d \| \[.*?\]\((.*?)\)", chapter, re.M):
        text = (DOCS / path).read_text().splitlines()
        (end,) = [i for i, line in enumerate(text) if line.strip() == mark]
        lines.append(end)
    assert len(lines) == 6
    assert sum(lines) <= int(limit) <= 900


def test_the_readme_is_short_and_has_measured_times_and_the_drawing_of_its_example() -> None:
    lines = (DOCS.parent / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    measured = (DOCS.parent / "benchmarks" / "results" / "optree.md").read_text()
    rows = [line.removesuffix(" |") for line in lines if re.match(r"\| .* \| [\d.]+ ms \|", line)]
    assert len(rows) == 3
    cells = [re.sub(r" +", " ", line) for line in measured.splitlines()]
    assert all(any(line.startswith(row) for line in cells) for row in rows)
    image = runpy.run_path(str(DOCS / "make_image.py"))
    assert image["IMAGE"].read_text(encoding="utf-8") == image["svg"](), "run python docs/make_image.py"
    assert f'src="{image["IMAGE"].relative_to(DOCS.parent).as_posix()}"' in "\n".join(lines)


def test_the_links_of_the_documentation_lead_to_files_and_headings() -> None:
    root = DOCS.parent
    pages = [*root.glob("*.md"), *DOCS.glob("*.md")]
    for page in pages:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text):
            target, _, anchor = (link[0] or link[1]).partition("#")
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"


def test_the_page_of_speed_has_the_tables_that_were_measured() -> None:
    page = (DOCS / "performance.md").read_text()
    assert page == runpy.run_path(str(DOCS / "make_performance.py"))["text"](), "run python docs/make_performance.py"
    results = DOCS.parent / "benchmarks" / "results"
    for name in ("steps", "products"):
        tables = re.findall(r"(?:^\|.*\n)+", (results / f"{name}.md").read_text(), re.MULTILINE)
        assert tables
        for table in tables:
            assert table.count("\n") > 3
            assert table in page
        assert f"`python benchmarks/{name}.py`" in page


# --- tests of many cases ---


def test_each_case_runs_and_those_that_fail_are_named(monkeypatch):
    ran = []

    @parametrize.each("number, text", [(1, "a"), (2, "b"), (3, "c")])
    def check(number, text):
        ran.append(text)
        assert number == 2

    monkeypatch.setattr(parametrize, "VARIANTS", "all")
    with pytest.raises(BaseExceptionGroup, match="number=1, text='a'; number=3, text='c'") as caught:
        check()
    assert ran == ["a", "b", "c"]
    assert len(caught.value.exceptions) == 2
    monkeypatch.setattr(parametrize, "VARIANTS", "one")
    ran.clear()
    with suppress(BaseExceptionGroup):
        check()
    assert len(ran) == 1


def test_of_many_cases_a_sixth_runs_on_a_runtime_other_than_cpu(monkeypatch):
    ran = []

    @parametrize.each("n", range(60))
    def check(runtime, n):
        ran.append(n)

    monkeypatch.setattr(parametrize, "VARIANTS", "sample")
    check(runtime="strict")
    assert len({*ran}) == 10
    ran.clear()
    check(runtime="cpu")
    assert ran == [*range(60)]
