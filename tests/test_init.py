"""The names of the package: modules of networks and the class Model are imported when they are first used.

Tests ``neonlite/__init__.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import neonlite as nl

LAZY = ["callbacks", "data", "initializers", "layers", "models", "optimizers", "transforms", "visualize"]


def run(code: str) -> Any:
    process = subprocess.run(
        [sys.executable, "-c", f"import json, sys\nimport neonlite as nl\n{code}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(nl.__file__).parent.parent,
    )
    return json.loads(process.stdout)


def test_importing_neonlite_imports_no_module_of_networks():
    loaded = run("print(json.dumps([x for x in sys.modules if x.startswith('neonlite.')]))")
    assert not [x for x in loaded if x.split(".")[1] in LAZY]
    assert "neonlite.backend" in loaded


@pytest.mark.parametrize("name", LAZY)
def test_a_module_is_imported_when_it_is_first_used(name):
    assert run(f"print(json.dumps([nl.{name}.__name__, 'neonlite.{name}' in sys.modules]))") == [
        f"neonlite.{name}",
        True,
    ]


def test_model_is_the_class_of_models():
    assert nl.Model is nl.models.Model
    assert run("print(json.dumps(nl.Model.__name__))") == "Model"


def test_dir_lists_the_lazy_names_without_importing_them():
    names, loaded = run("names = dir(nl); print(json.dumps([names, 'neonlite.layers' in sys.modules]))")
    assert {*LAZY, "Model", "gen_backend", "backend"} <= set(names)
    assert not loaded


@pytest.mark.parametrize("name", ["encoders", "files", "programs"])
def test_a_module_that_the_search_for_a_similar_name_imports_is_imported(name):
    assert run(f"from neonlite import {name}; print(json.dumps({name}.__name__))") == f"neonlite.{name}"


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'neonlite' has no attribute 'layr'"):
        nl.layr  # noqa: B018
    assert not hasattr(nl, "no_such_name")


def test_a_star_import_imports_no_module_of_networks():
    assert not run("exec('from neonlite import *'); print(json.dumps('neonlite.layers' in sys.modules))")
