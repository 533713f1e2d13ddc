"""gradwire's packages have whatever PyTorch's have."""

import functools
import importlib
import inspect
import logging
import pkgutil
import types

import pytest
import torch.distributed as dist
import torch.distributed.optim as their_optim
from models import make_ddp, net, train
from ranks import run
from test_powersgd import Matrix, gradient
from torch.distributed.algorithms import ddp_comm_hooks as theirs
from torch.distributed.algorithms import model_averaging as their_averaging
from torch.nn.parallel import DistributedDataParallel
from torch_state import without_numpy

import gradwire
import gradwire.optim
from gradwire import ddp_comm_hooks as ours
from gradwire import model_averaging
from gradwire.ddp_comm_hooks.default_hooks import allreduce_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

PACKAGES = {
    theirs: ours,
    their_averaging: model_averaging,
    their_optim: gradwire.optim,
}
# Native here, or not there to be looked at.
ABSENT = {"rng", "error_dict", "p_memory_dict", "q_memory_dict"}


def modules_of(package):
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def own_names(module, package):
    """Public names that the module defines, or takes from its package."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", getattr(value, "__name__", package.__name__))
        if name[0] != "_" and home.startswith(package.__name__):
            yield name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_module_and_name_is_there(package):
    mirror = PACKAGES[package]
    missing = [name for name in own_names(package, package) if not hasattr(mirror, name)]
    for module in modules_of(package):
        their_module = importlib.import_module(f"{package.__name__}.{module}")
        our_module = importlib.import_module(f"{mirror.__name__}.{module}")
        names = [*own_names(their_module, package), *getattr(their_module, "__all__", [])]
        missing += [f"{module}.{n}" for n in names if not hasattr(our_module, n)]
    assert missing == []


def test_what_is_looked_for_is_there():
    assert {"default_hooks", "ddp_zero_hook", "post_localSGD_hook"} <= set(
        modules_of(theirs)
    )
    assert {"default", "powerSGD", "DDPCommHookType"} <= set(own_names(theirs, theirs))
    assert {"averagers", "utils"} <= set(modules_of(their_averaging))
    assert {"PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"} <= set(
        own_names(their_optim, their_optim)
    )


@pytest.mark.parametrize(
    "module, name",
    [
        ("ddp_comm_hooks.post_localSGD_hook", "PostLocalSGDState"),
        ("ddp_comm_hooks.post_localSGD_hook", "post_localSGD_hook"),
        ("model_averaging.averagers", "ModelAverager"),
        ("model_averaging.averagers", "PeriodicModelAverager"),
        ("model_averaging.hierarchical_model_averager", "HierarchicalModelAverager"),
        ("model_averaging.utils", "average_parameters"),
        ("model_averaging.utils", "average_parameters_or_parameter_groups"),
        ("model_averaging.utils", "get_params_to_average"),
        ("optim", "PostLocalSGDOptimizer"),
    ],
)
def test_local_sgd_is_ours_and_takes_pytorchs_arguments(module, name):
    their_module = module if module != "optim" else "distributed.optim"
    package = "torch" if module == "optim" else "torch.distributed.algorithms"
    their = getattr(importlib.import_module(f"{package}.{their_module}"), name)
    our = getattr(importlib.import_module(f"gradwire.{module}"), name)
    assert our.__module__.startswith("gradwire.")
    our_parameters = inspect.signature(our).parameters.values()
    assert [
        (p.name, p.default)
        for p in our_parameters
        if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ] == [(p.name, p.default) for p in inspect.signature(their).parameters.values()]
    if inspect.isclass(their):
        methods = {n for n in vars(their) if n[0] != "_"} - {*getattr(their, "__slots__", ())}
        assert methods <= {*dir(our)}


def test_a_module_without_a_version_of_ours_is_pytorchs():
    from gradwire.ddp_comm_hooks.optimizer_overlap_hooks import _hook_then_optimizer
    from gradwire.optim import ZeroRedundancyOptimizer
    from gradwire.optim.zero_redundancy_optimizer import _broadcast_object

    assert _hook_then_optimizer is theirs.optimizer_overlap._hook_then_optimizer
    assert ZeroRedundancyOptimizer is their_optim.ZeroRedundancyOptimizer
    assert _broadcast_object.__module__.startswith(their_optim.__name__)
    with pytest.raises(ImportError, match="cannot import name 'no_such_hook'"):
        from gradwire.ddp_comm_hooks.default_hooks import no_such_hook  # noqa: F401


def test_short_names_are_our_modules():
    for name in ("debugging", "default", "optimizer_overlap", "powerSGD", "quantization"):
        module = getattr(ours, name)
        assert isinstance(module, types.ModuleType)
        assert module.__name__ == getattr(theirs, name).__name__.replace(
            theirs.__name__, ours.__name__
        )
    assert ours.powerSGD.powerSGD_hook is powerSGD_hook


def test_members_are_partial_functions_as_pytorchs():
    for member in theirs.DDPCommHookType:
        value = ours.DDPCommHookType[member.name].value
        assert isinstance(value, functools.partial)
        assert value.func.__name__ == member.value.func.__name__
        assert list(inspect.signature(value.func).parameters) == list(
            inspect.signature(member.value.func).parameters
        )
        assert value.keywords.keys() == member.value.keywords.keys()
        for key, theirs_is in member.value.keywords.items():
            expected = theirs_is
            if key == "comm_hook":
                module = theirs_is.__module__.rpartition(".")[2]
                expected = getattr(getattr(ours, module), member.value.keywords[key].__name__)
            assert value.keywords[key] == expected


def by_value(rank, world):
    one, two, three = make_ddp(), make_ddp(), make_ddp()
    value = ours.DDPCommHookType.POWER_SGD_RANK2.value
    value(model=one, state=dist.group.WORLD, start_powerSGD_iter=7)
    functools.partial(value, matrix_approximation_rank=3)(model=two, state=None)
    hook = ours.DDPCommHookType.BF16_COMPRESS.value.keywords["comm_hook"]
    three.register_comm_hook(None, hook)
    return [gradwire.stats(ddp)["hook"] for ddp in (one, two)], train(three, rank, 1)


def test_what_scripts_do_with_values():
    (specs, one), (_, two) = run(2, by_value)
    assert specs == ["powersgd:rank=2,start=7", "powersgd:rank=3"]
    assert one.equal(two)


def test_states_have_the_attributes_of_pytorchs():
    state, their_class = PowerSGDState(None), theirs.powerSGD.PowerSGDState
    attributes = [*their_class.__slots__, *(n for n in vars(their_class) if n[0] != "_")]
    missing = {name for name in attributes if not hasattr(state, name)}
    assert missing == ABSENT
    local = ours.post_localSGD_hook.PostLocalSGDState(None, None, 3)
    slots = ours.post_localSGD_hook._theirs.PostLocalSGDState.__slots__
    assert [name for name in slots if not hasattr(local, name)] == []
    for name in ("maybe_increase_iter", "compression_stats"):
        assert list(inspect.signature(getattr(PowerSGDState, name)).parameters) == list(
            inspect.signature(getattr(their_class, name)).parameters
        )


class Lines(logging.Handler):
    def __init__(self, name):
        super().__init__()
        self.lines = []
        logger = logging.getLogger(name)
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record):
        self.lines.append(record.getMessage())


def logged(rank, world, native):
    library = ours if native else theirs
    lines = Lines(f"{library.__name__}.powerSGD_hook").lines
    with without_numpy():
        state = library.powerSGD.PowerSGDState(
            None,
            matrix_approximation_rank=2,
            start_powerSGD_iter=3,
            min_compression_rate=1,
            compression_stats_logging_frequency=2,
        )
    ddp = DistributedDataParallel(Matrix())
    ddp.register_comm_hook(state, library.powerSGD.powerSGD_hook)
    for step in range(7):
        ddp(gradient(rank, step)).backward()
    told = [line for line in lines if line.startswith(("Start", "Compression"))]
    counters = [getattr(state, name) for name in PowerSGDState._COUNTERS]
    return told, counters, state.compression_stats()


def test_logs_and_counts_as_pytorchs():
    expected = run(2, logged, False)
    assert len(expected[0][0]) == 3
    assert expected[0][2] == (6.0, 2400, 400)
    assert run(2, logged, True) == expected


def average_first(state, bucket):
    if state.iter < 3:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    return powerSGD_hook(state, bucket)


def own_start(rank, world, by_hand):
    state = PowerSGDState(None, start_powerSGD_iter=3, min_compression_rate=1)
    ddp = make_ddp(net())
    ddp.register_comm_hook(state, average_first if by_hand else powerSGD_hook)
    train(ddp, rank, 5)
    return state.iter, state.compression_stats()


def test_a_hook_that_averages_the_first_steps_itself():
    # The native hook begins where the state is: with the first compressed step.
    assert run(2, own_start, True) == run(2, own_start, False)


def set_back(rank, world):
    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    ddp = make_ddp(net())
    ddp.register_comm_hook(state, powerSGD_hook)
    train(ddp, rank, 4)
    counted = [state.total_numel_before_compression]
    state.iter = 1
    for _ in range(2):
        train(ddp, rank, 1)
        counted.append(state.total_numel_before_compression)
    return state.iter, counted


def test_iter_can_be_set():
    for steps, (two, again, three) in run(2, set_back):
        assert steps == 3
        assert two == again  # a step in full precision
        assert three == two * 3 // 2
