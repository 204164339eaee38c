"""The Philox-4x64 generator in Python integers, written from the paper, without neonlite."""

import itertools
import math

ONES = 2**64 - 1


def oracle_block(counter, key):
    """Ten rounds of Philox-4x64 (Salmon et al. 2011): multiply, swap halves, xor with the Weyl sequence of keys."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (q >> 64) ^ b ^ k0, q % 2**64, (p >> 64) ^ d ^ k1, p % 2**64
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return [a, b, c, d]


def oracle_words(seed, purpose, n, start=0):
    key = seed, ["weights", "masks", "data", "noise"].index(purpose)
    counters = ((start + k) % 2**256 for k in range((n + 3) // 4))
    blocks = (oracle_block([counter >> 64 * i & ONES for i in range(4)], key) for counter in counters)
    return list(itertools.chain.from_iterable(blocks))[:n]


def oracle_lanes(seed, purpose, n, start=0):
    words = oracle_words(seed, purpose, (n + 1) // 2, start)
    return [half for word in words for half in (word % 2**32, word // 2**32)][:n]


def oracle_normals(seed, purpose, n):
    words = oracle_words(seed, purpose, n + n % 2)
    values = []
    for first, second in zip(words[0::2], words[1::2], strict=True):
        radius = math.sqrt(-2 * math.log((first // 2**11 + 1) / 2**53))
        angle = 2 * math.pi * (second // 2**11 / 2**53)
        values += [radius * math.cos(angle), radius * math.sin(angle)]
    return values[:n]
