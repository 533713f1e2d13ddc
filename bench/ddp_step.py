"""C++ DDP against PyTorch's DDP, and the allreduce hook against no hook.

Machines are noisy, so times are never compared across runs: each round runs all
variants one after another, in turning order, and a ratio is taken within a
round. Reported are the median and the spread of those ratios. All variants must
end with the same averaged gradients.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Above this a ratio is no longer explained by noise.
LIMITS = {"none / python": 1.00, "allreduce / none": 1.01}
# Shown without a limit: the hook called through the adapter, which costs a pass
# over the gradients that the Reducer's own averaging saves.
PAIRS = {
    "none / python": ("none", "python"),
    "allreduce / none": ("allreduce", "none"),
    "swapped / none": ("swapped", "none"),
}


def variants(build, view):
    flags = ["--view"] if view else []
    step = [str(build / "bench" / "ddp_step"), *flags]
    peer = [sys.executable, "-W", "ignore", str(ROOT / "bench/peer_ddp_step.py"), *flags]
    return {
        "python": peer,
        "none": [*step, "--hook", "none"],
        "allreduce": [*step, "--hook", "allreduce"],
        "swapped": [*step, "--hook", "allreduce", "--swapped"],
    }


def run(build, command, options):
    launcher = [str(build / "gradwire"), "run", "--nproc", str(options.nproc), "--"]
    sizes = ["--width", options.width, "--batch", options.batch]
    counts = ["--steps", options.steps, "--warmup", options.warmup]
    result = subprocess.run(
        launcher + command + [str(value) for value in sizes + counts],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    lines = [line for line in result.stdout.splitlines() if "step_ms" in line]
    return json.loads(lines[0].split("] ", 1)[1])


def spread(values):
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
        "rounds": len(ordered),
    }


def measure(build, options, view):
    commands = variants(build, view)
    medians = {name: [] for name in commands}
    fastest = {name: [] for name in commands}
    samples = {name: [] for name in commands}
    norms = {}
    names = list(commands)
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            result = run(build, commands[name], options)
            samples[name].append(result["step_ms"])
            medians[name].append(statistics.median(result["step_ms"]))
            fastest[name].append(min(result["step_ms"]))
            norms[name] = result["gradient_norm"]
        print(f"\rround {turn + 1}/{options.rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    reference = norms["python"]
    for name, norm in norms.items():
        if abs(norm - reference) > 1e-4 * abs(reference):
            sys.exit(f"{name}: gradient norm {norm}, expected {reference}")
    ratios = {}
    for label, (above, below) in PAIRS.items():
        ratios[label] = {
            "of_medians": spread([a / b for a, b in zip(medians[above], medians[below])]),
            "of_fastest_steps": min(fastest[above]) / min(fastest[below]),
        }
    return {"view": view, "ratios": ratios, "gradient_norm": norms, "samples_ms": samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    build = options.build.resolve()

    import torch  # after parsing: --help should not wait for it

    report = {
        "schema": 1,
        "benchmark": "ddp_step",
        "torch": torch.__version__,
        "machine": {"processor": platform.processor(), "cores": os.cpu_count()},
        "nproc": options.nproc,
        "width": options.width,
        "batch": options.batch,
        "steps": options.steps,
        "warmup": options.warmup,
        "results": [],
    }
    print(f"mlp of width {options.width}, batch {options.batch}, {options.nproc} ranks on loopback,")
    print(f"{options.rounds} rounds of {options.steps} steps after {options.warmup} to warm up")
    print(f"{'gradients':<12} {'ratio':<18} {'median':>7} {'p10':>7} {'p90':>7} {'fastest':>8}  limit")
    for view in (False, True):
        result = measure(build, options, view)
        report["results"].append(result)
        for label, ratio in result["ratios"].items():
            row = ratio["of_medians"]
            print(
                f"{'bucket view' if view else 'copied':<12} {label:<18} {row['median']:7.3f} "
                f"{row['p10']:7.3f} {row['p90']:7.3f} {ratio['of_fastest_steps']:8.3f}  "
                f"{LIMITS.get(label, '')}"
            )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"samples in {options.json}")


if __name__ == "__main__":
    main()
