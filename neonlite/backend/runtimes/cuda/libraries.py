"""Find and load NVIDIA's shared libraries from pip wheels, conda or a CUDA toolkit.

The system's loader does not search the folders of pip wheels. Once loaded, a library is found by its bare name
(``dlopen("libcudart.so.13")``), by which CuPy and the cuDNN frontend open it.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from pathlib import Path


@cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Return an NVIDIA library, such as "cublas", loaded by ctypes; None where it is not installed.

    ``cuda.pathfinder``, a dependency of CuPy, is tried first. It does not search the folders of PYTHONPATH, so if it
    fails, all folders of ``sys.path`` are searched.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError):  # no pathfinder, or it does not find the library
        paths = [path for folder in sys.path for path in Path(folder or ".").glob(f"nvidia/*/lib/lib{name}.so.*")]
    for path in sorted(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # for another platform, or incomplete
            continue
    return None
