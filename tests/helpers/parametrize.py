"""Parameters of tests: all values in ``make test-slow``, a part of them in ``make test``."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

from helpers.runtimes import RUNTIMES

SEED = os.environ.get("NEONLITE_TEST_SEED", "0")
VARIANTS = os.environ.get("NEONLITE_TEST_VARIANTS", "sample")
NUM_PARTS = 3
OTHER_RUNTIMES = {*RUNTIMES, "simulated"} - {"cpu"}
SAMPLED = 6  # the sample has one in so many tests of a function on the runtimes other than cpu, and of its slow ones

T = TypeVar("T")


def part(trials: Sequence[T], key: str, n: int, num_parts: int = NUM_PARTS) -> Sequence[T]:
    """Return the trials of a test, in random order: one of several parts, or all with NEONLITE_TEST_VARIANTS=all.

    Tests that differ in one parameter, such as the dtype, pass one key, which seeds the order, and successive numbers
    n: together they run all trials.
    """
    if VARIANTS == "all":
        return trials
    return random.Random(SEED + key).sample(trials, len(trials))[n % num_parts :: num_parts] or trials


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test function for all cases in one test, which names those that fail; else like pytest.mark.parametrize.

    The cases share the fixtures, and the milliseconds that pytest needs for each test; a case may be skipped. On
    runtimes other than cpu, the sample of ``make test`` has one in SAMPLED of them.
    """
    keys, cases = names.replace(",", " ").split(), list(cases)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run_cases(**fixtures: Any) -> None:
            failures: dict[str, BaseException] = {}
            for case in chosen(cases, function, fixtures):
                values = dict(zip(keys, case if len(keys) > 1 else [case], strict=True))
                try:
                    function(**fixtures, **values)
                except pytest.skip.Exception:
                    continue
                except (Exception, pytest.fail.Exception) as error:
                    name = ", ".join(f"{key}={value!r}" for key, value in values.items())
                    error.add_note(f"in the case {name}")
                    failures[name] = error
            if failures:
                raise BaseExceptionGroup(f"in the cases {'; '.join(failures)}", [*failures.values()])

        parameters = [x for x in signature.parameters.values() if x.name not in keys]
        run_cases.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run_cases.samples_cases = True  # type: ignore[attr-defined]
        return run_cases

    return decorate


def chosen(cases: list[T], function: Callable[..., None], fixtures: dict[str, Any]) -> list[T]:
    """Return the cases of a test to run by NEONLITE_TEST_VARIANTS: all, one, or on runtimes other than cpu a sample."""
    names = [x if isinstance(x, str) else getattr(x, "name", "") for x in fixtures.values()]
    rng = random.Random(SEED + function.__qualname__ + "".join(names))
    if VARIANTS == "one":
        return rng.sample(cases, 1)
    if VARIANTS == "sample" and OTHER_RUNTIMES & {*names} and "runtimes" not in function.__code__.co_filename:
        return rng.sample(cases, int(len(cases) / SAMPLED + rng.random()))
    return cases


# Numbers of nodes of a deep tree; recursion fails at 1,000.
DEEP = [10_000, pytest.param(40_000, marks=pytest.mark.slow)]


def thinned(share: int, *axes: Iterable[Any]) -> list[Any]:
    """Return the cases of a product: of ``make test`` one of ``share``, in which each value occurs, the rest slow."""
    cases = itertools.product(*map(enumerate, axes))
    return [
        pytest.param(*values, marks=() if sum(places) % share == 0 else pytest.mark.slow)
        for places, values in (zip(*case, strict=True) for case in cases)
    ]


def values(params: Iterable[Any], is_slow: bool) -> list[Any]:
    """Return the values of those pytest.param that are marked slow, or of the others, for ``each``."""
    return [param.values for param in params if bool(param.marks) == is_slow]


# Architectures for which kernels are compiled.
ARCHITECTURES = [
    pytest.param("sm_80", marks=pytest.mark.slow),
    "sm_90",
]
