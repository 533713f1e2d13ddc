#!/usr/bin/env python3
"""Checks that every include of gradwire/ keeps to the layers of docs/architecture.md.

Prints one line per offence and exits 1 when there are any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A room may include itself and these.
ROOMS = {
    "base": set(),
    "codec": {"base"},
    "linalg": {"base"},
    "plan": {"base"},
    "launch": {"base"},
    "compat": {"base"},
    "comm": {"compat", "codec", "base"},
    "hook": {"comm", "codec", "linalg", "base"},
    "ddp": {"hook", "comm", "plan", "compat", "base"},
    "optim": {"hook", "comm", "plan", "compat", "base"},
    "rpc": {"ddp", "hook", "comm", "compat", "base"},
}
WITHOUT_TORCH = {"base", "codec", "linalg", "plan", "launch"}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
# Where torch/csrc/distributed may be seen: these rooms' sources, and the
# private headers that say so by their name.
DISTRIBUTED_SOURCES = {"comm", "ddp", "rpc"}
HEAVY = {"torch/torch.h", "torch/all.h", "torch/extension.h", "ATen/ATen.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
VERSION_TEST = re.compile(r"^\s*#\s*(if|elif).*TORCH_VERSION", re.MULTILINE)


def offences(path):
    """Yields what is wrong with one file of the library."""
    relative = path.relative_to(ROOT)
    room = relative.parts[1]
    is_header = path.suffix == ".h"
    text = path.read_text(encoding="utf-8")
    if room != "compat" and VERSION_TEST.search(text):
        yield "tests the Torch version outside of compat/"
    for name in INCLUDE.findall(text):
        own = re.match(r"gradwire/(\w+)/", name)
        if own and own.group(1) not in ROOMS[room] | {room}:
            yield f"room {room} may not include {name}"
        if re.match(r"(apps|tests|bench|examples|python)/", name):
            yield f"the library may not include {name}"
        if room in WITHOUT_TORCH and TORCH.match(name):
            yield f"room {room} is free of Torch but includes {name}"
        if name.startswith("torch/csrc/distributed/"):
            private = is_header and path.name.endswith("_impl.h")
            if room != "compat" and not (
                room in DISTRIBUTED_SOURCES and (not is_header or private)
            ):
                yield f"{name} belongs into compat/ or a source file"
        if is_header and name in HEAVY:
            yield f"a header may not include {name}"


def main():
    files = sorted((ROOT / "gradwire").rglob("*.h")) + sorted(
        (ROOT / "gradwire").rglob("*.cpp")
    )
    count = 0
    for path in files:
        relative = path.relative_to(ROOT)
        if len(relative.parts) < 3 or "gloo_shim" in relative.parts:
            continue  # the umbrella header; declarations that are not ours
        if relative.parts[1] not in ROOMS:
            print(f"{relative}: unknown room, add it to {__file__}")
            count += 1
            continue
        for offence in offences(path):
            print(f"{relative}: {offence}")
            count += 1
    print(f"{len(files)} files, {count} offences against the layers")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
