"""Text: tokens, their order in minibatches, sentences, and errors for files that are not text."""

from __future__ import annotations

import gzip
import json
import re
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.token_minibatches import bits, decode, flat

import neonlite as nl
from neonlite.data import TOKENIZERS, Text, TextNMT, clean_string, get_paddedXY, pad_data, pad_sentences, text_file
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedCost, LookupTable, Sequential
from neonlite.models import Model
from neonlite.optimizers import RMSProp
from neonlite.transforms import BitsPerCharacter, CrossEntropyMulti, Softmax

POEM = "the quick brown fox jumps over the lazy dog, and then it sleeps.\n" * 3

# --- which tokens --------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 195), (4, 3, 195), (4, 3, 60), (5, 2, 31), (7, 5, 71), (5, 2, 11), (64, 3, 195)]


@pytest.mark.parametrize("onehot", [True, False])
@pytest.mark.parametrize(("T", "N", "count"), SIZES)
def test_each_column_reads_its_part_contiguously_and_targets_are_the_next_tokens(be, T, N, count, onehot):
    be.bsz = N
    text = POEM[:count]
    it = Text(T, text=text, onehot_input=onehot)
    batches = (count - 1) // (T * N)
    assert it.vocab == sorted(set(text))
    V = len(it.vocab)
    assert (it.shape, it.nclass, it.nbatches, it.ndata) == ((V if onehot else 1, T), V, batches, batches * N)
    for _ in range(2):
        parts = [""] * N
        for x, t in it:
            assert (x.shape, t.shape) == ((V if onehot else 1, T * N), (V, T * N))
            assert (x.info.dtype, t.info.dtype) == ("float32" if onehot else "int32", "float32")
            for n, (here, after) in enumerate(zip(*(decode(a, it.vocab, N) for a in (x, t)), strict=True)):
                parts[n] += "".join(here)
                assert "".join(after) == text[n * batches * T :][len(parts[n]) - T + 1 : len(parts[n]) + 1]
        assert parts == [text[n * batches * T : (n + 1) * batches * T] for n in range(N)]
    assert (it.epoch, it.start) == (2, 0)


@pytest.mark.parametrize("onehot", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_an_encoder_and_a_decoder_get_the_tokens_and_the_target_before(be, onehot, reverse):
    be.bsz = 2
    it = Text(5, text=POEM, onehot_input=onehot, reverse_target=reverse, get_prev_target=True)
    plain = Text(5, text=POEM, onehot_input=onehot, reverse_target=reverse)
    assert it.shape == [plain.shape] * 2
    for ((x, previous), t), (same_x, same_t) in zip(it, plain, strict=True):
        assert bits([x, t]) == bits([same_x, same_t])
        here, before, after = (decode(a, it.vocab, 2) for a in (x, previous, t))
        for n in range(2):
            assert before[n] == [None if onehot else it.vocab[0], *after[n][:-1]]
            assert after[n] == here[n][::-1] if reverse else after[n][:-1] == here[n][1:]


def test_the_tensors_are_the_same_every_time_and_nothing_of_size_is_allocated(cpu):
    cpu.bsz = 32
    for options in ({}, {"onehot_input": False}, {"reverse_target": True, "get_prev_target": True}):
        it = Text(16, text=POEM * 60, **options)
        made = {tuple(id(t) for t in flat(pair)) for pair in it}
        assert len(made) == 1
        loop = iter(it)
        next(loop)
        assert buffers(lambda loop=loop: next(loop)) == []


def test_another_batch_size_gives_other_parts(cpu):
    it = Text(5, text=POEM)
    assert it.ndata == 0
    with pytest.raises(ValueError, match="expected a batch size, got none"):
        next(iter(it))
    for N in (2, 3, 2):
        cpu.bsz = N
        x, _ = next(iter(it))
        size = it.nbatches * 5
        assert ["".join(row) for row in decode(x, it.vocab, N)] == [POEM[n * size :][:5] for n in range(N)]


def test_tokens_are_one_hot_in_the_dtype_of_the_backend(be64):
    be64.bsz = 2
    for x, t in Text(5, text=POEM):
        assert x.info.dtype == t.info.dtype == "float64"


OPTIONS = [{}, {"onehot_input": False}, {"reverse_target": True, "get_prev_target": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_text_resumes_at_every_minibatch_bit_identically(options):
    nl.gen_backend("cpu", batch_size=3)
    it = Text(7, text=POEM, **options)
    whole, states = [], [it.get_state()]
    for _ in range(3):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    assert len({str(x) for x in whole}) == it.nbatches > 5
    for k, state in enumerate(states):
        other = Text(7, text=POEM, **options)
        list(islice(other, 2))
        other.set_state(json.loads(json.dumps(state)))
        assert other.get_state() == state
        found = [bits(pair) for _ in range(4) for pair in other]
        assert found[: len(whole) - k] == whole[k:]


def test_a_state_of_another_text_is_refused():
    be = nl.gen_backend("cpu", batch_size=3)
    state = Text(7, text=POEM).get_state()
    others = [
        (lambda: Text(6, text=POEM), "time_steps = 7, here 6"),
        (lambda: Text(7, text=POEM[:-1]), "length = 194, here 193"),
        (lambda: Text(7, text=POEM[:-1] + "#"), "nclass = "),
    ]
    for make, words in others:
        with pytest.raises(ValueError, match=f"expected a state of this iterator, got .*{words}"):
            make().set_state(state)
    be.bsz = 4
    with pytest.raises(ValueError, match="batch_size = 3, here 4"):
        Text(7, text=POEM).set_state(state)


def test_a_training_on_text_resumes_and_learns_the_next_tokens(tmp_path):
    def fresh():
        be = nl.gen_backend("cpu", rng_seed=5, batch_size=4)
        train = Text(8, text=POEM)
        model = Model([Affine(train.nclass, Gaussian(0, 0.1), activation=Softmax())])
        return be, train, model, GeneralizedCost(CrossEntropyMulti()), RMSProp(learning_rate=0.1)

    _, train, model, cost, optimizer = fresh()
    model.fit(train, cost, optimizer, num_epochs=15)
    best = {}
    for a, b in pairwise(POEM):
        best.setdefault(a, []).append(b)
    entropy = -sum(np.log2(best[a].count(b) / len(best[a])) for a, b in pairwise(POEM)) / len(POEM)
    assert model.eval(train, BitsPerCharacter())[0] < entropy + 0.3
    whole = model.layers.layers[0].W.get().tobytes()

    _, train, model, cost, optimizer = fresh()
    stop = 37

    class Killed(Exception):
        pass

    class Killing(nl.callbacks.CallbackBase):
        def on_minibatch_end(self, epoch, minibatch):
            if epoch * train.nbatches + minibatch == stop:
                model.save_params(tmp_path / "model.neon")
                raise Killed

    with pytest.raises(Killed):
        model.fit(train, cost, optimizer, 15, Killing())
    _, train, _, cost, optimizer = fresh()
    model = Model(tmp_path / "model.neon")
    model.fit(train, cost, optimizer, num_epochs=15)
    assert model.layers.layers[0].W.get().tobytes() == whole


def test_ids_go_through_a_table(cpu):
    cpu.bsz = 2
    it = Text(5, text=POEM, onehot_input=False)
    model = Model([LookupTable(it.nclass, 3, Gaussian()), Affine(it.nclass, Gaussian(), activation=Softmax())])
    model.initialize(it, GeneralizedCost(CrossEntropyMulti()))
    for x, t in it:
        assert model.fprop(x).shape == t.shape


# --- tokens and vocabularies ---------------------------------------------------------------------------------------


def test_tokenizers_go_by_names_or_are_functions():
    text = "It's a <unk>, isn’t it?\nYes... 3.5 übergroße!\n"
    assert list(TOKENIZERS) == ["characters", "words", "newline_tokenizer"]
    assert Text.get_tokens(text) == Text.get_tokens(text, "characters") == list(text)
    marked = ["It's", "a", "<", "unk", ">", ",", "isn’t", "it", "?", "Yes", *"...", "3", ".", "5", "übergroße", "!"]
    assert Text.get_tokens(text, "words") == marked
    lines = ["It's", "a", "<unk>,", "isn’t", "it?", "<eos>", "Yes...", "3.5", "übergroße!", "<eos>"]
    assert Text.get_tokens(text, "newline_tokenizer") == lines
    assert Text.get_tokens("a-b", lambda s: s.split("-")) == ["a", "b"]
    with pytest.raises(ValueError, match=r"one of 'characters', 'words', 'newline_tokenizer', or a function.*'word'"):
        Text.get_tokens("a", "word")


def test_tokens_get_ids_in_order_and_are_decoded(cpu):
    cpu.bsz = 1
    it = Text(2, text="b a c a\nb ä b\n", tokenizer="newline_tokenizer")
    assert it.vocab == ["<eos>", "a", "b", "c", "ä"]
    assert it.token_to_index == {"<eos>": 0, "a": 1, "b": 2, "c": 3, "ä": 4}
    assert it.index_to_token == {0: "<eos>", 1: "a", 2: "b", 3: "c", 4: "ä"}
    assert it.token_ids.tolist() == [2, 1, 3, 1, 0, 2, 4, 2, 0]
    assert it.encode("c ä\n").tolist() == [3, 4, 0]
    assert it.decode(it.token_ids) == "b a c a <eos> b ä b <eos>"
    assert Text(2, text="abc").decode([2, 0, 1]) == "cab"
    assert it.decode(np.array([[1.0, 2.0]])) == "a b"


def test_a_vocabulary_may_be_given_and_keeps_its_order(cpu):
    cpu.bsz = 1
    for vocab, order in [
        (["c", "a", "b"], ["c", "a", "b"]),
        ("cab", ["c", "a", "b"]),
        ({"c", "a", "b"}, ["a", "b", "c"]),
        ({"a": 1, "b": 0, "c": 2}, ["b", "a", "c"]),
    ]:
        it = Text(2, text="abcab", vocab=vocab)
        assert it.vocab == order
        assert [order[i] for i in it.token_ids] == list("abcab")
    assert Text.get_vocab("hello") == list("ehlo")
    for wrong in (["a", "a"], [], {"a": 1}, {"a": 0, "b": 0}):
        with pytest.raises(ValueError, match="expected a vocabulary "):
            Text(2, text="abcab", vocab=wrong)


def test_an_unknown_token_is_unk_where_there_is_one_and_else_an_error(cpu):
    cpu.bsz = 1
    it = Text(1, text="x y zz", vocab=["x", "<unk>", "y"], tokenizer="newline_tokenizer")
    assert it.token_ids.tolist() == [0, 2, 1]
    assert it.encode("y q").tolist() == [2, 1]
    with pytest.raises(
        IndexError, match=r"valid: expected tokens of the vocabulary of 2 tokens, got 'z'. .* add '<unk>' to it"
    ):
        Text(1, text="xyz", vocab="xy", name="valid")
    with pytest.raises(IndexError, match="expected tokens of the vocabulary of 4 tokens, got 'é'"):
        Text(1, text="caf ").encode("café")


@pytest.mark.parametrize("ids", [[0, 3], [-1], [0.5], [[1, 2], [9, 0]]])
def test_an_id_out_of_range_is_no_token(cpu, ids):
    cpu.bsz = 1
    with pytest.raises(IndexError, match=r"expected token ids from 0 to 2, got (3|-1|0.5|9) at index"):
        Text(1, text="abc").decode(ids)


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_text_is_read_from_a_file_packed_or_not(cpu, tmp_path):
    cpu.bsz = 1
    plain, packed, marked = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.txt"
    plain.write_bytes("grüß\ngott\n".encode())
    packed.write_bytes(gzip.compress("grüß\r\ngott\r\n".encode()))
    marked.write_bytes("\ufeffgrüß\r\ngott\n".encode())
    for path in (plain, str(packed), marked):
        it = Text(2, path)
        assert it.decode(it.token_ids) == "grüß\ngott\n"


def test_the_end_of_a_file_becomes_the_validation_file(tmp_path):
    path = tmp_path / "poem.old.txt"
    path.write_text(POEM + "über\n", encoding="utf-8")
    train, valid = Text.create_valid_file(path, 0.25)
    assert (train, valid) == (str(tmp_path / "poem.old_train.txt"), str(tmp_path / "poem.old_valid.txt"))
    first, second = (Path(file).read_bytes().decode() for file in (train, valid))
    assert first + second == POEM + "über\n"
    assert second == "jumps over the lazy dog, and then it sleeps.\nüber\n"  # 49, and no word is cut
    path.write_text("x" * 300)
    assert [len(Path(file).read_text()) for file in Text.create_valid_file(path)] == [270, 30]
    path.write_text("x " + "y" * 298)
    assert [len(Path(file).read_text()) for file in Text.create_valid_file(path)] == [270, 30]
    for wrong in (0, 1, 1.5, -0.1, True, "0.1", 0.001):
        with pytest.raises((TypeError, ValueError), match="valid_split, got"):
            Text.create_valid_file(path, wrong)


REFUSED = [
    (None, {}, FileNotFoundError, "expected a text file, got .*text.txt, which does not exist"),
    (b"", {}, ValueError, "expected a text, got the empty file .*text.txt"),
    ("\ufeff".encode(), {}, ValueError, "expected a text, got the empty file .*text.txt"),
    (b"caf\xe9 au lait", {}, ValueError, "text.txt in UTF-8, got byte 0xe9 at offset 3: .*text=.*encoding='latin-1'"),
    ("ab".encode("utf-16"), {}, ValueError, "text.txt in UTF-8, got byte 0xff at offset 0"),
    ("abä".encode()[:-1], {}, ValueError, "text.txt in UTF-8, got byte 0xc3 at offset 2: unexpected end of data"),
    (b" \n ", {"tokenizer": "words"}, ValueError, "expected tokens, got none in"),
    (
        b"a" * 8,
        {},
        ValueError,
        "at least 8 tokens with a target, for batch size 4 and 2 time steps, got 7. .* be.bsz = 3 or",
    ),
    (b"a", {}, ValueError, "got 0. Use fewer time steps"),
    (b"a" * 99, {"time_steps": 0}, ValueError, "expected an integer >= 1 for time_steps, got 0"),
    (b"a" * 99, {"time_steps": 2.0}, TypeError, "got 2.0"),
    (b"a" * 99, {"vocab": ["b"]}, IndexError, "expected tokens of the vocabulary of 1 tokens, got 'a'"),
    (b"a" * 99, {"text": "aaa"}, ValueError, "expected either path or text, got"),
    (b"a" * 99, {"path": None}, ValueError, "expected either path or text, got"),
    (b"a" * 99, {"tokenizer": "line"}, ValueError, "expected as tokenizer one of"),
]


@pytest.mark.parametrize(("data", "options", "error", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_an_invalid_text_is_refused_with_a_hint(cpu, tmp_path, data, options, error, words):
    cpu.bsz = 4
    path = tmp_path / "text.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(error, match=words):
        Text(**{"time_steps": 2, "path": path, **options})


def test_nine_tokens_are_enough_for_four_columns_of_two(cpu):
    cpu.bsz = 4
    ((x, t),) = Text(2, text="abcdefghi")
    assert ["".join(row) for row in decode(x, "abcdefghi", 4)] == ["ab", "cd", "ef", "gh"]
    assert ["".join(row) for row in decode(t, "abcdefghi", 4)] == ["bc", "de", "fg", "hi"]


def test_the_hint_for_another_encoding_works(cpu, tmp_path):
    cpu.bsz = 1
    path = tmp_path / "a text's folder" / "café.txt"
    path.parent.mkdir()
    path.write_text("du café au lait", encoding="latin-1")
    for read in (lambda: Text(2, path), lambda: text_file(path), lambda: TextNMT(2, [path, path])):
        with pytest.raises(ValueError, match=r"got byte 0xe9 at offset 6: .*text=") as error:
            read()
    said = re.search(r"text=(Path\(.*\)\.read_text\(encoding='latin-1'\))", str(error.value))
    assert "é" in Text(2, text=eval(said[1])).vocab


def test_a_truncated_gz_file_is_named(cpu, tmp_path):
    path = tmp_path / "text.txt.gz"
    for data in (gzip.compress(POEM.encode())[:-9], b"no gz"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"text.txt.gz: expected a complete .gz file"):
            Text(2, path)


def test_a_table_that_is_smaller_than_the_vocabulary_names_itself_and_the_token(be):
    be.bsz = 2
    it = Text(3, text=POEM, onehot_input=False)
    table = LookupTable(it.nclass - 1, 4, Gaussian(), name="embedding")
    net = Sequential([table])
    net.configure(it.shape)
    net.allocate()
    last = it.nclass - 1
    net.fprop(be.array([[last - 1] * 6], dtype="int32"))
    x = next(x for x, _ in it if (x.get() == last).any())
    with pytest.raises(IndexError, match=rf"embedding: expected token ids from 0 to {last - 1}, got {last}"):
        net.fprop(x)


def test_what_a_prompt_has_that_no_text_had_is_named(cpu):
    cpu.bsz = 1
    it = Text(2, text=POEM)
    with pytest.raises(IndexError, match=r"expected tokens of the vocabulary of \d+ tokens, got 'ß'.*'<unk>'"):
        it.encode("the großmutter")
    with_unk = Text(2, text=POEM, vocab=[*it.vocab, "<unk>"])
    assert with_unk.encode("aß").tolist() == [it.token_to_index["a"], len(it.vocab)]


def test_a_folder_is_no_text(cpu, tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder"):
        Text(2, tmp_path)


# --- sentences to be evaluated as a whole ----------------------------------------------------------------------------


def test_strings_are_cleaned_as_kim_does():
    assert clean_string("I'd say: it's GREAT (really!), isn't it?") == (
        "i 'd say it 's great ( really ! ) , is n't it ?"
    )
    assert clean_string("They've  2 cafés; we'll we're") == "they 've 2 caf s we 'll we 're"
    assert clean_string("'sting d'light") == "'sting d'light"


def test_sentences_are_padded_and_truncated_on_the_requested_side():
    sentences = [[1, 2, 3], [], [4], [5, 6, 7, 8]]
    assert pad_sentences(sentences).tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 0, 4], [5, 6, 7, 8]]
    assert pad_sentences(sentences, 2, pad_val=9).tolist() == [[2, 3], [9, 9], [9, 4], [7, 8]]
    right = pad_sentences(sentences, 3, np.float32, pad_from="right")
    assert (right.tolist(), right.dtype) == ([[1, 2, 3], [0, 0, 0], [4, 0, 0], [5, 6, 7]], np.float32)
    with pytest.raises(ValueError, match=r"expected one of 'left', 'right' for pad_from, got 'middle'"):
        pad_sentences(sentences, pad_from="middle")
    with pytest.raises(ValueError, match="expected an integer >= 1 for sentence_length, got 0"):
        pad_sentences([])


def test_reviews_are_indexed_padded_and_split():
    X, y = [[0, 1, 5], [2], [3, 4, 4, 9], [1, 1]], [0, 1, 1, 0]
    padded, labels = get_paddedXY(X, y, vocab_size=8, sentence_length=4, shuffle=False)
    assert padded.tolist() == [[1, 3, 4, 2], [0, 0, 1, 5], [6, 7, 7, 2], [0, 1, 4, 4]]
    assert labels.tolist() == [[0], [1], [1], [0]]
    bare, _ = get_paddedXY(X, y, 8, 4, oov=None, start=None, index_from=0, shuffle=False)
    assert bare.tolist() == [[0, 0, 1, 5], [0, 0, 0, 2], [0, 3, 4, 4], [0, 0, 1, 1]]
    mixed, mixed_labels = get_paddedXY(X, y, 8, 4)
    assert sorted(map(str, zip(mixed.tolist(), mixed_labels.tolist(), strict=True))) == sorted(
        map(str, zip(padded.tolist(), labels.tolist(), strict=True))
    )
    orders = {str(get_paddedXY(X, y, 8, 4, seed=seed)[0].tolist()) for seed in range(9)}
    assert len(orders) > 3
    (a, ya), (b, yb), nclass = pad_data(X, y, 0.25, vocab_size=8, sentence_length=4, shuffle=False)
    assert (np.concatenate([a, b]) == padded).all()
    assert (len(a), len(ya), len(b), len(yb), nclass) == (3, 3, 1, 1, 2)
    for wrong, words in [
        (lambda: get_paddedXY(X, y[:3]), "got 4 and 3"),
        (
            lambda: get_paddedXY([[1], [-1]], [0, 0], shuffle=False),
            "expected non-negative token ids, got -1 in sentence 1",
        ),
        (lambda: pad_data(X, y, 1.0), "> 0 and < 1 for test_split, got 1.0"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()
