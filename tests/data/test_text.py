"""Tests of Text: tokens, their order in minibatches, and errors for files that are not text."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.allocations import buffers

import neonlite as nl
from neonlite.data import (
    PTB,
    TOKENIZERS,
    Corpus,
    HutterPrize,
    Shakespeare,
    Text,
    TextNMT,
    clean_string,
    get_paddedXY,
    pad_data,
    pad_sentences,
    python_docs,
    text_file,
)
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedCost, LookupTable, Sequential
from neonlite.models import Model
from neonlite.optimizers import RMSProp
from neonlite.transforms import BitsPerCharacter, CrossEntropyMulti, Softmax

POEM = "the quick brown fox jumps over the lazy dog, and then it sleeps.\n" * 3


def flat(x):
    return [t for part in x for t in flat(part)] if isinstance(x, list | tuple) else [x]


def bits(pair):
    return [t.get().tobytes() for t in flat(pair)]


def spelled(x, vocab, N):
    """The tokens of a minibatch, one list a column of it; None where there is none."""
    a = x.get()
    if len(a) == 1 and x.info.dtype == "int32":
        tokens = [vocab[i] for i in a[0]]
    else:
        assert set(a.sum(axis=0)) <= {0, 1}
        assert set(np.unique(a)) <= {0, 1}
        tokens = [vocab[c.argmax()] if c.any() else None for c in a.T]
    return [tokens[n::N] for n in range(N)]


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
            for n, (here, after) in enumerate(zip(*(spelled(a, it.vocab, N) for a in (x, t)), strict=True)):
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
        here, before, after = (spelled(a, it.vocab, 2) for a in (x, previous, t))
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
        assert ["".join(row) for row in spelled(x, it.vocab, N)] == [POEM[n * size :][:5] for n in range(N)]


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
    assert ["".join(row) for row in spelled(x, "abcdefghi", 4)] == ["ab", "cd", "ef", "gh"]
    assert ["".join(row) for row in spelled(t, "abcdefghi", 4)] == ["bc", "de", "fg", "hi"]


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


def test_a_corpus_with_a_validation_text_that_is_too_small_is_named(cpu, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(POEM)
    corpus = text_file(path, 8, 0.1)
    cpu.bsz = 4
    assert corpus.train_iter.nbatches > 0
    with pytest.raises(
        ValueError, match=r"text.valid: expected at least 32 tokens with a target, for batch size 4 .* got 19"
    ):
        corpus.iterators(4)
    path.write_text("a")
    with pytest.raises(
        ValueError,
        match=r"text.txt: expected a fraction that splits 1 characters .* for valid_split, got 0.1",
    ):
        text_file(path)


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


# --- texts with a split --------------------------------------------------------------------------------------------


def test_the_python_documentation_is_split_without_repeated_paragraphs(cpu):
    corpus = python_docs(16)
    train, valid = corpus.texts["train"], corpus.texts["valid"]
    assert len(train) + len(valid) > 200_000
    assert 0 <= len(valid) - 0.1 * len(train + valid) < 100
    assert train[-1].isspace()
    paragraphs = [" ".join(paragraph.split()) for paragraph in (train + valid).split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert corpus.vocab == sorted(set(train + valid))
    train_set, valid_set = corpus.iterators(batch_size=20)
    assert cpu.bsz == 20
    assert train_set.vocab == valid_set.vocab == corpus.vocab
    assert train_set.shape == (corpus.nclass, 16)
    assert corpus.train_iter is train_set
    assert corpus.gen_iterators() == {"train": train_set, "valid": valid_set}
    assert re.fullmatch(r"python_docs: train [\d,]+, valid [\d,]+ characters, \d+ tokens", repr(corpus))
    with pytest.raises(ValueError, match="python_docs: expected one of 'train', 'valid' for part, got 'test'"):
        print(corpus.test_iter)
    nl.cleanup_backend()
    nl.gen_backend("cpu", batch_size=4)
    assert corpus.train_iter is not train_set
    assert corpus.train_iter.be.bsz == 4


def test_a_python_without_its_documentation_gives_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match=r"python_docs: expected the module pydoc_data, .*text_file\(path\)"):
        python_docs()


def test_a_user_file_is_split(cpu, tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text(POEM)
    first, second = POEM[:96], POEM[96:]  # where a word begins
    assert second.startswith("the lazy")
    corpus = text_file(path, 4, 0.5, tokenizer="words", onehot_input=False)
    assert corpus.texts == {"train": first, "valid": second}
    assert corpus.vocab == sorted(set(Text.get_tokens(POEM, "words")))
    train, _ = corpus.iterators(2)
    assert train.shape == (1, 4)
    assert train.decode(train.token_ids[:4]) == "the quick brown fox"
    assert corpus.name == "poem"
    assert Corpus("mine", {"train": "aab", "valid": "b"}, 1, vocab="bac").vocab == ["b", "a", "c"]


def test_known_texts_are_read_from_their_folders(cpu, tmp_path, monkeypatch):
    cpu.bsz = 2
    for name, part in {"ptb.train.txt": "a b <unk>\nc\n", "ptb.valid.txt": "b c\n a\n"}.items():
        (tmp_path / name).write_text(part * 9)
    ptb = PTB(3, tmp_path, tokenizer="newline_tokenizer", onehot_input=False)
    assert ptb.vocab == ["<eos>", "<unk>", "a", "b", "c"]
    assert ptb.train_iter.decode(ptb.train_iter.token_ids[:6]) == "a b <unk> <eos> c <eos>"
    assert ptb.valid_iter.shape == (1, 3)
    assert list(ptb.texts) == ["train", "valid"]
    (tmp_path / "ptb.test.txt.gz").write_bytes(gzip.compress(b"a a\n" * 9))
    assert PTB(3, tmp_path).texts["test"] == "a a\n" * 9
    assert PTB(3, tmp_path).vocab == list("\n <>abcknu")
    assert PTB(3, tmp_path, get_prev_target=True, reverse_target=True).train_iter.shape == [(10, 3)] * 2

    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text(POEM)
    monkeypatch.setenv("NEONLITE_DATA", str(tmp_path))
    assert Shakespeare(4).texts == {"train": POEM[:-20], "valid": POEM[-20:]}
    assert Shakespeare(4, tmp_path / "shakespeare" / "input.txt").train_iter.shape == (30, 4)
    (tmp_path / "enwik8").write_text(POEM)
    parts = HutterPrize(4, tmp_path).texts
    assert [len(part) for part in parts.values()] == [175, 9, 11]
    assert "".join(parts.values()) == POEM
    with pytest.raises(FileNotFoundError, match=r"ptb: expected ptb.train.txt, .*none of these locations"):
        PTB(3)
    with pytest.raises(FileNotFoundError, match=r"has no ptb.train.txt, ptb.valid.txt"):
        PTB(3, tmp_path / "shakespeare")


@pytest.mark.parametrize("reverse", [False, True])
def test_all_minibatches_of_a_text_are_an_array(cpu, reverse):
    cpu.bsz = 2
    it = Text(3, text="she sells sea shells", onehot_input=False, reverse_target=reverse)
    assert (it.X.shape, it.y.shape) == ((2, 3, 3), (2, 3, 3))
    assert (it.nout, it.seq_length) == (len(it.vocab), 3)
    for k, (x, t) in enumerate(it):
        np.testing.assert_array_equal(x.get().reshape(3, 2).T, it.X[:, k])
        np.testing.assert_array_equal(t.get().argmax(axis=0).reshape(3, 2).T, it.y[:, k])


# --- translations --------------------------------------------------------------------------------------------------

ENGLISH = ["the cat", "a dog barks .", "far too long a sentence for this", "", "the dog", "hm", "cat , dog"]
FRENCH = ["le chat", "un chien aboie .", "trop long", "vide", "le chien", "une phrase de cinq mots", "chat , chien oui"]
FIT = [0, 1, 4, 6]  # five time steps, one of them for the end


@pytest.fixture
def pairs(tmp_path):
    paths = [tmp_path / "un2000.en", tmp_path / "un2000.fr"]
    for path, lines in zip(paths, (ENGLISH, FRENCH), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return paths


@pytest.mark.parametrize("onehot", [True, False])
@pytest.mark.parametrize("partial_last", [True, False])
def test_translations_have_previous_targets_and_a_mask(be, pairs, onehot, partial_last):
    be.bsz = 3
    it = TextNMT(5, pairs, onehot_input=onehot, get_prev_target=True, partial_last=partial_last)
    assert (it.ndata, it.num_skipped, it.nbatches) == (4, 3, 2)
    vocabs = [
        ["<pad>", "<eos>", "<unk>", *sorted({word for i in FIT for word in side[i].split()})]
        for side in (ENGLISH, FRENCH)
    ]
    assert it.vocabs == vocabs
    assert it.nclass == it.nout == len(vocabs[1])
    assert [it.s_vocab, it.t_vocab] == vocabs
    assert it.s_index_to_token[it.s_token_to_index["dog"]] == "dog"
    assert it.t_index_to_token[it.t_token_to_index["chien"]] == "chien"
    assert it.seq_length == 5
    assert it.shape == ([(len(vocab), 5) for vocab in vocabs] if onehot else [(1, 5)] * 2)
    nothing = None if onehot else "<pad>"
    seen = 0
    for (x, previous), (t, mask) in it:
        N = mask.shape[1] // 5
        assert (t.shape, mask.shape) == ((it.nclass, 5 * N), (1, 5 * N))
        for n, (source, before, target) in enumerate(
            zip(spelled(x, vocabs[0], N), spelled(previous, vocabs[1], N), spelled(t, vocabs[1], N), strict=True)
        ):
            i = FIT[(seen + n) % 4]
            words, said = ENGLISH[i].split(), [*FRENCH[i].split(), "<eos>"]
            assert source == [nothing] * (5 - len(words)) + words
            assert target == said + [None] * (5 - len(said))
            assert before == [nothing, *said, *[nothing] * 5][:5]
            assert mask.get()[0, n::N].tolist() == [1] * len(said) + [0] * (5 - len(said))
        seen += N
    assert seen == (4 if partial_last else 6)


def test_a_translation_without_previous_targets_has_one_input(cpu, pairs):
    cpu.bsz = 2
    it = TextNMT(5, pairs)
    assert it.shape == (1, 5)
    x, (_, mask) = next(iter(it))
    assert (x.shape, x.info.dtype, mask.shape) == ((1, 10), "int32", (1, 10))


def test_the_files_of_a_translation_are_found_in_a_folder(cpu, pairs, tmp_path):
    cpu.bsz = 2
    assert TextNMT(5, tmp_path).vocabs == TextNMT(5, pairs).vocabs
    pairs[0].rename(tmp_path / "toy.valid.xx")
    pairs[1].rename(tmp_path / "toy.valid.yy")
    valid = TextNMT(5, tmp_path, dataset="toy", split="valid", languages=("xx", "yy"), subset_pct=60)
    assert (valid.ndata, valid.num_skipped) == (2, 2)
    with pytest.raises(FileNotFoundError, match=r"un2000.en, un2000.fr"):
        TextNMT(5, tmp_path)


def test_a_vocabulary_of_translations_is_reused_and_decodes(cpu, pairs, tmp_path):
    cpu.bsz = 1
    it = TextNMT(5, pairs)
    other = [tmp_path / "a", tmp_path / "b"]
    other[0].write_text("the bird\n")
    other[1].write_text("le oiseau")
    valid = TextNMT(4, other, vocab=it.vocabs)
    assert valid.vocabs == it.vocabs
    ((x, (t, _)),) = valid
    assert spelled(x, it.vocabs[0], 1) == [["<pad>", "<pad>", "the", "<unk>"]]
    assert spelled(t, it.vocab, 1) == [["le", "<unk>", "<eos>", None]]
    numbers = [it.vocab.index(word) for word in ("<pad>", "le", "chien", "<eos>", "chat")]
    assert valid.decode(numbers) == "le chien"
    with pytest.raises(IndexError, match="expected token ids from 0 to"):
        valid.decode([99])


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "get_prev_target": True, "onehot_input": True}], ids=str)
def test_translations_resume_at_every_minibatch_bit_identically(pairs, options):
    nl.gen_backend("cpu", rng_seed=3, batch_size=3)
    it = TextNMT(5, pairs, **options)
    whole, states = [], [it.get_state()]
    for _ in range(5):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    assert len({str(x) for x in whole}) > 2
    for k, state in enumerate(states):
        other = TextNMT(5, pairs, **options)
        other.set_state(json.loads(json.dumps(state)))
        found = [bits(pair) for _ in range(6) for pair in other]
        assert found[: len(whole) - k] == whole[k:]


def test_a_minibatch_of_translations_allocates_nothing_of_size(cpu, tmp_path):
    cpu.bsz = 64
    generator = random.Random(0)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("\n".join(" ".join(generator.choices("abcdefgh", k=9)) for _ in range(256)))
    it = TextNMT(10, paths, onehot_input=True, get_prev_target=True, shuffle=True)
    list(it)
    loop = iter(it)
    next(loop)
    assert buffers(lambda: next(loop)) == []


def test_invalid_translations_are_refused(cpu, pairs, tmp_path):
    cpu.bsz = 2
    wrong = [
        ({"time_steps": 0}, "expected an integer >= 1 for time_steps"),
        ({"time_steps": 1}, "expected pairs that fit 1 time steps, .* got none of 7"),
        ({"subset_pct": 0}, "> 0 and <= 100 for subset_pct, got 0"),
        ({"path": pairs[:1]}, "two files, got 1"),
        ({"vocab": [["a"], ["b"]]}, "expected two vocabularies that begin with <pad>, <eos>, <unk>"),
        ({"subset_pct": 15}, "batch size of at most 1, the number of rows, got 2"),
    ]
    for options, words in wrong:
        with pytest.raises(ValueError, match=words):
            TextNMT(**{"time_steps": 5, "path": pairs, **options})
    pairs[1].write_text("le chat\n")
    with pytest.raises(ValueError, match=r"un2000.en has 7, .*un2000.fr has 1"):
        TextNMT(5, pairs)
    pairs[1].write_bytes(b"le ch\xe2t\n")
    with pytest.raises(ValueError, match=r"expected .*un2000.fr in UTF-8, got byte 0xe2 at offset 5"):
        TextNMT(5, pairs)
    pairs[1].write_bytes(b"")
    with pytest.raises(ValueError, match=r"got the empty file .*un2000.fr"):
        TextNMT(5, pairs)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TextNMT(5, [pairs[0], tmp_path / "nowhere"])


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
