"""The cache of bounded size."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import threading
from collections import deque

import pytest

from neonlite.backend import Backend
from neonlite.backend.concurrency import Cache, clear_caches


def test_what_was_used_last_is_kept() -> None:
    cache, used, rng = Cache(20), list[int](), random.Random(0)
    for _ in range(5000):
        key = rng.randrange(40)
        is_recent = key in [*dict.fromkeys(reversed(used))][:10]
        try:
            assert cache[key] == -key
        except KeyError:
            assert not is_recent
            cache.add(key, -key)
        used.append(key)
        assert len(cache) == cache.total_cost <= 20


def test_entries_have_costs() -> None:
    cache = Cache(100, cost=lambda key, value: value)
    sizes = random.Random(1).choices(range(1, 101), k=2000)
    for n, size in enumerate(sizes):
        assert cache.add(n, size) == cache[n] == size
        assert cache.total_cost == sum(cache.values()) <= 100


def test_the_first_value_of_a_key_stays() -> None:
    cache = Cache(4)
    assert cache.add("a", 1) == cache.add("a", 2) == 1
    cache.add("b", None), cache.add("c", 3)
    assert "a" in cache.older
    assert cache.add("a", 2) == cache["a"] == cache.get("a") == 1
    assert "a" not in cache.older
    assert cache["b"] is None
    with pytest.raises(KeyError):
        cache["d"]


def test_closing_a_backend_empties_its_caches() -> None:
    be, other = Backend("cpu"), Backend("cpu")
    mine, theirs, nobodys = Cache(9, be.memory_tracker), Cache(9, other.memory_tracker), Cache(9)
    for b in (be, other):
        b.tanh(b.ones((3, 4)) + 1).get()
    for cache in (mine, theirs, nobodys):
        cache.add("key", 1)
    be.cleanup_backend()
    assert [len(cache) for cache in (mine, theirs, nobodys)] == [0, 1, 0]
    assert len(be.plan_cache) == len(be.structures) == 0 < min(len(other.plan_cache), len(other.structures))
    clear_caches(other.memory_tracker)
    assert len(theirs) == len(other.plan_cache) == 0


def test_threads_share_a_cache() -> None:
    cache, errors = Cache(16), list[BaseException]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(3000):
                key = rng.randrange(32)
                try:
                    value = cache[key]
                except KeyError:
                    value = cache.add(key, key * 2)
                assert value == key * 2
                if rng.random() < 0.01:
                    cache.clear()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(cache) == cache.total_cost <= 16


def test_caches_are_emptied_while_other_threads_create_some() -> None:
    caches, stopped = deque([Cache(4) for _ in range(1000)], maxlen=1000), threading.Event()

    def create() -> None:
        while not stopped.is_set():
            caches.append(Cache(4))

    thread, interval = threading.Thread(target=create), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the threads alternate within each call
    thread.start()
    try:
        for _ in range(500):
            clear_caches(object())
    finally:
        stopped.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert len(caches) == 1000


def test_a_copy_of_a_cache_is_empty_and_as_large() -> None:
    cache = Cache(4)
    cache.add("x", 1)
    for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(copied), copied.capacity) == (0, 4)
