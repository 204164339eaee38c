"""Sampling from trained language models, in Python and on the command line."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from neonlite import cleanup_backend, gen_backend
from neonlite.cli import main
from neonlite.data import Text
from neonlite.initializers import Gaussian, IdentityInit
from neonlite.layers import LSTM, Affine, BiLSTM, LookupTable, Recurrent, RecurrentLast
from neonlite.models import Model, zoo
from neonlite.models.generation import draw_token, predict_stepwise, predict_windowed, sample
from neonlite.optimizers import Adam, PolySchedule
from neonlite.transforms import BitsPerCharacter, CrossEntropyMulti, Logistic, Softmax, Tanh

G = Gaussian(scale=0.3)
VERSE = "tick tack tock, " * 40


def trained(name: str, epochs: int = 12) -> tuple[Model, Text]:
    gen_backend("cpu", rng_seed=1, batch_size=8)
    text = Text(9, text=VERSE, onehot_input=False)  # pieces begin anywhere in the verse
    model = Model(zoo.LANGUAGE_MODELS[name](len(text.vocab), width=32))
    rate, falling = 0.01 if name == "transformer" else 0.02, PolySchedule(epochs + 1, power=1)  # some train on
    model.fit(text, CrossEntropyMulti(), Adam(learning_rate=rate, schedule=falling), epochs)
    return model, text


@pytest.mark.parametrize("name", zoo.LANGUAGE_MODELS)
def test_a_trained_network_generates_its_training_text(name):
    model, text = trained(name, 30 if name == "transformer" else 12)
    tokens = sample(model, text.encode("tick tac").ravel().tolist(), 24, temperature=0)
    assert "tick tac" + text.decode(list(tokens)) == VERSE[:32]


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_stepwise_and_windowed_predictions_agree(name):
    model, text = trained(name, 1)
    tokens = text.encode("tick ta").ravel().tolist()
    predictions = []
    for predict in (predict_windowed, predict_stepwise):
        predictor = predict(model.layers)
        next(predictor)
        for layer in model.layers.leaves():
            layer.set_state({})
        predictions.append(predictor.send(tokens))
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-5)


@pytest.mark.parametrize("name", zoo.LANGUAGE_MODELS)
def test_a_loaded_network_generates_the_same_tokens(name, tmp_path):
    model, _ = trained(name, 1)
    model.save_params(tmp_path / "verse.neon")
    generated = list(sample(model, [1, 2], 12))
    cleanup_backend()
    gen_backend("cpu")
    assert list(sample(Model(tmp_path / "verse.neon"), [1, 2], 12)) == generated


@pytest.mark.parametrize("kind", [LSTM, Recurrent])
def test_one_hot_inputs_and_token_ids_generate_the_same_tokens(kind):
    gen_backend("cpu", rng_seed=1, batch_size=1)
    options = {"gate_activation": Logistic()} if kind is LSTM else {}
    generated = []
    for shape in ((1, 6), (5, 6)):
        layers = [kind(8, G, activation=Tanh(), **options), Affine(5, G, activation=Softmax())]
        model = Model([LookupTable(5, 5, IdentityInit()), *layers] if shape[0] == 1 else layers)
        model.initialize(shape)
        for n, layer in enumerate(model.layers.layers_to_optimize[-2:]):
            layer.W[:] = np.random.default_rng(n).normal(size=layer.W.shape)
        generated.append(list(sample(model, [1, 2], 30)))
        assert model.layers.in_shape == shape
    assert generated[0] == generated[1]
    assert len(set(generated[0])) > 1


@pytest.mark.parametrize(
    ("layers", "shape", "words"),
    [
        (
            [LSTM(8, G, activation=Tanh(), gate_activation=Logistic())],
            (5, 6),
            r"got inputs \(5, 6\) and outputs \(8, 6\)",
        ),
        ([LookupTable(5, 8, G), Affine(5, G)], 4, r"got inputs 4 and outputs"),
        (
            [LSTM(8, G, activation=Tanh(), gate_activation=Logistic()), RecurrentLast(), Affine(5, G)],
            (5, 6),
            "outputs 5",
        ),
        (
            [BiLSTM(4, G, activation=Tanh(), gate_activation=Logistic()), Affine(5, G)],
            (5, 6),
            "got the bidirectional BiLSTM",
        ),
    ],
)
def test_a_network_that_is_no_language_model_is_refused(layers, shape, words):
    gen_backend("cpu", batch_size=1)
    model = Model(layers)
    model.initialize(shape)
    with pytest.raises(ValueError, match=words):
        next(sample(model, [1], 3))


def test_tokens_are_sampled_with_the_probabilities_of_the_temperature():
    p, n = np.array([0.5, 0.3, 0.2, 0.0]), 4000
    rng = np.random.default_rng(0)
    for temperature in (1.0, 0.5, 2.0):
        expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
        frequencies = np.bincount([draw_token(p, temperature, rng) for _ in range(n)], minlength=4) / n
        assert abs(frequencies - expected).max() < 0.03
        assert frequencies[3] == 0
    assert {draw_token(p, 0, rng) for _ in range(20)} == {0}


@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_sampling_and_training_use_separate_buffers(name):
    model, _ = trained(name, 1)
    before, size = {x: dict(vars(x)) for x in model.layers.leaves()}, model.be.bsz
    expected, tokens = list(sample(model, [1, 2], 12, seed=3)), sample(model, [1, 2], 12, seed=3)
    for token in expected:
        assert next(tokens) == token
        assert model.be.bsz == size
        for layer, attributes in before.items():
            assert all(vars(layer)[key] is x for key, x in attributes.items())


def test_a_seed_determines_the_sampled_tokens():
    model, _ = trained("gru", 1)
    first, again, other = (list(islice(sample(model, [1], 40, seed=seed), 40)) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize(
    ("prompt", "temperature", "words"),
    [
        ([], 1, "at least one token id"),
        ([99], 1, "from 0 to"),
        ("abc", 1, "sample: prompt: expected tokens of the vocabulary of 8 tokens, got 'b'"),
        ("", 1, "at least one token id"),
        ([0.5], 1, "an integer from 0 to"),
        (3, 1, "a prompt, a text or token ids, got 3"),
        ([1], -1, "finite number >= 0 for temperature"),
    ],
)
def test_an_invalid_prompt_or_temperature_is_refused(prompt, temperature, words):
    model, _ = trained("rnn", 1)
    with pytest.raises((TypeError, ValueError, IndexError), match=words):
        sample(model, prompt, 1, temperature)
    for length, seed in (("2", 0), (-1, 0), (1, "3")):
        with pytest.raises((TypeError, ValueError), match="sample: expected an integer >= 0 for"):
            sample(model, [1], length, seed=seed)


@pytest.mark.parametrize("tokenizer", [None, "words"])
def test_a_prompt_may_be_a_text_for_a_model_trained_on_one(tokenizer, tmp_path):
    gen_backend("cpu", rng_seed=1, batch_size=4)
    text = Text(4, text="one two three . " * 40, tokenizer=tokenizer, onehot_input=False)
    model = Model(zoo.lstm(len(text.vocab), width=8))
    model.fit(text, CrossEntropyMulti(), Adam(learning_rate=0.02), 1)
    model.save_params(tmp_path / "m")
    ids = [text.vocab.index(token) for token in (["one", "two"] if tokenizer else "one two")]
    expected = [text.vocab[i] for i in sample(model, ids, 6, seed=3)]
    assert (
        list(sample(model, "one two", 6, seed=3))
        == list(sample(Model(tmp_path / "m"), "one two", 6, seed=3))
        == expected
    )


def test_a_text_for_a_model_without_a_vocabulary_is_refused():
    model, text = trained("rnn", 1)
    model.metadata = {}
    with pytest.raises(TypeError, match=r"not trained on Text, got 'tick'\. Encode the text, or set model.metadata"):
        sample(model, "tick", 3)
    model.metadata = {"vocab": text.vocab[1:]}  # of another network
    with pytest.raises(TypeError, match=f"to a list of {len(text.vocab)} tokens"):
        sample(model, "tick", 3)


# --- on the command line ---------------------------------------------------------------------------------------------


def output_of(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    out: str = capsys.readouterr().out
    return out


@pytest.mark.long
def test_a_text_model_is_trained_saved_evaluated_and_resumed(capsys, tmp_path):
    file, model = tmp_path / "verse.txt", str(tmp_path / "verse.neon")
    file.write_text(VERSE * 6)
    few = ("-w", str(file), "-b", "cpu")
    text = output_of(
        capsys, "train", "text", "--model", "gru", "-e", "2", "-z", "4", "-s", model, "--no-progress-bar", *few
    )
    assert "bits per character" in text
    text = output_of(capsys, "train", "text", "--resume", model, "-e", "6", "--no-progress-bar", *few)
    bits = text.split(" bits per character")[0].split()[-1]
    assert float(bits) < 0.5
    assert output_of(capsys, "eval", model, *few).startswith(f"{bits} bits")
    assert "Sequential" in output_of(capsys, "draw", model, "-b", "cpu")
    for forgot in (["eval", model], ["train", "text", "--resume", model]):  # it is not read as another text
        assert main([*forgot, "-b", "cpu"]) == 1
        assert "the text that the network was trained on, verse.txt. Pass it by -w PATH" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text("TICK TACK " * 90)
    assert main(["eval", model, "-w", str(tmp_path / "other.txt"), "-b", "cpu"]) == 1
    assert "expected tokens of the vocabulary" in capsys.readouterr().err
    assert (
        output_of(capsys, "sample", model, "--prompt", "tick", "--length", "12", "--temperature", "0")
        == VERSE[:16] + "\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train text --model mlp", "a network for text, one of rnn, lstm, gru, transformer, got mlp"),
        (
            "train digits --model lstm",
            "expected a network for digits, one of mlp, lenet, ",
        ),
        ("train text -w /nowhere", "/nowhere"),
        ("sample /nowhere", "/nowhere: there is no such file"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, words):
    assert main([*arguments.split(), "-b", "cpu"]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("neonlite: ")


def test_unknown_characters_and_checkpoints_without_a_vocabulary_are_refused(capsys, tmp_path):
    model, text = trained("gru", 1)
    model.metadata = {}
    model.save_params(tmp_path / "no")
    model.metadata = {"vocab": text.vocab}
    model.save_params(tmp_path / "yes")
    assert main(["sample", str(tmp_path / "no"), "-b", "cpu"]) == 1
    assert "got none. Use one of neonlite train text --save" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "yes"), "--prompt", "tick Tock", "-b", "cpu"]) == 1
    assert "expected characters of the vocabulary, got 'T'" in capsys.readouterr().err


def test_the_language_models_of_the_zoo_are_better_than_chance():
    for name in zoo.LANGUAGE_MODELS:
        model, text = trained(name, 2)
        assert model.eval(text, BitsPerCharacter())[0] < np.log2(len(text.vocab))


@pytest.mark.parametrize("name", zoo.LANGUAGE_MODELS)
def test_sampling_does_not_change_the_training(name):
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


def test_a_text_of_another_number_of_steps_is_refused():
    model, _ = trained("lstm", 1)
    for steps in (3, 18, 5):
        other = Text(steps, text=VERSE, onehot_input=False)
        message = rf"expected data with 9 time steps, got {steps}\. Call model.set_seq_len\({steps}\) first"
        with pytest.raises(ValueError, match=message):
            model.eval(other, BitsPerCharacter())
        with pytest.raises(ValueError, match=message):
            model.fit(other, CrossEntropyMulti(), model.optimizer, 2)
    model.set_seq_len(3)
    assert model.eval(Text(3, text=VERSE, onehot_input=False), BitsPerCharacter())[0] > 0


def test_a_state_of_another_batch_size_is_dropped():
    model, _ = trained("lstm", 1)
    model.be.bsz = 4
    model.eval(Text(9, text=VERSE, onehot_input=False), BitsPerCharacter())
    model.set_batch_size(4)
    model.fit(Text(9, text=VERSE, onehot_input=False), CrossEntropyMulti(), model.optimizer, 2)
    assert model.epoch_index == 2


def test_a_small_text_is_read_with_a_smaller_batch_size(capsys, tmp_path):
    file, model = tmp_path / "small.txt", str(tmp_path / "small.neon")
    file.write_text("no newline here, " * 90)  # 153 characters for validation: two slices of 64
    few = ("-w", str(file), "-b", "cpu")
    text = output_of(capsys, "train", "text", "--model", "gru", "-e", "1", "-s", model, "--no-progress-bar", *few)
    bits = text.split(" bits per character on 128")[0].split()[-1]
    assert output_of(capsys, "eval", model, *few) == f"{bits} bits per character on 128 characters\n"
    assert output_of(capsys, "sample", model, "--length", "3", "--temperature", "0.0", "-b", "cpu").strip("\n")
    for wrong in (["--temperature", "-1"], ["--seed", "-1"], ["--temperature", "nan"]):
        with pytest.raises(SystemExit):
            main(["sample", model, *wrong, "-b", "cpu"])
        assert "expected a non-negative " in capsys.readouterr().err
