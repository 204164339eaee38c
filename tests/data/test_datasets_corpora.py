"""Text corpora with a split, and minibatches of translations (neonlite/data/text.py)."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.token_minibatches import bits, decode

import neonlite as nl
from neonlite.data import PTB, Corpus, HutterPrize, Shakespeare, Text, TextNMT, python_docs, text_file

POEM = "the quick brown fox jumps over the lazy dog, and then it sleeps.\n" * 3

# --- files ---------------------------------------------------------------------------------------------------------


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
            zip(decode(x, vocabs[0], N), decode(previous, vocabs[1], N), decode(t, vocabs[1], N), strict=True)
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
    assert decode(x, it.vocabs[0], 1) == [["<pad>", "<pad>", "the", "<unk>"]]
    assert decode(t, it.vocab, 1) == [["le", "<unk>", "<eos>", None]]
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
