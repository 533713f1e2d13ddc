"""The package as users meet it: what it shows, prints and leaves behind."""

import ast
import pathlib
import re
import subprocess
import sys

import gradwire
from gradwire import ddp_comm_hooks

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_everything_public_has_a_docstring_with_an_example():
    public = [getattr(gradwire, name) for name in gradwire.__all__ if name[0] != "_"]
    for name in ("default_hooks", "quantization_hooks", "powerSGD_hook", "debugging_hooks"):
        module = getattr(ddp_comm_hooks, name)
        public += [getattr(module, function) for function in module.__all__]
    public += [ddp_comm_hooks.DDPCommHookType, ddp_comm_hooks.register_ddp_comm_hook]
    state = vars(ddp_comm_hooks.powerSGD_hook.PowerSGDState)
    public += [thing for name, thing in state.items() if name[0] != "_"]
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
