"""gradwire bench --attach: our hooks on PyTorch's DDP beside everything else."""

import json
import subprocess
import sys

import pytest
from test_cpp import BUILD


def bench(*arguments):
    return subprocess.run(
        [
            *(BUILD / "gradwire", "bench", "--model", "mlp:32", "--rounds", "1"),
            *("--steps", "2", "--warmup", "1", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_attached_hooks_are_rows(tmp_path):
    report = tmp_path / "report.json"
    done = bench(
        *("--hooks", "none,fp16", "--peer", sys.executable),
        *("--attach", "fp16,int8:block=64,ef=off", "--json", report),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["rows"]
    attached = [row for row in rows if row.get("attached")]
    assert [row["hook"] for row in attached] == ["fp16", "int8:block=64,ef=off"]
    for row in attached:
        assert row["identical"] and row["peer"].startswith("torch 2.")
        assert row["ratio_to_peer"] > 0
    assert attached[0]["relative_error"] == pytest.approx(2e-4, abs=2e-4)
    assert attached[0]["ratio_to_peer_hook"] > 0
    assert attached[1]["ratio_to_peer_hook"] is None
    assert "attached int8:block=64,ef=off" in done.stdout


def test_what_is_missing_is_said():
    done = bench("--attach", "int8")
    assert done.returncode != 0
    assert "--attach needs --peer, a Python with torch and gradwire" in done.stderr
