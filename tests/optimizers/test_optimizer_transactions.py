"""Tests of the update as a transaction: it copies weights only where a write can be followed by an error."""

import numpy as np
import pytest

from neonlite.backend.planning.assignment import CompiledAssignment
from neonlite.backend.transaction import Snapshot, atomic
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, GeneralizedGANCost, GenerativeAdversarial, Linear
from neonlite.models import GAN, Model
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, MultiOptimizer
from neonlite.transforms import GANCost

N = 4


def data():
    x = np.random.default_rng(0).normal(size=(3 * N, 2))
    return ArrayIterator(x, x[:, :1], make_onehot=False)


def network():
    return [
        Affine(3, Gaussian(scale=0.5), bias=Constant(0), activation="tanh", name="a"),
        Linear(1, "glorot", name="b"),
    ]


@pytest.fixture
def copies(cpu, monkeypatch):
    """Return a list that gets the number of tensors of each copy."""
    cpu.bsz, taken, take = N, [], Snapshot.take
    monkeypatch.setattr(Snapshot, "take", lambda self, *args: taken.append(len(self.tensors)) or take(self, *args))
    return taken


class OwnRule(Adam):
    def update_rule(self, be, w, g, states, rate):
        return [w - 0.01 * g, *states]


class OwnOptimize(Adam):
    def optimize(self, layer_list, epoch):
        super().optimize(layer_list, epoch)  # an error may follow


class OwnStep(Model):
    def train_step(self, x, t, epoch=0):
        return super().train_step(x, t, epoch)  # an error may follow


def several():
    return MultiOptimizer({"default": Adam(), "Bias": GradientDescentMomentum(0.1, 0.9)})


@pytest.mark.parametrize(
    ("make", "optimizer", "expected"),
    [
        (Model, Adam, []),
        (Model, lambda: GradientDescentMomentum(0.1, 0.0), []),
        (Model, lambda: LossScaling(Adam()), []),
        (Model, lambda: MultiOptimizer({"default": Adam()}), []),
        (Model, OwnRule, []),
        (Model, several, []),
        (Model, OwnOptimize, [3, 3, 3]),
        (Model, lambda: MultiOptimizer({"default": OwnOptimize()}), [3, 3, 3]),
        (OwnStep, Adam, [3, 3, 3]),
    ],
)
def test_a_step_copies_weights_only_if_an_error_may_follow_its_writes(copies, make, optimizer, expected):
    make(network()).fit(data(), "mse", optimizer(), num_epochs=1)
    assert copies == expected


def test_the_first_update_of_a_gan_is_copied(copies):
    parts = [
        [Affine(2, Gaussian(), bias=Constant(0))],
        [Affine(1, Gaussian(), bias=Constant(0), activation="logistic")],
    ]
    model = GAN(GenerativeAdversarial(*parts), noise_dim=2)
    model.fit(ArrayIterator(np.zeros((N, 2))), GeneralizedGANCost(GANCost()), Adam(), num_epochs=1)
    assert copies
    assert copies[0] == 3


def test_a_custom_loop_copies_only_within_an_outer_transaction(copies):
    model, optimizer = Model(network()), Adam()
    model.initialize(data())
    optimizer.optimize(model.layers_to_optimize, 0)
    assert copies == []
    atomic(lambda: optimizer.optimize(model.layers_to_optimize, 0))
    assert copies == [3]


def everything(model, optimizer):
    tensors = [x for layer in model.layers_to_optimize for w in layer.parameters for x in [w, *flat(layer.states)]]
    return [x.get().tobytes() for x in tensors], [w.updates for w in model.layers.parameters], optimizer.t


def flat(states):
    return [x for y in states for x in (flat(y) if isinstance(y, list) else [y])]


def trained(model, optimizer):
    model.fit(data(), "mse", optimizer, num_epochs=1)
    return everything(model, optimizer)


@pytest.mark.parametrize("optimizer", [Adam, several, lambda: LossScaling(several())])
def test_an_error_after_the_update_undoes_it_where_user_code_follows(copies, optimizer):
    class Failing(Model):
        fails = False

        def train_step(self, x, t, epoch=0):
            cost = super().train_step(x, t, epoch)
            if self.fails:
                raise MemoryError
            return cost

    model, optimizer = Failing(network()), optimizer()
    before = trained(model, optimizer)
    model.fails = True
    with pytest.raises(MemoryError):
        model.fit(data(), "mse", optimizer, num_epochs=2)
    assert everything(model, optimizer) == before


def test_an_error_of_the_data_set_about_its_position_leaves_the_weights(copies):
    model, optimizer, train = Model(network()), Adam(), data()
    before = trained(model, optimizer)

    def fail():
        raise OSError("no position")

    train.get_state = fail
    with pytest.raises(OSError, match="no position"):
        model.fit(train, "mse", optimizer, num_epochs=2)
    assert everything(model, optimizer) == before


def test_an_allocation_that_fails_in_an_update_leaves_everything(copies, cpu, monkeypatch):
    model, optimizer = Model([Linear(300, "glorot", name="a")]), Adam()  # in several blocks
    model.initialize(2000)
    for dw in model.layers.gradients:
        dw[:] = 1
    weights, allocate, failures = model.layers.parameters[0].get(), cpu.runtime.allocate, 0
    for at in range(1, 30):
        calls = []

        def fail(nbytes, calls=calls, at=at):
            calls.append(nbytes)
            if len(calls) == at:
                raise MemoryError
            return allocate(nbytes)

        monkeypatch.setattr(cpu.runtime, "allocate", fail)
        try:
            optimizer.optimize(model.layers_to_optimize, 0)
        except MemoryError:
            failures += 1
            np.testing.assert_array_equal(model.layers.parameters[0].get(), weights)
            assert (optimizer.t, model.layers["a"].states, model.layers["a"].W.updates) == (0, [], None)
        else:
            break
    assert failures
    assert optimizer.t == 1
    assert copies == []


def test_an_op_that_raises_in_its_second_block_leaves_everything(copies, cpu, own):
    fails = []

    def run(xp, x):
        fails.append(0)
        if len(fails) == 3:
            raise ArithmeticError("no")
        return x * 0.5

    half = own("half_unless_third", run, lambda be, dz, z, x: (dz,))

    class Custom(Adam):
        def update_rule(self, be, w, g, states, rate):
            return [w - half(be, g), states[0] + 1, states[1]]

    model, optimizer = Model([Linear(300, "glorot", name="a")]), Custom()
    model.initialize(2000)
    weights = model.layers["a"].W.get()
    for _ in range(2):
        fails.clear()
        with pytest.raises(ArithmeticError):
            optimizer.optimize(model.layers_to_optimize, 0)
        np.testing.assert_array_equal(model.layers["a"].W.get(), weights)
    assert copies == []


def test_ctrl_c_in_a_custom_loop_ends_it_after_the_update(copies, cpu, monkeypatch):
    import signal

    model, optimizer, run = Model(network()), Adam(), CompiledAssignment.__call__
    model.initialize(data())
    optimizer.optimize(model.layers_to_optimize, 0)

    def interrupted(assignment):
        if len(assignment.tensors) == 3:
            signal.raise_signal(signal.SIGINT)
        run(assignment)

    monkeypatch.setattr(CompiledAssignment, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.optimize(model.layers_to_optimize, 0)
    assert optimizer.t == 2
    assert {w.updates[1] for w in model.layers.parameters} == {2}
