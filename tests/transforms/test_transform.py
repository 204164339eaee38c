"""Base classes of activations, costs and metrics: errors, descriptions, and custom subclasses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.transform_cases import close, made, sig

import neonlite.transforms as tr
from neonlite import Backend, NervanaObject, cleanup_backend, gen_backend
from neonlite.transforms import (
    Accuracy,
    BLEUScore,
    Cost,
    CrossEntropyMulti,
    Explin,
    GANCost,
    Metric,
    MultiMetric,
    Normalizer,
    ObjectDetection,
    PixelwiseSoftmax,
    PrecisionRecall,
    SmoothL1Loss,
    Softmax,
    TopKMisclassification,
    Transform,
)

# --- mistakes ------------------------------------------------------------------------------------------------------

every_object = pytest.mark.parametrize("thing", made(), ids=lambda thing: thing.classnm)


def test_every_public_class_is_among_those_tested():
    assert {type(thing).__name__ for thing in made()} | {"Transform", "Cost", "Metric", "get_metric"} == set(tr.__all__)


@every_object
def test_a_description_recreates_the_object(thing):
    description = thing.get_description()
    assert description["type"] == f"{type(thing).__module__}.{type(thing).__name__}"
    nested = {x: vars(thing)[x] for x in ("metric", "cost") if x in vars(thing)}
    for argument, part in nested.items():
        assert description["config"].pop(argument) == part.get_description()
    again = type(thing)(**description["config"], **nested)
    assert again.get_description() == thing.get_description()
    assert {k: v for k, v in vars(again).items() if not isinstance(v, NervanaObject)} == {
        k: v for k, v in vars(thing).items() if not isinstance(v, NervanaObject)
    }


@pytest.mark.parametrize("thing", [x for x in made() if isinstance(x, Cost | Metric)], ids=lambda x: x.classnm)
def test_outputs_and_targets_have_the_same_shape(cpu, thing):
    if isinstance(thing, BLEUScore | MultiMetric | ObjectDetection | GANCost):
        return
    y, t = cpu.ones((4, 3), name="guess"), cpu.ones((4, 2), name="truth")
    calls = [thing, *((thing.bprop, thing.backward) if isinstance(thing, Cost) else ())]
    for call in calls:
        words = rf"{thing.classnm}: expected y and t of the same shape \(F, N\), got guess \(4, 3\), truth \(4, 2\)$"
        with pytest.raises(ValueError, match=words):
            call(y, t)
        with pytest.raises(TypeError, match=rf"{thing.classnm}: expected tensors or op-trees, got \[\[1\]\]"):
            call(y, [[1]])
        with pytest.raises(ValueError, match=r"Convert labels with be.onehot\(labels, axis=0, nclass=F\)"):
            call(y, cpu.ones((1, 3)))


def test_arguments_are_checked_by_the_constructor():
    for make, words in [
        (lambda: Softmax(axis="rows"), "Softmax: expected an integer for axis, got 'rows'"),
        (lambda: PixelwiseSoftmax(0), "PixelwiseSoftmax: expected an integer >= 1 for c, got 0"),
        (lambda: PixelwiseSoftmax(2.5), "PixelwiseSoftmax: expected an integer >= 1 for c"),
        (lambda: Normalizer(divisor=0), "Normalizer: expected a nonzero divisor, got 0"),
        (lambda: Explin(-0.5), "Explin: expected a finite number >= 0 for alpha, got -0.5"),
        (lambda: SmoothL1Loss(sigma=0), "SmoothL1Loss: expected a finite number > 0 for sigma, got 0"),
        (lambda: SmoothL1Loss(sigma=-1), "SmoothL1Loss: expected a finite number > 0 for sigma, got -1"),
        (lambda: TopKMisclassification(0), "TopKMisclassification: expected an integer >= 1 for k, got 0"),
        (lambda: TopKMisclassification(True), "TopKMisclassification: expected an integer >= 1 for k, got True"),
        (lambda: PrecisionRecall(-2), "PrecisionRecall: expected an integer >= 1 for num_classes, got -2"),
        (lambda: MultiMetric(Accuracy, 0), r"MultiMetric: expected a metric, such as Accuracy\(\), for metric, got"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            make()


def test_shapes_are_checked_by_the_call(cpu):
    x = cpu.ones((4, 3), name="x")
    with pytest.raises(IndexError, match=r"Softmax\(axis=2\): be.softmax\(x \(4, 3\)\): axis 2 is out of range"):
        Softmax(2)(x)
    with pytest.raises(ValueError, match=r"x \(c \* H \* W, N\) with c = 3 channels, got x \(4, 3\)"):
        PixelwiseSoftmax(3)(x)
    with pytest.raises(ValueError, match=r"expected at least k = 5 classes, got 4, those of x \(4, 3\)"):
        TopKMisclassification(5)(x, x)
    with pytest.raises(ValueError, match=r"PrecisionRecall: expected num_classes = 3 rows, got x \(4, 3\)"):
        PrecisionRecall(3)(x, x)
    with pytest.raises(ValueError, match=r"MultiMetric\(index=2\): expected several outputs, got"):
        MultiMetric(Accuracy(), 2)([x, x], [x, x])
    with pytest.raises(ValueError, match=r"MultiMetric\(index=0\): expected several targets, got x"):
        MultiMetric(Accuracy(), 0)([x, x], x)
    with pytest.raises(TypeError, match=r"ObjectDetection: expected y = \(scores, boxes\), got x"):
        ObjectDetection()(x, (x, x))
    with pytest.raises(TypeError, match=r"expected t = \(labels, boxes\)"):
        ObjectDetection()((x, x), (x,))
    with pytest.raises(ValueError, match="ObjectDetection: expected boxes and their targets of the same shape"):
        ObjectDetection()((x, x), (x, cpu.ones((4, 2))))


# --- user subclasses, other backends -------------------------------------------------------------------------------


class Softplus(Transform):
    def __call__(self, x: Any) -> Any:
        return self.be.log(1 + self.be.exp(x))


class Doubled(Transform):
    """In neon's way: the derivative by the output."""

    def __call__(self, x: Any) -> Any:
        return 2 * x

    def bprop(self, y: Any) -> Any:
        return 2


class Huber(Cost):
    def __call__(self, y: Any, t: Any) -> Any:
        size = abs(y - t)
        return self.be.sum(self.be.where(size < 1, size * size / 2, size - 0.5), axis=0)


class Signs(Metric):
    metric_names = ("same", "above")

    def column_values(self, y: Any, t: Any) -> Any:
        return self.be.concat([self.be.equal(self.be.sgn(y), self.be.sgn(t)), y > t])


def test_a_subclass_needs_only_its_formula(be64, rng):
    values, targets = rng.normal(size=(2, 1, 5)) * 2
    x, t, error = be64.array(values), be64.array(targets), be64.ones((1, 5)) * 3
    close(Softplus().backward(error, None, x), 3 * np.vectorize(sig)(values), 1e-9)
    close(Doubled().backward(error, None), np.full((1, 5), 6.0))
    assert [Softplus().has_grad_from_output, Doubled().has_grad_from_output] == [False, True]
    close(Huber().bprop(x, t), np.clip(values - targets, -1, 1), 1e-9)
    wanted = [np.mean(np.sign(values) == np.sign(targets)), np.mean(values > targets)]
    np.testing.assert_allclose(Signs()(x, t), wanted)


@pytest.mark.parametrize(("base", "word"), [(Transform, "__call__"), (Cost, "__call__"), (Metric, "column_values")])
def test_a_base_class_names_the_method_to_implement(cpu, base, word):
    y = cpu.ones((1, 1))
    with pytest.raises(NotImplementedError, match=rf"{base.__name__}: implement {word}\("):
        base()(*(y,) * (1 if base is Transform else 2))


def test_an_object_uses_the_backend_it_was_created_with():
    other = Backend("cpu", default_dtype="float64")
    y = other.array([[0.25, 0.5], [0.75, 0.5]])
    gen_backend("cpu")
    for thing in (Softmax(), CrossEntropyMulti(), TopKMisclassification(1), MultiMetric(Accuracy(), 0), GANCost()):
        thing.be = other
        if isinstance(thing, Transform):
            assert thing(y).backend is other
        elif isinstance(thing, Cost):
            assert thing(y, y).backend is other
        else:
            several = isinstance(thing, MultiMetric)
            assert np.size(thing([y], [y]) if several else thing(y, y)) == len(thing.metric_names)
    detection = ObjectDetection()
    detection.be = other
    assert detection((y, y), (y, y)).tolist() == [1, 0]
    cleanup_backend()
