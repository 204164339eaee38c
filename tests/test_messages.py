"""Texts of error messages, and their parts that the command line words differently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import neonlite
from neonlite import Backend
from neonlite.cli import WORDINGS
from neonlite.messages import expected, use_wordings, wording


def test_a_wording_replaces_a_part_of_a_message_until_the_end():
    def part() -> str:
        return wording("epochs", "epochs=3", 3) + wording("other", "; other=4", 4)

    assert part() == "epochs=3; other=4"
    with use_wordings({"epochs": "--epochs {}"}):
        assert part() == "--epochs 3; other=4"
    assert part() == "epochs=3; other=4"


def test_the_library_uses_each_wording_of_the_command_line():
    files = Path(neonlite.__file__).parent.rglob("*.py")
    source = "".join(file.read_text() for file in files)
    assert {*re.findall(r"""\bwording\(\s*["'](.*?)["']""", source)} == {*WORDINGS}


@pytest.mark.parametrize(
    ("got", "hint", "text"),
    [
        ("none", "", "be.f: expected a tensor, got none"),
        ("none", "Pass one.", "be.f: expected a tensor, got none. Pass one."),
        (3, "", "be.f: expected a tensor, got 3"),
        (["a"], "Pass one.", "be.f: expected a tensor, got ['a']. Pass one."),
    ],
)
def test_an_error_says_where_what_was_expected_what_it_got_and_the_way_out(got: object, hint: str, text: str) -> None:
    assert expected("be.f", "a tensor", got, hint) == text


def test_an_error_describes_a_tensor_by_its_name_and_shape(cpu: Backend) -> None:
    text = expected("", "a scalar", cpu.ones((2, 3), name="x"))
    assert text == "expected a scalar, got x (2, 3)"
