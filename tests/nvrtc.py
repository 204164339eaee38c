"""Does NVIDIA's compiler take a kernel?  NVRTC needs no card; the wheel nvidia-cuda-nvrtc-cu12 or -cu13 brings it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """What the compiler says of a kernel for one generation of cards."""

    registers: int
    spilled: int  # bytes that did not fit the registers
    stack: int  # bytes of arrays that could not be kept in them
    assembly: str


@cache
def library() -> Any:
    """Return NVRTC; None where it is not installed."""
    spec = find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = sorted(path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*"))
    return ctypes.CDLL(str(found[-1])) if found else None


def compiled(source: str, architecture: str, options: Sequence[str]) -> Compiled:
    """Compile a text for an architecture such as "sm_90"; AssertionError with the log when it does not compile."""
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    words = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", *options]
    failed = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*map(str.encode, words)))
    log, assembly = (text(program, name) for name in ("ProgramLog", "PTX"))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, f"{log}\n{source}"

    def largest(pattern: str) -> int:
        return max(map(int, re.findall(pattern, log)), default=0)

    assert "registers" in log, log
    spilled = largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads")
    return Compiled(largest(r"Used (\d+) registers"), spilled, largest(r"(\d+) bytes stack frame"), assembly)


def text(program: Any, name: str) -> str:
    """Return a text of a program: its log, or its assembly."""
    nvrtc, size = library(), ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{name}")(program, room)
    return room.value.decode()
