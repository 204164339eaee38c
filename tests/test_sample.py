"""A network writes what it learned to write."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.cli import main
from neonlite.data import Text
from neonlite.initializers import Gaussian, IdentityInit
from neonlite.layers import LSTM, Affine, BiLSTM, LookupTable, Recurrent, RecurrentLast
from neonlite.models import Model, zoo
from neonlite.models.sample import drawn, one_by_one, sample, window
from neonlite.optimizers import Adam
from neonlite.transforms import BitsPerCharacter, CrossEntropyMulti, Logistic, Softmax, Tanh

G = Gaussian(scale=0.3)
VERSE = "tick tack tock, " * 40


def trained(name: str, epochs: int = 12) -> tuple[Model, Text]:
    gen_backend("cpu", rng_seed=1, batch_size=8)
    text = Text(9, text=VERSE, onehot_input=False)  # pieces begin anywhere in the verse
    model = Model(zoo.READERS[name](len(text.vocab), width=32))
    model.fit(text, CrossEntropyMulti(), Adam(learning_rate=0.02), epochs)
    return model, text


@pytest.mark.parametrize("name", zoo.READERS)
def test_a_network_that_learned_a_verse_says_it(name):
    model, text = trained(name, 40 if name == "transformer" else 12)
    said = sample(model, text.encode("tick tac").ravel().tolist(), 24, temperature=0)
    assert "tick tac" + text.decode(list(said)) == VERSE[:32]


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_word_by_word_a_network_tells_what_it_tells_of_all_words_at_once(name):
    model, text = trained(name, 1)
    words = text.encode("tick ta").ravel().tolist()
    ways = []
    for way in (window, one_by_one):
        tell = way(model)
        next(tell)
        for layer in model.layers.leaves():
            layer.carry({})
        ways.append(tell.send(words))
    np.testing.assert_allclose(ways[0], ways[1], rtol=1e-5)


@pytest.mark.parametrize("name", zoo.READERS)
def test_a_network_writes_the_same_from_its_file(name, tmp_path):
    model, _ = trained(name, 1)
    model.save_params(tmp_path / "verse.neon")
    wrote = list(sample(model, [1, 2], 12))
    gen_backend("cpu", batch_size=1)
    assert list(sample(Model(tmp_path / "verse.neon"), [1, 2], 12)) == wrote


@pytest.mark.parametrize("kind", [LSTM, Recurrent])
def test_a_network_that_reads_one_hot_columns_writes_what_it_writes_of_numbers(kind):
    gen_backend("cpu", rng_seed=1, batch_size=1)
    options = {"gate_activation": Logistic()} if kind is LSTM else {}
    wrote = []
    for shape in ((1, 6), (5, 6)):
        layers = [kind(8, G, activation=Tanh(), **options), Affine(5, G, activation=Softmax())]
        model = Model([LookupTable(5, 5, IdentityInit()), *layers] if shape[0] == 1 else layers)
        model.initialize(shape)
        for n, layer in enumerate(model.layers.layers_to_optimize[-2:]):
            layer.W[:] = np.random.default_rng(n).normal(size=layer.W.shape)
        wrote.append(list(sample(model, [1, 2], 30)))
        assert model.layers.in_shape == shape
    assert wrote[0] == wrote[1]
    assert len(set(wrote[0])) > 1


@pytest.mark.parametrize(
    ("layers", "shape", "words"),
    [
        ([LSTM(8, G, activation=Tanh(), gate_activation=Logistic())], (5, 6), r"reads \(5, 6\) and tells \(8, 6\)"),
        ([LookupTable(5, 8, G), Affine(5, G)], 4, r"reads 4 and tells"),
        ([LSTM(8, G, activation=Tanh(), gate_activation=Logistic()), RecurrentLast(), Affine(5, G)], (5, 6), "tells 5"),
        ([BiLSTM(4, G, activation=Tanh(), gate_activation=Logistic()), Affine(5, G)], (5, 6), "BiLSTM reads both ways"),
    ],
)
def test_a_network_that_cannot_write_says_why(layers, shape, words):
    gen_backend("cpu", batch_size=1)
    model = Model(layers)
    model.initialize(shape)
    with pytest.raises(ValueError, match=words):
        next(sample(model, [1], 3))


def test_words_are_drawn_as_probable_as_the_temperature_says():
    p, n = np.array([0.5, 0.3, 0.2, 0.0]), 4000
    rng = np.random.default_rng(0)
    for temperature in (1.0, 0.5, 2.0):
        wanted = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
        shares = np.bincount([drawn(p, temperature, rng) for _ in range(n)], minlength=4) / n
        assert abs(shares - wanted).max() < 0.03
        assert shares[3] == 0
    assert {drawn(p, 0, rng) for _ in range(20)} == {0}


def test_a_seed_says_the_same_again():
    model, _ = trained("gru", 1)
    first, again, other = (list(islice(sample(model, [1], 40, seed=seed), 40)) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize(
    ("prompt", "temperature", "words"),
    [([], 1, "one word or more"), ([99], 1, "from 0 below"), ([1], -1, "temperature is 0 or more")],
)
def test_what_is_no_beginning_is_told(prompt, temperature, words):
    model, _ = trained("rnn", 1)
    with pytest.raises(ValueError, match=words):
        next(sample(model, prompt, 1, temperature))


# --- on the command line ---------------------------------------------------------------------------------------------


def said(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    out: str = capsys.readouterr().out
    return out


def test_a_text_is_learned_kept_judged_and_gone_on_with(capsys, tmp_path):
    file, model = tmp_path / "verse.txt", str(tmp_path / "verse.neon")
    file.write_text(VERSE * 6)
    few = ("-w", str(file), "-b", "cpu")
    text = said(capsys, "train", "text", "--model", "gru", "-e", "2", "-z", "4", "-s", model, "--no-progress-bar", *few)
    assert "bits per character" in text
    text = said(capsys, "train", "text", "--resume", model, "-e", "6", "--no-progress-bar", *few)
    bits = text.split(" bits per character")[0].split()[-1]
    assert float(bits) < 0.5
    assert said(capsys, "eval", model, *few).startswith(f"{bits} bits")
    assert "Sequential" in said(capsys, "draw", model, "-b", "cpu")
    for forgot in (["eval", model], ["train", "text", "--resume", model]):  # it is not read as another text
        assert main([*forgot, "-b", "cpu"]) == 1
        assert "it learned from verse.txt: say where the text lies that this is for: -w PATH" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text("TICK TACK " * 90)
    assert main(["eval", model, "-w", str(tmp_path / "other.txt"), "-b", "cpu"]) == 1
    assert "is not in the vocabulary" in capsys.readouterr().err
    assert (
        said(capsys, "sample", model, "--prompt", "tick", "--length", "12", "--temperature", "0") == VERSE[:16] + "\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train text --model mlp", "mlp is no network for text; there are rnn, lstm, gru, transformer"),
        ("train digits --model lstm", "lstm is no network for digits"),
        ("train text -w /nowhere", "/nowhere"),
        ("sample /nowhere", "/nowhere: there is no such file"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, words):
    assert main([*arguments.split(), "-b", "cpu"]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("neonlite: ")


def test_letters_that_were_never_read_and_files_without_a_vocabulary_are_told(capsys, tmp_path):
    model, text = trained("gru", 1)
    model.save_params(tmp_path / "no")
    model.notes = {"vocab": text.vocab}
    model.save_params(tmp_path / "yes")
    assert main(["sample", str(tmp_path / "no"), "-b", "cpu"]) == 1
    assert "it has no vocabulary: neonlite train text --save" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "yes"), "--prompt", "tick Tock", "-b", "cpu"]) == 1
    assert "letters that the network never read: 'T'" in capsys.readouterr().err


def test_the_zoo_reads_better_than_by_chance():
    for name in zoo.READERS:
        model, text = trained(name, 2)
        assert model.eval(text, BitsPerCharacter())[0] < np.log2(len(text.vocab))


@pytest.mark.parametrize("name", zoo.READERS)
def test_who_wrote_goes_on_learning_as_if_it_had_not(name):
    weights = []
    for length in (0, 5):
        model, text = trained(name, 1)
        before = model.eval(text, BitsPerCharacter())
        list(islice(sample(model, [1, 2], 9), length))  # 5 of 9: it stops early
        assert model.be.bsz == 8
        np.testing.assert_array_equal(model.eval(text, BitsPerCharacter()), before)
        model.fit(text, CrossEntropyMulti(), model.optimizer, 2)
        weights.append([p.get() for layer in model.layers_to_optimize for p in layer.parameters])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_text_in_other_steps_is_not_read_as_if_it_had_the_same():
    model, _ = trained("lstm", 1)
    for steps in (3, 18, 5):
        other = Text(steps, text=VERSE, onehot_input=False)
        told = rf"the data has {steps} time steps, the network is ready for 9: model.set_seq_len\({steps}\)"
        with pytest.raises(ValueError, match=told):
            model.eval(other, BitsPerCharacter())
        with pytest.raises(ValueError, match=told):
            model.fit(other, CrossEntropyMulti(), model.optimizer, 2)
    model.set_seq_len(3)
    assert model.eval(Text(3, text=VERSE, onehot_input=False), BitsPerCharacter())[0] > 0


def test_a_state_of_another_batch_size_is_left_behind():
    model, _ = trained("lstm", 1)
    model.be.bsz = 4
    model.eval(Text(9, text=VERSE, onehot_input=False), BitsPerCharacter())
    model.set_batch_size(4)
    model.fit(Text(9, text=VERSE, onehot_input=False), CrossEntropyMulti(), model.optimizer, 2)
    assert model.epoch_index == 2


def test_a_small_text_is_read_in_smaller_minibatches(capsys, tmp_path):
    file, model = tmp_path / "small.txt", str(tmp_path / "small.neon")
    file.write_text("no newline here, " * 90)  # 153 characters to judge by: two pieces of 64
    few = ("-w", str(file), "-b", "cpu")
    text = said(capsys, "train", "text", "--model", "gru", "-e", "1", "-s", model, "--no-progress-bar", *few)
    bits = text.split(" bits per character of 128")[0].split()[-1]
    assert said(capsys, "eval", model, *few) == f"{bits} bits per character of 128\n"
    assert said(capsys, "sample", model, "--length", "3", "--temperature", "0.0", "-b", "cpu").strip("\n")
    for wrong in (["--temperature", "-1"], ["--seed", "-1"], ["--temperature", "nan"]):
        with pytest.raises(SystemExit):
            main(["sample", model, *wrong, "-b", "cpu"])
        assert "number from 0" in capsys.readouterr().err
