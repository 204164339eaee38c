"""Parts of messages that the command line words differently."""

from __future__ import annotations

import re
from pathlib import Path

import neonlite
from neonlite.cli import WORDINGS
from neonlite.messages import use_wordings, wording


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
