"""The package as users meet it: what it shows, prints and leaves behind."""

import ast
import pathlib
import re
import subprocess
import sys

import gradwire
import gradwire.optim
from gradwire import ddp_comm_hooks, model_averaging

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_everything_public_has_a_docstring_with_an_example():
    public = [getattr(gradwire, name) for name in gradwire.__all__ if name[0] != "_"]
    modules = [
        ddp_comm_hooks.default_hooks,
        ddp_comm_hooks.quantization_hooks,
        ddp_comm_hooks.powerSGD_hook,
        ddp_comm_hooks.debugging_hooks,
        ddp_comm_hooks.post_localSGD_hook,
        model_averaging.averagers,
        model_averaging.hierarchical_model_averager,
        model_averaging.utils,
        gradwire.optim,
    ]
    for module in modules:
        public += [getattr(module, name) for name in module.__all__]
    public += [ddp_comm_hooks.DDPCommHookType, ddp_comm_hooks.register_ddp_comm_hook]
    for described in (
        ddp_comm_hooks.powerSGD_hook.PowerSGDState,
        ddp_comm_hooks.post_localSGD_hook.PostLocalSGDState,
        model_averaging.averagers.ModelAverager,
        model_averaging._averager.NativeAverager,
        gradwire.optim.DiLoCo,
        gradwire.optim.PostLocalSGDOptimizer,
    ):
        public += [thing for name, thing in vars(described).items() if name[0] != "_"]
    for thing in public:
        assert ">>> " in (thing.__doc__ or ""), thing


def test_types_are_there():
    folder = pathlib.Path(gradwire.__file__).parent
    assert (folder / "py.typed").exists()
    native = gradwire._native
    there = set()
    for name in (name for name in dir(native) if name[0] != "_"):
        there.add(name)
        if isinstance(getattr(native, name), type):
            there |= {f"{name}.{method}" for method in vars(getattr(native, name))}
    described = set()
    for node in ast.parse((folder / "_native.pyi").read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            described.add(node.name)
        if isinstance(node, ast.ClassDef):
            described |= {f"{node.name}.{method.name}" for method in node.body}

    def public(names):
        return {name for name in names if "._" not in name}

    assert public(described) == public(there)


def test_import_prints_nothing_and_starts_no_threads():
    code = (
        "import os, torch\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import gradwire, gradwire.ddp_comm_hooks\n"
        "import gradwire.model_averaging, gradwire.optim\n"
        "assert len(os.listdir('/proc/self/task')) == before"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_example_trains_under_torchrun():
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", "2"),
            *(ROOT / "examples" / "train_fashion.py", "--steps", "60", "--epochs", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    line = re.search(r"hook int8, 60 steps, .* ([\d.]+) times less .* ([\d.]+)$", done.stdout)
    assert line, done.stdout
    assert float(line[1]) > 3.7
    assert float(line[2]) > 0.5
