"""Tests of random streams: the bits of Philox, independent streams, and states.

The oracle below is written from the paper in Python's integers and shares no code with what it tests. All draws
are seeded, so the outcome of a statistical test is reproducible.
"""

import itertools
import math
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod

import ml_dtypes
import numpy as np
import pytest
from helpers.philox import ONES, oracle_block, oracle_lanes, oracle_normals, oracle_words

import neonlite.backend.random as streams_module
from neonlite.backend.random import PURPOSES, RandomStreams, philox

PI_KEY = (0x452821E638D01377, 0xBE5466CF34E90C6C)
PI_COUNTER = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)

# The known answers that the authors publish with Random123 (kat_vectors, "philox4x64 10"): counter, key, block.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ((ONES,) * 4, (ONES,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (PI_COUNTER, PI_KEY, "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
]


# --- the oracle ---


def at_block(seed, **blocks):
    """RandomStreams that have handed out the given numbers of blocks."""
    streams = RandomStreams(seed)
    state = list(streams.get_state())
    for purpose, count in blocks.items():
        state[2 + PURPOSES[purpose]] = count
    streams.set_state(tuple(state))
    return streams


def blocks_used(streams):
    return dict(zip(PURPOSES, streams.get_state()[2:6], strict=True))


# --- words of Philox ---


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_the_oracle_agrees_with_the_published_answers(counter, key, block):
    assert [f"{word:016x}" for word in oracle_block(counter, key)] == block.split()


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_the_generator_agrees_with_the_published_answers(counter, key, block):
    generator = philox(*key, sum(word << 64 * index for index, word in enumerate(counter)))
    assert [f"{word:016x}" for word in generator.random_raw(4).tolist()] == block.split()


def test_words_at_random_positions_of_random_seeds_are_those_of_the_oracle():
    dice = random.Random(20110)
    for bits in (8, 32, 63, 64, 65, 128, 129, 200, 256):
        for purpose in PURPOSES:
            seed, start, n = dice.getrandbits(64), dice.getrandbits(bits), dice.randrange(1, 30)
            drawn = at_block(seed, **{purpose: start}).words(purpose, n)
            assert drawn.dtype == np.uint64
            assert drawn.tolist() == oracle_words(seed, purpose, n, start), (seed, purpose, n, start)


@pytest.mark.parametrize("start", [2**64 - 2, 2**128 - 2, 2**192 - 2, 2**256 - 2])
def test_the_counter_carries_from_word_to_word_and_at_last_starts_again(start):
    streams = at_block(5, data=start)
    assert streams.words("data", 16).tolist() == oracle_words(5, "data", 16, start)
    assert blocks_used(streams)["data"] == (start + 4) % 2**256


def test_a_long_draw_matches_the_oracle_at_every_chunk_border():
    n = 2 * 4 * streams_module._TASK_BLOCKS + 8 * streams_module._CHUNK_BLOCKS + 4
    drawn = RandomStreams(9).words("noise", n)
    for border in range(0, n // 4 + 1, streams_module._CHUNK_BLOCKS):
        first = max(0, border - 1)
        window = drawn[4 * first : 4 * border + 4].tolist()
        assert window == oracle_words(9, "noise", len(window), first)


def test_words32_are_the_halves_of_words_with_the_low_half_first():
    drawn = RandomStreams(77).words32("masks", 21)
    assert drawn.dtype == np.uint32
    assert drawn.tolist() == oracle_lanes(77, "masks", 21)


@pytest.mark.parametrize("order", ["<u8", ">u8"])
def test_lanes_do_not_depend_on_byte_order(order):
    words = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210], order)
    assert streams_module._as_words32(words).tolist() == [0x89ABCDEF, 0x01234567, 0x76543210, 0xFEDCBA98]


# --- uniforms, normals, masks, integers and permutations from words ---


def test_uniforms_are_the_top_bits_of_words32_and_words():
    lanes, words = oracle_lanes(3, "weights", 13), oracle_words(3, "weights", 13)
    half = RandomStreams(3).uniform("weights", 13, np.float16)
    bfloat = RandomStreams(3).uniform("weights", 13, ml_dtypes.bfloat16)
    single = RandomStreams(3).uniform("weights", 13)
    double = RandomStreams(3).uniform("weights", 13, float)
    assert (half.dtype, single.dtype, double.dtype) == (np.float16, np.float32, np.float64)
    assert half.tolist() == [(lane >> 21) / 2**11 for lane in lanes]
    assert bfloat.tolist() == [(lane >> 24) / 2**8 for lane in lanes]
    assert single.tolist() == [(lane >> 8) / 2**24 for lane in lanes]
    assert double.tolist() == [(word >> 11) / 2**53 for word in words]


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)])
def test_the_largest_bits_still_give_a_uniform_below_one(dtype, digits):
    _, to_values = streams_module._UNIFORM[dtype]
    assert to_values(np.array([2**64 - 1], np.uint64)).astype(dtype).max() == 1 - 2.0**-digits
    assert to_values(np.array([0], np.uint64)).min() == 0


def test_normals_are_box_muller_of_word_pairs():
    drawn = RandomStreams(8).normal("noise", 1001, np.float64)
    expected = oracle_normals(8, "noise", 1001)
    np.testing.assert_array_max_ulp(drawn, np.array(expected), 4)


def test_every_dtype_sees_the_same_normals():
    double = RandomStreams(8).normal("noise", 501, np.float64)
    for dtype in (np.float16, np.float32):
        np.testing.assert_array_equal(RandomStreams(8).normal("noise", 501, dtype), double.astype(dtype))


def test_no_word_yields_an_infinite_normal():
    zero, ones = 0, 2**64 - 1
    extreme = streams_module._to_normal(np.array([zero, zero, ones, zero, zero, ones, ones, ones], np.uint64))
    assert np.isfinite(extreme).all()
    assert 8.57 < abs(extreme).max() < 8.58


def test_a_mask_is_one_where_the_word32_is_below_the_threshold():
    lanes = oracle_lanes(4, "masks", 100)
    for keep in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert RandomStreams(4).mask("masks", np.empty(100), keep).tolist() == [lane < keep * 2**32 for lane in lanes]


def test_the_threshold_of_a_mask_is_exact():
    lane = oracle_lanes(4, "masks", 1)[0]
    for above, expected in ((0, 0), (0.5, 1), (1, 1)):
        assert RandomStreams(4).mask("masks", np.empty(1), (lane + above) / 2**32)[0] == expected


@pytest.mark.parametrize("raw", [False, True])
def test_keep_of_zero_and_one_is_deterministic(monkeypatch, raw):
    extreme = np.array([0, 2**64 - 1], np.uint64).view(np.uint32)
    monkeypatch.setattr(streams_module, "_as_words32", lambda words: extreme)
    if raw:  # not from the upper bits
        monkeypatch.setattr(RandomStreams, "_fill", partialmethod(fill_raw, RandomStreams._fill))
    assert RandomStreams(4).mask("masks", np.full(4, 7.0), 0.0).tolist() == [0, 0, 0, 0]
    assert RandomStreams(4).mask("masks", np.full(4, 7.0), 1.0).tolist() == [1, 1, 1, 1]


def fill_raw(streams, fill, purpose, out, per_block, to_values, draw):
    return fill(streams, purpose, out, per_block, to_values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, bool])
def test_a_mask_accepts_any_dtype_and_returns_its_out_argument(dtype):
    out = np.empty((5, 7), dtype)
    assert RandomStreams(4).mask("masks", out, 0.4) is out
    assert out.astype(int).ravel().tolist() == [lane < 0.4 * 2**32 for lane in oracle_lanes(4, "masks", 35)]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 10), (-7, 8), (0, 2**32), (-5, 2**32 - 6), (2**62, 2**62 + 3), (-(2**63), -(2**63) + 9)],
)
def test_integers_are_the_top_of_the_product(low, high):
    drawn = RandomStreams(6).integers("data", low, high, 50)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [low + (word * (high - low) >> 64) for word in oracle_words(6, "data", 50)]


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_a_permutation_sorts_the_words(n):
    words = oracle_words(6, "data", n)
    drawn = RandomStreams(6).permutation("data", n)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == sorted(range(n), key=words.__getitem__)


def test_equal_words_keep_their_order_in_a_permutation(monkeypatch):
    streams = RandomStreams(6)
    monkeypatch.setattr(streams, "words", lambda purpose, n: np.arange(n, dtype=np.uint64) % np.uint64(3))
    assert streams.permutation("data", 100).tolist() == sorted(range(100), key=lambda i: i % 3)


# --- layouts ---


def layouts(dtype):
    yield "Fortran", np.zeros((301, 203), dtype, order="F")
    yield "transposed", np.zeros((203, 301), dtype).T
    yield "every second column", np.zeros((301, 406), dtype)[:, ::2]
    yield "backwards", np.zeros((301, 203), dtype)[::-1, ::-1]
    yield "inner axes swapped", np.zeros((43, 29, 7, 7), dtype).transpose(1, 3, 0, 2)


def test_values_are_in_c_order_whatever_the_layout_of_out():
    draws = {
        "uniform": lambda out: RandomStreams(1).uniform("noise", out=out),
        "normal": lambda out: RandomStreams(1).normal("noise", out=out),
        "mask": lambda out: RandomStreams(1).mask("noise", out, 0.5),
    }
    for name, draw in draws.items():
        for layout, out in layouts(np.float32):
            flat = draw(np.zeros(out.size, np.float32))
            assert draw(out) is out
            assert out.ravel().tobytes() == flat.tobytes(), (name, layout)


def test_only_the_view_is_written():
    whole = np.full((4, 6), 9.0)
    RandomStreams(1).uniform("noise", out=whole[1:3, ::2])
    untouched = np.ones((4, 6), bool)
    untouched[1:3, ::2] = False
    assert (whole[untouched] == 9).all()
    assert (whole[~untouched] < 1).all()


def test_empty_and_zero_dimensional_arrays_are_filled_too():
    streams = RandomStreams(1)
    assert streams.uniform("noise", (3, 0)).shape == (3, 0)
    assert blocks_used(streams)["noise"] == 0
    assert streams.uniform("noise", ()).item() == (oracle_lanes(1, "noise", 1)[0] >> 8) / 2**24
    assert streams.integers("noise", 0, 2, ()).shape == ()


def test_out_gives_shape_and_dtype_and_may_not_contradict_them():
    streams = RandomStreams(1)
    out = np.empty((2, 3), np.float64)
    assert streams.uniform("noise", (2, 3), np.float64, out=out) is out
    with pytest.raises(ValueError, match=r"expected out of shape \(3, 2\), got \(2, 3\)"):
        streams.uniform("noise", (3, 2), out=out)
    with pytest.raises(ValueError, match="expected out of dtype float32, got float64"):
        streams.normal("noise", dtype=np.float32, out=out)
    assert blocks_used(streams)["noise"] == 2


# --- the stream must not change ---


def test_the_stream_is_the_one_that_saved_seeds_rely_on():
    def pinned(*texts):
        return [float.fromhex(text) for text in texts]

    assert RandomStreams(1234).uniform("weights", 4, np.float16).tolist() == pinned(
        "0x1.67cp-1", "0x1.bcp-5", "0x1.558p-2", "0x1.974p-1"
    )
    assert RandomStreams(1234).uniform("weights", 4, np.float32).tolist() == pinned(
        "0x1.67dab6p-1", "0x1.bff0ap-5", "0x1.55e0a8p-2", "0x1.97631ep-1"
    )
    assert RandomStreams(1234).uniform("weights", 4, np.float64).tolist() == pinned(
        "0x1.bff0b6367dab0p-5", "0x1.97631e62aaf05p-1", "0x1.3731005226eb8p-2", "0x1.03762faa09693p-1"
    )
    assert RandomStreams(1234).normal("noise", 4, np.float32).tolist() == pinned(
        "-0x1.0c0034p+1", "0x1.1a44fcp-2", "-0x1.228f86p+0", "0x1.f674ecp-2"
    )
    # In float64 the last bits are those of the machine's log, sin and cos.
    np.testing.assert_array_max_ulp(
        RandomStreams(1234).normal("noise", 4, np.float64),
        np.array(
            pinned("-0x1.0c00343ab0641p+1", "0x1.1a44fc29abf52p-2", "-0x1.228f852b752b4p+0", "0x1.f674eb80a9ffcp-2")
        ),
        4,
    )
    mask = RandomStreams(1234).mask("masks", np.empty(32, int), 0.3)
    assert "".join(map(str, mask)) == "11010000010010000001000000111000"
    assert RandomStreams(1234).integers("data", -5, 5, 8).tolist() == [3, 4, -4, 1, -1, 3, -3, 1]
    assert RandomStreams(1234).permutation("data", 8).tolist() == [2, 6, 4, 3, 7, 0, 5, 1]


def test_the_purposes_keep_their_key_words():
    assert PURPOSES == {"weights": 0, "masks": 1, "data": 2, "noise": 3}


# --- independence of streams ---


@pytest.mark.parametrize("purpose", PURPOSES)
def test_drawing_from_the_other_streams_and_the_host_shifts_nothing(purpose):
    streams = RandomStreams(12)
    for other in PURPOSES.keys() - {purpose}:
        streams.normal(other, 17)
        streams.mask(other, np.empty(33), 0.5)
        streams.permutation(other, 5)
    streams.host.normal(size=9)
    assert streams.words(purpose, 8).tolist() == oracle_words(12, purpose, 8)


def test_streams_of_one_seed_and_of_neighbouring_seeds_are_uncorrelated():
    drawn = [RandomStreams(seed).uniform(purpose, 20_000, float) for seed in (0, 1, 2) for purpose in PURPOSES]
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert abs(correlations).max() < 4.5 / math.sqrt(20_000)


DRAWS = [
    (lambda s, n: s.words("data", n), 4),
    (lambda s, n: s.words32("data", n), 8),
    (lambda s, n: s.uniform("data", n, np.float16), 8),
    (lambda s, n: s.uniform("data", n, np.float32), 8),
    (lambda s, n: s.uniform("data", n, np.float64), 4),
    (lambda s, n: s.normal("data", n, np.float16), 4),
    (lambda s, n: s.normal("data", n, np.float32), 4),
    (lambda s, n: s.normal("data", n, np.float64), 4),
    (lambda s, n: s.mask("data", np.empty(n), 0.0), 8),
    (lambda s, n: s.mask("data", np.empty(n), 0.5), 8),
    (lambda s, n: s.mask("data", np.empty(n), 1.0), 8),
    (lambda s, n: s.integers("data", 0, 3, n), 4),
    (lambda s, n: s.permutation("data", n), 4),
]


@pytest.mark.parametrize(("draw", "per_block"), DRAWS)
def test_a_draw_consumes_whole_blocks_and_the_next_one_starts_after_them(draw, per_block):
    for n in (0, 1, per_block - 1, per_block, per_block + 1, 5 * per_block + 3):
        streams = RandomStreams(2)
        draw(streams, n)
        blocks = -(-n // per_block)
        assert blocks_used(streams) == {"weights": 0, "masks": 0, "data": blocks, "noise": 0}
        assert streams.words("data", 4).tolist() == oracle_words(2, "data", 4, blocks)


# --- the distributions ---


def kolmogorov_smirnov(values, cdf):
    """sqrt(n) times the largest distance between the two distribution functions; above 1.95 once in a thousand."""
    values = np.sort(values)
    n = len(values)
    expected = cdf(values)
    steps = np.arange(n + 1) / n
    return math.sqrt(n) * max((steps[1:] - expected).max(), (expected - steps[:-1]).max())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniforms_are_uniform(dtype):
    values = RandomStreams(31).uniform("noise", 20_000, dtype).astype(float)
    values += {np.float16: 2.0**-12}.get(dtype, 0)  # the middle of a float16's cell
    assert values.min() >= 0
    assert values.max() < 1
    assert kolmogorov_smirnov(values, lambda x: x) < 1.95
    for power in (1, 2, 3, 4):
        sigma = math.sqrt((1 / (2 * power + 1) - 1 / (power + 1) ** 2) / len(values))
        assert abs((values**power).mean() - 1 / (power + 1)) < 4 * sigma


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_are_normal(dtype):
    values = RandomStreams(32).normal("noise", 20_000, dtype).astype(float)
    cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    assert kolmogorov_smirnov(values, cdf) < 1.95
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((values**power).mean() - moment) < 4 * math.sqrt(variance / len(values))
    assert abs((values[0::2] * values[1::2]).mean()) < 4 / math.sqrt(len(values) / 2)


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.8])
def test_a_mask_keeps_its_fraction(keep):
    n = 200_000
    total = RandomStreams(33).mask("masks", np.empty(n, np.float32), keep).sum(dtype=float)
    assert abs(total - n * keep) < 4 * math.sqrt(n * keep * (1 - keep))


def test_integers_are_equally_likely():
    counts = np.bincount(RandomStreams(34).integers("data", 0, 10, 50_000))
    assert ((counts - 5000) ** 2 / 5000).sum() < 27.9  # chi squared of 9 degrees, once in a thousand


def test_permutations_are_equally_likely():
    streams = RandomStreams(35)
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(2400):
        counts[tuple(streams.permutation("data", 4).tolist())] += 1
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7  # 23 degrees, once in a thousand


# --- state ---


def draw_everything(streams):
    host = streams.host
    return [
        streams.uniform("weights", (3, 5)).tobytes(),
        streams.normal("noise", 7, float).tobytes(),
        streams.mask("masks", np.empty(11), 0.5).tobytes(),
        streams.permutation("data", 6).tobytes(),
        host.uniform(-1, 1, 3).tobytes(),
        host.normal(size=3).tobytes(),  # an odd number leaves a gauss behind
        host.randint(0, 9, 5, dtype=np.int32).tobytes(),  # and this half a word
    ]


def test_set_state_restores_the_state_of_get_state():
    streams = RandomStreams(40)
    draw_everything(streams)
    state = streams.get_state()
    first = draw_everything(streams)
    assert streams.get_state() != state
    streams.set_state(state)
    assert streams.get_state() == state
    assert draw_everything(streams) == first


def test_a_state_carries_over_to_streams_of_another_seed():
    one, other, fresh = RandomStreams(40), RandomStreams(41), RandomStreams(42)
    draw_everything(one)
    draw_everything(other)  # this one has a host generator to re-key, `fresh` has none yet
    state = one.get_state()
    expected = draw_everything(one)
    for streams in (other, fresh):
        streams.set_state(state)
        assert streams.seed == 40
        assert draw_everything(streams) == expected


def test_the_state_before_the_host_is_first_used_is_also_the_hosts():
    streams = RandomStreams(40)
    state = streams.get_state()
    first = streams.host.normal(size=3).tolist()
    streams.set_state(state)
    assert streams.host.normal(size=3).tolist() == first


def test_a_state_is_a_small_tuple_of_plain_numbers_and_text():
    streams = RandomStreams(np.uint64(2**64 - 1))
    draw_everything(streams)
    state = streams.get_state()
    assert type(state) is tuple
    assert {type(entry) for entry in state} == {int, str}
    assert len(state) == 11
    assert state[:6] == ("philox4x64-10/1", 2**64 - 1, 2, 2, 2, 2)
    assert {state: "hashable"}[state] == "hashable"


def test_reading_the_state_of_the_host_does_not_change_it():
    streams = RandomStreams(40)
    state = streams.get_state()
    assert streams.host is streams.host
    assert streams.get_state() == state


@pytest.mark.parametrize("draws", range(12))
def test_the_host_generator_is_restored_in_place_at_every_position_of_its_block(draws):
    streams = RandomStreams(43)
    host = streams.host
    host.random_sample(draws)
    state = streams.get_state()
    assert state[6] == draws
    expected = host.random_sample(9).tolist()
    streams.set_state(state)
    assert streams.host is host
    assert host.random_sample(9).tolist() == expected


@pytest.mark.parametrize("words", [2**66 + 3, 2**258 - 3, 2**258 - 1])
def test_the_hosts_position_may_be_huge(words):
    streams = RandomStreams(43)
    state = (*streams.get_state()[:6], words, 0, 0, 0, "0x0.0p+0")
    streams.set_state(state)
    assert streams.get_state() == state
    expected = streams.host.random_sample(9).tolist()
    streams.set_state(state)
    assert streams.host.random_sample(9).tolist() == expected


def test_the_host_is_a_random_state_over_philox():
    key = np.array([44, 4], np.uint64)
    expected = np.random.RandomState(np.random.Philox(key=key))
    host = RandomStreams(44).host
    assert isinstance(host, np.random.RandomState)
    assert host.uniform(-2, 2, (2, 3)).tolist() == expected.uniform(-2, 2, (2, 3)).tolist()
    assert host.randint(0, 100, 9).tolist() == expected.randint(0, 100, 9).tolist()


def test_reset_restores_the_initial_state_in_place():
    streams = RandomStreams(45)
    host = streams.host
    first = draw_everything(streams)
    streams.set_state(RandomStreams(46).get_state())
    draw_everything(streams)
    streams.reset()
    assert streams.seed == 45
    assert streams.host is host
    assert draw_everything(streams) == first


def test_the_default_seed_is_new_and_can_be_read_and_used_again():
    one, other = RandomStreams(), RandomStreams(None)
    assert one.seed != other.seed
    assert RandomStreams(one.seed).words("data", 9).tolist() == one.words("data", 9).tolist()


# --- mistakes ---


@pytest.mark.parametrize(
    ("seed", "error", "got"),
    [
        (-1, ValueError, r"-1 \(int\)"),
        (2**64, ValueError, r"18446744073709551616 \(int\)"),
        (np.int64(-3), ValueError, r"np.int64\(-3\) \(int64\)"),
        (1.0, TypeError, r"1.0 \(float\)"),
        (np.float32(1), TypeError, r"np.float32\(1.0\) \(float32\)"),
        ("1", TypeError, r"'1' \(str\)"),
        (True, TypeError, r"True \(bool\)"),
        (np.True_, TypeError, r"np.True_ \(bool\)"),
        ([1], TypeError, r"\[1\] \(list\)"),
    ],
)
def test_a_bad_seed_is_named(seed, error, got):
    with pytest.raises(error, match=r"rng_seed: expected an integer from 0 to 2\*\*64 - 1 or None, got " + got):
        RandomStreams(seed)


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.int8(5), np.uint64(2**64 - 1)])
def test_any_integer_in_range_is_a_seed(seed):
    streams = RandomStreams(seed)
    assert type(streams.seed) is int
    assert streams.words("data", 4).tolist() == oracle_words(int(seed), "data", 4)


VALID_STATE = RandomStreams(7).get_state()


def changed(index, entry):
    return (*VALID_STATE[:index], entry, *VALID_STATE[index + 1 :])


@pytest.mark.parametrize(
    ("state", "got"),
    [
        (None, "got None"),
        ((), r"got \(\)"),
        (list(VALID_STATE), r"got \['philox"),
        (VALID_STATE[:-1], r"got \('philox"),
        ((*VALID_STATE, 0), r"got \('philox"),
        (("MT19937", np.zeros(624, np.uint32), 624, 0, 0.0), r"got \('MT19937'"),
        (changed(0, "philox4x64-10/2"), "got format 'philox4x64-10/2'"),
        (changed(0, np.arange(3)), "got format array"),
        (changed(1, -1), "got seed = -1"),
        (changed(1, 2**64), "got seed = 18446744073709551616"),
        (changed(2, 1.0), "got weights = 1.0"),
        (changed(3, True), "got masks = True"),
        (changed(4, 2**256), "got data = "),
        (changed(5, np.int64(3)), "got noise = "),
        (changed(6, 2**258), "got host words = "),
        (changed(7, 2), "got host has_uint32 = 2"),
        (changed(8, 2**32), "got host uinteger = 4294967296"),
        (changed(9, "0"), "got host has_gauss = '0'"),
        (changed(10, 0.0), "got host gauss = 0.0"),
        (changed(10, "nan"), "got host gauss = 'nan'"),
        (changed(10, "one"), "got host gauss = 'one'"),
        (changed(10, "0x1p99999"), "got host gauss = '0x1p99999'"),
    ],
)
def test_a_bad_state_is_named_and_leaves_the_old_one(state, got):
    streams = RandomStreams(50)
    draw_everything(streams)
    before = streams.get_state()
    with pytest.raises(
        ValueError, match=r"tuple that get_state\(\) returned, \('philox4x64-10/1', seed, weights.*" + got
    ):
        streams.set_state(state)
    assert streams.get_state() == before


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda s: s.words("mask", 4), ValueError, "'weights', 'masks', 'data', 'noise', got 'mask'"),
        (lambda s: s.uniform("data", 4, int), TypeError, "float16, bfloat16, float32, float64, got int64"),
        (lambda s: s.normal("data", 4, complex), TypeError, "float16, bfloat16, float32, float64, got complex128"),
        (lambda s: s.uniform("data"), TypeError, "expected shape or out, got neither"),
        (lambda s: s.normal("data", out=[1.0]), TypeError, "as out, got list"),
        (lambda s: s.mask("data", [1.0], 0.5), TypeError, "as out, got list"),
        (lambda s: s.mask("data", np.empty(3, complex), 0.5), TypeError, "as out, got complex128"),
        (lambda s: s.mask("data", np.empty(3, "U1"), 0.5), TypeError, "as out, got <U1"),
        (lambda s: s.mask("data", np.broadcast_to(1.0, 3), 0.5), ValueError, "read-only"),
        (lambda s: s.uniform("data", out=np.broadcast_to(1.0, 3)), ValueError, "read-only"),
        (lambda s: s.mask("data", np.empty(3), 1.5), ValueError, ">= 0 and <= 1 for keep, got 1.5"),
        (lambda s: s.mask("data", np.empty(3), -0.1), ValueError, ">= 0 and <= 1 for keep, got -0.1"),
        (lambda s: s.mask("data", np.empty(3), math.nan), ValueError, ">= 0 and <= 1 for keep, got nan"),
        (lambda s: s.mask("data", np.empty(3), "a"), TypeError, "mask: expected a number for keep, got 'a'"),
        (lambda s: s.integers("data", 3, 3, 4), ValueError, "got low=3, high=3"),
        (
            lambda s: s.integers("data", 0, 2**32 + 1, 4),
            ValueError,
            "high <= low \\+ 2\\*\\*32, got low=0, high=4294967297",
        ),
        (lambda s: s.integers("data", 2**63 - 1, 2**63 + 1, 4), ValueError, "expected int64 low < high"),
        (lambda s: s.integers("data", 0, 2.5, 4), TypeError, "integer"),
        (lambda s: s.words("data", -1), ValueError, "negative"),
    ],
)
def test_an_invalid_draw_raises_an_error_and_uses_no_blocks(draw, error, message):
    streams = RandomStreams(51)
    before = streams.get_state()
    with pytest.raises(error, match=message):
        draw(streams)
    assert streams.get_state() == before


# --- threads and start-up ---


def test_threads_that_draw_from_one_stream_share_it_without_loss():
    streams, drawn, start = RandomStreams(60), [], threading.Barrier(8)

    def draw():
        start.wait()
        drawn.extend(tuple(block) for _ in range(100) for block in streams.words("data", 12).reshape(3, 4).tolist())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=draw) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    expected = RandomStreams(60).words("data", 8 * 100 * 12).reshape(-1, 4).tolist()
    assert sorted(drawn) == sorted(map(tuple, expected))


def test_a_draw_counts_its_blocks_under_the_lock():
    locked = []

    class RecordingDict(dict):
        def __setitem__(self, purpose, blocks):
            locked.append(streams._lock._is_owned())
            super().__setitem__(purpose, blocks)

        def __getitem__(self, purpose):
            locked.append(streams._lock._is_owned())
            return super().__getitem__(purpose)

    streams = RandomStreams(60)
    streams._blocks = RecordingDict(streams._blocks)
    streams.uniform("data", 100)
    assert locked == [True, True]


@pytest.mark.parametrize("layout", ["C", "F"])
def test_a_draw_is_the_same_on_any_number_of_threads(layout):
    def backwards(work, count):
        work(reversed(range(count)))

    def on_threads(threads):
        def pool(work, count):
            list(threads.map(lambda part: work(iter([part])), range(count)))

        return pool

    def draw(pool):
        streams = RandomStreams(61, pool)
        out = np.empty((1000, 1250), np.float32, order=layout)
        normals = np.empty((1000, 600), np.float32, order=layout)
        bits = streams.mask("masks", out, 0.3).tobytes(), streams.uniform("noise", out=out).tobytes()
        return *bits, streams.normal("noise", out=normals).tobytes(), streams.get_state()

    alone = draw(None)
    assert draw(backwards) == alone
    for count in (2, 5):
        with ThreadPoolExecutor(count) as threads:
            assert draw(on_threads(threads)) == alone


def test_a_small_draw_does_not_use_the_thread_pool():
    def pool(work, count):
        raise AssertionError("the pool was asked")

    assert RandomStreams(62, pool).uniform("noise", 1000).size == 1000


def test_numpy_random_is_imported_only_by_the_first_draw():
    program = """
import sys
from neonlite.backend.random import RandomStreams
streams = RandomStreams(1)
streams.reset()
assert "numpy.random" not in sys.modules
streams.words("data", 1)
assert "numpy.random" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
