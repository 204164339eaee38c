"""Tests of the texts of error messages."""

from __future__ import annotations

import pytest

from neonlite import Backend
from neonlite.messages import expected


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
