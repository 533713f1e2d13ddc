#!/usr/bin/env python3
"""Checks that every include keeps to the layers of docs/architecture.md.

In gradwire/, rooms include only the rooms below them, and the page names the same rooms.
In apps/, a subcommand includes nothing of another one. In tests/, only tests/apps includes
the command.

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
    "comm": {"compat", "codec", "plan", "base"},
    "hook": {"comm", "codec", "linalg", "plan", "base"},
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


# What all subcommands share, in folders that stand by themselves.
APP = "apps/gradwire"
SHARED_BY_SUBCOMMANDS = {pathlib.PurePath("cli"), pathlib.PurePath("shared")}


def offences_of_library(path, text):
    """Yields what is wrong with one file of gradwire/."""
    relative = path.relative_to(ROOT)
    if len(relative.parts) < 3 or "gloo_shim" in relative.parts:
        return  # the umbrella header; declarations that are not ours
    room = relative.parts[1]
    if room not in ROOMS:
        yield f"unknown room, add it to {__file__}"
        return
    is_header = path.suffix == ".h"
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


def offences_of_command(path, text):
    """Yields what is wrong with one file of apps/gradwire/."""
    folder = pathlib.PurePath(path.relative_to(ROOT / APP)).parent
    allowed = {folder, *folder.parents}
    if folder not in SHARED_BY_SUBCOMMANDS:
        allowed |= SHARED_BY_SUBCOMMANDS
    for name in INCLUDE.findall(text):
        if name.startswith(APP) and pathlib.PurePath(name[len(APP) + 1 :]).parent not in allowed:
            yield f"{folder} may not include {name}"


def offences_of_test(path, text):
    """Yields what is wrong with one file of tests/."""
    if path.relative_to(ROOT).parts[1] != "apps":
        for name in INCLUDE.findall(text):
            if name.startswith("apps/"):
                yield f"a test outside of tests/apps may not include {name}"


def offences_of_page():
    """Yields where the rooms of docs/architecture.md are not those of ROOMS."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = {}
    for rooms, below in re.findall(r"^L[0-5]  (\S+(?: \S+)*) {2,}(.*)$", page, re.MULTILINE):
        for room in rooms.split():
            named[room] = set(re.split(r"[,;]", below)[0].split()) - {room}
    exist = {path.name for path in (ROOT / "gradwire").iterdir() if path.is_dir()}
    for room in sorted(exist | ROOMS.keys() | named.keys()):
        if room not in exist or named.get(room) != ROOMS.get(room):
            yield f"room {room} may include {named.get(room)}, in {__file__} {ROOMS.get(room)}"


CHECKS = {
    "gradwire": offences_of_library,
    APP: offences_of_command,
    "tests": offences_of_test,
}


def main():
    files, count = 0, 0
    for offence in offences_of_page():
        print(f"docs/architecture.md: {offence}")
        count += 1
    for folder, offences in CHECKS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp"}:
                continue
            files += 1
            for offence in offences(path, path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(ROOT)}: {offence}")
                count += 1
    print(f"{files} files, {count} offences against the layers")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
