"""Compile kernels with NVRTC, which needs no GPU; the wheel nvidia-cuda-nvrtc-cu12 or -cu13 contains it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """A compiled kernel: its PTX assembly and its binary, and its resource usage from the compiler's log."""

    registers: int
    spilled: int  # bytes of register spills
    stack: int  # bytes of the stack frame
    assembly: str
    binary: bytes
    log: str


@cache
def library() -> Any:
    """Return the NVRTC library, or None if it is not installed."""
    spec = find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = sorted(path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*"))
    return ctypes.CDLL(str(paths[-1])) if paths else None


def version() -> tuple[int, int]:
    """Return the version of the library."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compiled(source: str, architecture: str, options: Sequence[str]) -> Compiled:
    """Compile a source for an architecture such as "sm_90"; AssertionError with the log if it does not compile."""
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    added_options = f"--gpu-architecture={architecture}", "--device-as-default-execution-space"  # as CuPy does
    arguments = [*options, *added_options, "--ptxas-options=-v"]
    failed = nvrtc.nvrtcCompileProgram(
        program, len(arguments), (ctypes.c_char_p * len(arguments))(*map(str.encode, arguments))
    )
    log, assembly = (read(program, name).rstrip(b"\0").decode() for name in ("ProgramLog", "PTX"))
    binary = b"" if failed else read(program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, f"{log}\n{source}"

    def largest(pattern: str) -> int:
        return max(map(int, re.findall(pattern, log)), default=0)

    assert "registers" in log, log
    spilled = largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads")
    stack = largest(r"(\d+) bytes stack frame")
    return Compiled(largest(r"Used (\d+) registers"), spilled, stack, assembly, binary, log)


def read(program: Any, name: str) -> bytes:
    """Return the log, the assembly or the binary of a program."""
    nvrtc, size = library(), ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{name}")(program, buffer)
    return buffer.raw
