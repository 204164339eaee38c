"""A fixture of the tests of data sets."""

from __future__ import annotations

import sys

import pytest

from neonlite.data import datasets


@pytest.fixture
def no_local_data(monkeypatch, tmp_path):
    """Hide the data sets of this machine, and prevent downloads."""
    monkeypatch.delenv("NEONLITE_DATA", raising=False)
    monkeypatch.setattr(datasets, "DEBIAN_DATA_DIR", tmp_path / "debian")
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pooch", None)
