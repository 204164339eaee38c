"""benchmarks/sass.py counts the instructions of listings, and says what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import nvrtc

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import sass

LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128 R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   FADD R1, R1, R9 ;
        /*0040*/               @P0 LDG.E.U16 R12, desc[UR4][R2.64+0x20] ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   CALL.REL.NOINC `(kernel$divide) ;
.L_x_1:
        /*0070*/                   FADD R1, R1, R12 ;
        /*0080*/               @P0 BRA `(.L_x_0) ;
        /*0090*/                   EXIT ;
$kernel$divide:
        /*00a0*/                   MUFU.RCP R0, R0 ;
"""


def test_the_hot_range_is_the_loop_that_loads_without_slow_paths() -> None:
    instructions = sass.hot_range(sass.body(LISTING))
    assert [text.split()[0] for text in instructions] == ["LDG.E.128", "LDG.E.128", "FADD", "@P0", "@P1", "FADD", "@P0"]
    assert "MUFU.RCP R0, R0" not in dict(sass.body(LISTING)).values()


def test_loads_are_in_flight_until_one_of_them_is_needed() -> None:
    assert sass.loads_in_flight(sass.hot_range(sass.body(LISTING))) == (2, 32)
    assert sass.loads_in_flight(["LDG.E.U16 R1, desc[UR4][R2.64]", "FADD R5, R1, R1"]) == (1, 2)


def test_without_a_disassembler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sass.py"])
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(SystemExit, match=r"(nvdisasm|NVRTC).* is not installed, so nothing is counted: pip install"):
        sass.main()


@pytest.mark.skipif(nvrtc.library() is None or sass.disassembler() is None, reason="nvdisasm is not installed")
def test_a_logistic_has_one_load_of_16_bytes_for_four_elements() -> None:
    source, compiled = sass.compile_case("logistic", "sm_90")
    listing = sass.listings(compiled.binary, sass.disassembler())["stage_1"]
    counted = sass.count(source, "stage_1", listing, compiled.log, 1)
    assert (counted.loads, counted.nbytes) == (1, 16)
    assert 15 < counted.instructions < 30
