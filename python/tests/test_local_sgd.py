"""Local SGD: the hook, averagers and the optimizer, beside PyTorch's own."""

import os
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
from models import batch, flat_parameters, make_ddp, net
from ranks import error_of, run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as their_hooks
from torch.distributed.algorithms.model_averaging import averagers as their_averagers
from torch.distributed.algorithms.model_averaging import (
    hierarchical_model_averager as their_hierarchical,
)
from torch.distributed.optim import PostLocalSGDOptimizer as TheirOptimizer

from gradwire.ddp_comm_hooks import post_localSGD_hook as hooks
from gradwire.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from gradwire.model_averaging import averagers, hierarchical_model_averager, utils
from gradwire.optim import PostLocalSGDOptimizer


def subgroup_of(rank, world):
    """Pairs of neighbours among four ranks, each rank by itself among two."""
    size = world // 2
    groups = [dist.new_group(list(range(i, i + size))) for i in range(0, world, size)]
    return groups[rank // size]


def four_cases(rank, world):
    subgroup = subgroup_of(rank, world)
    results = {}
    for start in (2, 100):
        for allreduce in (True, False):
            for library in (hooks, their_hooks):  # its state serves, too
                state = library.PostLocalSGDState(None, subgroup, start, allreduce)
                ddp = make_ddp(nn.Linear(1, 5))
                ddp.register_comm_hook(state, post_localSGD_hook)
                weights = []
                for step in range(4):
                    ddp.zero_grad()
                    ddp(torch.full((1, 1), float(rank + 10 * step))).sum().backward()
                    weights.append(ddp.module.weight.grad[0].item())
                case = (start, allreduce, library is hooks)
                results[case] = weights, state.iter
    return results


@pytest.mark.parametrize("world", [2, 4])
def test_the_hook_averages_over_all_ranks_and_then_within_subgroups(world):
    everyone = (world - 1) / 2
    for rank, results in enumerate(run(world, four_cases)):
        neighbours = rank if world == 2 else rank - rank % 2 + 0.5
        for (start, allreduce, _), (weights, counted) in results.items():
            alone = neighbours if allreduce else rank
            expected = [everyone] * 4 if start == 100 else [everyone] * 2 + [alone] * 2
            assert weights == [10 * step + mean for step, mean in enumerate(expected)]
            assert counted == (4 if start == 100 else 2)


def by_machine(rank, world, machines):
    if machines:
        per_machine = world // machines
        os.environ.update(
            TORCHELASTIC_RUN_ID="job",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="1",
            RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_RANK=str(rank % per_machine),
            LOCAL_WORLD_SIZE=str(per_machine),
        )
    ddp = make_ddp(nn.Linear(1, 5))
    start = 0 if machines else 100
    ddp.register_comm_hook(PostLocalSGDState(None, None, start), post_localSGD_hook)
    loss = ddp(torch.full((1, 1), float(rank))).sum()
    if not machines:
        return error_of(loss.backward)
    loss.backward()
    return ddp.module.weight.grad[0].item()


def test_without_a_subgroup_ranks_of_a_machine_average():
    assert run(4, by_machine, 2) == [0.5, 0.5, 2.5, 2.5]


def test_without_a_subgroup_and_a_launcher_the_first_step_says_so():
    for kind, text in run(2, by_machine, 0):
        assert kind == "RuntimeError"
        assert "no launcher says which ranks share a machine" in text
        assert "give PostLocalSGDState a subgroup" in text


def pickled(rank, world):
    subgroup = subgroup_of(rank, world)
    state = PostLocalSGDState(None, subgroup, 1)
    first = make_ddp(nn.Linear(1, 5))
    first.register_comm_hook(state, post_localSGD_hook)
    first(torch.ones(1, 1)).sum().backward()
    state = pickle.loads(pickle.dumps(state))
    found = state.iter, state.start_localSGD_iter, state.process_group is dist.group.WORLD
    ddp = make_ddp(nn.Linear(1, 5))
    ddp.register_comm_hook(state, post_localSGD_hook)
    lost = error_of(ddp(torch.full((1, 1), float(rank))).sum().backward)
    state = pickle.loads(pickle.dumps(state))  # has still lost it
    state.subgroup = subgroup
    ddp = make_ddp(nn.Linear(1, 5))
    ddp.register_comm_hook(state, post_localSGD_hook)
    ddp(torch.full((1, 1), float(rank))).sum().backward()
    return found, lost, ddp.module.weight.grad[0].item()


def test_a_pickled_state_goes_on_once_it_has_its_subgroup_again():
    for rank, (found, (kind, text), weight) in enumerate(run(2, pickled)):
        assert found == (1, 1, True)
        assert kind == "RuntimeError" and "set state.subgroup" in text
        assert weight == rank


def wrong_groups(rank, world):
    one = dist.new_group([0])
    kinds = [error_of(PostLocalSGDState, None, one, 0)] if rank == 1 else []
    if rank == 0:
        kinds.append(error_of(PostLocalSGDState, one, dist.group.WORLD, 0))
    ddp = make_ddp()
    ddp.register_comm_hook(None, post_localSGD_hook)
    return *kinds, error_of(ddp(batch(rank, 0)).sum().backward)


def test_wrong_arguments_of_the_state():
    assert error_of(PostLocalSGDState, None, None, -1) == (
        "ValueError",
        "start_localSGD_iter is -1, expected 0 or more",
    )
    assert error_of(PostLocalSGDState, None, None, 0.5) == (
        "TypeError",
        "start_localSGD_iter is a float, expected an int",
    )
    kind, text = error_of(PostLocalSGDState, None, 2, 0)
    assert kind == "TypeError" and text.startswith("got a int as process group")
    state = (
        "TypeError",
        "got a NoneType as state of post_localSGD_hook, expected a PostLocalSGDState",
    )
    outside = "subgroup has ranks [1], which are not in process_group"
    assert run(2, wrong_groups) == [
        (("ValueError", outside), state),
        (("ValueError", "this rank is not a member of the process group"), state),
    ]


def make_averager(ours, world, kind):
    if kind == "periodic":
        library = averagers if ours else their_averagers
        return library.PeriodicModelAverager(period=4, warmup_steps=10)
    library = hierarchical_model_averager if ours else their_hierarchical
    return library.HierarchicalModelAverager({2: 2, 4: world}, warmup_steps=4)


def optimized(rank, world, ours, kind):
    subgroup = subgroup_of(rank, world)
    library = hooks if ours else their_hooks
    averager = make_averager(ours, world, kind)
    state = library.PostLocalSGDState(None, subgroup, averager.warmup_steps)
    ddp = make_ddp()
    ddp.register_comm_hook(state, library.post_localSGD_hook)
    sgd = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    optimizer = (PostLocalSGDOptimizer if ours else TheirOptimizer)(sgd, averager)
    parameters = []
    for step in range(20):
        optimizer.zero_grad()
        ddp(batch(rank, step)).square().mean().backward()
        optimizer.step()
        parameters.append(flat_parameters(ddp))
    return parameters, averager.step, optimizer.state_dict()["step"]


def both_optimized(rank, world):
    return {
        (kind, ours): optimized(rank, world, ours, kind)
        for kind in ("periodic", "hierarchical")
        for ours in (True, False)
    }


@pytest.mark.parametrize("world", [2, 4])
def test_the_optimizer_trains_as_pytorchs_does(world):
    results = run(world, both_optimized)
    for kind, together in (("periodic", (10, 14, 18)), ("hierarchical", (4, 8, 12, 16))):
        for each in results:
            ours, theirs = each[kind, True], each[kind, False]
            assert ours[1:] == theirs[1:] == (20, 20)
            for one, two in zip(ours[0], theirs[0]):
                assert torch.equal(one, two)
        for step in together:
            first = results[0][kind, True][0][step]
            assert all(torch.equal(each[kind, True][0][step], first) for each in results)
        last = [each[kind, True][0][19] for each in results]
        assert not torch.equal(last[0], last[-1])


def reloaded(rank, world):
    def make(step):
        sgd = torch.optim.SGD(net().parameters(), 0.1, momentum=0.9)
        averager = averagers.PeriodicModelAverager(period=4, warmup_steps=10)
        averager.step = step
        return PostLocalSGDOptimizer(sgd, averager)

    one, two, three = make(15), make(0), make(7)
    two.load_state_dict(one.state_dict())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        three.load_state_dict(one.optim.state_dict())
    assert "no 'step'" in str(told[0].message) and told[0].filename == __file__
    torch.optim.lr_scheduler.OneCycleLR(two, max_lr=0.2, total_steps=9)
    copy = pickle.loads(pickle.dumps(two))
    copy.param_groups[0]["lr"] = 0.3
    steps = [each.averager.step for each in (two, three, copy)]
    for step in range(2):  # 15 and 16: no average, so parameters may be others
        assert two.step(lambda: 5) == 5
    return steps, two.averager.step, copy.optim.param_groups[0]["lr"]


def test_steps_are_reloaded_and_pickled():
    assert run(1, reloaded) == [([15, 0, 15], 17, 0.3)]


class Uneven(nn.Module):
    """With what has no gradient, and other types."""

    def __init__(self, rank):
        super().__init__()
        self.used = nn.Parameter(torch.full((3,), float(rank)))
        self.unused = nn.Parameter(torch.full((2, 2), 10.0 + rank))
        self.fp16 = nn.Parameter(torch.full((4,), 1.0 + rank, dtype=torch.float16))
        self.fp64 = nn.Parameter(torch.full((2,), 0.1 + rank, dtype=torch.float64))
        self.complex64 = nn.Parameter(torch.full((2,), complex(rank, -rank)))

    def means(self):
        return [parameter.detach().mean().item() for parameter in self.parameters()]


def averaged(rank, world):
    model, again = Uneven(rank), Uneven(rank)
    averager = averagers.PeriodicModelAverager(period=2)
    averager.average_parameters(model.parameters())
    utils.average_parameters(again.parameters(), None)
    alone = Uneven(rank)
    utils.average_parameters(alone.parameters(), dist.new_group([0]))
    no_float = error_of(utils.average_parameters, [torch.arange(3)], None)
    head = nn.Parameter(torch.full((2,), float(rank)))
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
    optimizer.add_param_group({"params": head})
    averager.step = 2
    optimizer.step()
    return model.means(), again.means(), alone.means(), no_float, head[0].item()


def test_all_parameters_are_averaged():
    for rank, (model, again, alone, no_float, head) in enumerate(run(2, averaged)):
        assert model == [0.5, 10.5, 1.5, pytest.approx(0.6), complex(0.5, -0.5)]
        assert again == model
        assert alone == Uneven(rank).means()
        assert no_float == (
            "TypeError",
            "got a tensor of torch.int64, expected a dense tensor of floats",
        )
        assert head == 0.5


def averaging(rank, average, steps, saved=None):
    model = net((6, 400, 4))
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    averager = averagers.PeriodicModelAverager(period=2, average=average)
    if saved:
        averager.load_state_dict(saved, model.parameters())
    optimizer = PostLocalSGDOptimizer(sgd, averager)
    for step in range(averager.step, steps):
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()
    return flat_parameters(model), averager


def compressed(rank, world):
    plain, exact = averaging(rank, "allreduce", 5)
    int8, averager = averaging(rank, "int8", 5)
    saved = pickle.loads(pickle.dumps(averager.state_dict()))
    straight, _ = averaging(rank, "int8", 9)
    resumed, _ = averaging(rank, "int8", 9, saved)
    return (plain, int8, straight, resumed), exact.stats(), averager.stats()


def test_compressed_averages_go_on_with_the_same_bits():
    results = run(2, compressed)
    for (plain, int8, straight, resumed), exact, stats in results:
        torch.testing.assert_close(int8, plain, rtol=0, atol=1e-3)
        assert torch.equal(int8, results[0][0][1])  # step 4 was averaged
        assert torch.equal(straight, resumed)
        assert stats["steps"] == 5 and stats["averages"] == 3
    # The first rank has sent its parameters once, too.
    assert stats["sent"]["payload"] < exact["sent"]["payload"] / 3


def wrong_averagers(rank, world):
    periodic = averagers.PeriodicModelAverager
    hierarchical = hierarchical_model_averager.HierarchicalModelAverager
    optimizer = torch.optim.SGD(net().parameters(), 0.1)
    ours = periodic(4, 10)
    errors = [
        error_of(periodic, 0),
        error_of(periodic, 2, -1),
        error_of(periodic, 2, average="int9"),
        error_of(hierarchical, {}),
        error_of(hierarchical, {0: 4}),
        error_of(hierarchical, {4: 2, 2: 4}),
        error_of(hierarchical, {2: 4, 4: 2}),
        error_of(hierarchical, {2: 2}),
        error_of(ours.average_parameters, [3]),
        error_of(ours.average_now),
        error_of(PostLocalSGDOptimizer, 3, ours),
        error_of(PostLocalSGDOptimizer, optimizer, 3),
        error_of(PostLocalSGDOptimizer, optimizer, ours, hook_state=3),
        error_of(
            PostLocalSGDOptimizer,
            *(optimizer, ours),
            hook_state=PostLocalSGDState(None, None, 9),
        ),
    ]
    disagreeing = periodic(2 + rank)
    told = error_of(disagreeing.average_parameters, net().parameters())
    no_state = error_of(
        ours.load_state_dict, 3 if rank else ours, net().parameters()
    )
    return errors, told, no_state


def test_wrong_arguments_of_averagers():
    results = run(4, wrong_averagers)
    errors = results[0][0]
    expected = [
        "period is 0, expected 1 or more",
        "warmup_steps is -1, expected 0 or more",
        "int9",
        "period_group_size_dict is empty",
        "a period of period_group_size_dict is 0, expected 1 or more",
        "a period of period_group_size_dict is 2, expected 5 or more",
        "has 2 ranks for period 4, expected a larger multiple of 4",
        "ends with 2 ranks, expected all 4",
        "got a int among the parameters",
        "the averager has no parameters yet",
        "got a int as optim, expected a torch.optim.Optimizer",
        "got a int as averager, expected a ModelAverager",
        "got a int as hook_state, expected a PostLocalSGDState",
        "the hook goes local after 9 steps but the averager begins after 10",
    ]
    for (kind, text), part in zip(errors, expected, strict=True):
        assert part in text
        assert kind == ("TypeError" if text.startswith("got a") else "ValueError")
    for _, (kind, text), (state_kind, state_text) in results:
        assert kind == "ValueError" and "a period" in text
        assert state_kind == "ValueError" and "has no 'version'" in state_text
