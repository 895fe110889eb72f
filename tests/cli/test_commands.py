"""The command line as a user meets it: help, light imports, errors, output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from rltrain.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
CARTPOLE = str(ROOT / "configs/cartpole.toml")
HEAVY = {"torch", "gymnasium", "rich", "pydantic", "numpy"}
TIMEOUT_S = 60


def rltrain(*arguments: str, cwd: Path = ROOT, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", "from rltrain.cli import main; main()", *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    )


BENCHES = ("replay", "roofline", "pipeline", "ring")


@pytest.mark.parametrize("name", [*COMMANDS, "config show", *(f"bench {name}" for name in BENCHES)])
def test_help_of_command_has_purpose_and_example(name):
    result = rltrain(*name.split(), "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage: rltrain " + name in result.stdout
    assert "Example:" in result.stdout
    lines = result.stdout.splitlines()
    assert [line for line in lines[1:] if "..." in line] == [], "cut by click"
    assert max(map(len, lines)) <= 80


def test_help_lists_commands_in_order_and_imports_nothing_heavy():
    started = time.monotonic()
    result = rltrain("--help", options=("-X", "importtime"))
    duration_s = time.monotonic() - started
    assert [name for name in re.findall(r"^  (\w+)  ", result.stdout, re.M) if name in COMMANDS] == list(COMMANDS)
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in result.stderr.splitlines()}
    assert "click" in imported
    assert not imported & HEAVY
    assert duration_s < 2, "0.5 s on an idle machine"


def test_run_config_mistakes_are_all_told_soon_and_nothing_is_created(tmp_path):
    (tmp_path / "bad.toml").write_text('[env]\nid = "CartPole-v1"\n[algo.ppo]\nlearning_rat = 1.0\nepochs = 0\n')
    started = time.monotonic()
    result = rltrain("run", "bad.toml", "--set", "run.seed=x", cwd=tmp_path)
    duration_s = time.monotonic() - started
    assert result.returncode == 2
    assert [line.split(" ")[1] for line in result.stderr.splitlines()] == [
        "algo.ppo.learning_rat", "run.seed", "algo.ppo.epochs",
    ]
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert [p.name for p in tmp_path.iterdir()] == ["bad.toml"]
    assert duration_s < 3, "1.5 s on an idle machine"


def test_unknown_command_names_the_nearest():
    result = rltrain("rnu")
    assert result.returncode == 2
    assert "Did you mean 'run'?" in result.stderr


def test_run_without_config_says_what_to_name():
    result = rltrain("run")
    assert result.returncode == 2
    assert "configs/cartpole.toml" in result.stderr


def test_run_resume_of_unknown_run_is_one_error(tmp_path):
    result = rltrain("run", "--resume", "nothing", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_config_show_fits_eighty_columns_and_names_origins():
    result = rltrain("config", "show", CARTPOLE, "--set", "run.seed=7")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.fullmatch(r"  seed = 7 +flag", line.rstrip()) for line in lines)
    assert any(re.fullmatch(r'  id = "CartPole-v1" +file', line.rstrip()) for line in lines)
    assert any(re.fullmatch(r"  num_slots = \d+ +auto", line.rstrip()) for line in lines)
    assert "\x1b" not in result.stdout


def test_output_into_closed_pipe_ends_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-c", "from rltrain.cli import main; main()", "config", "show", CARTPOLE],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, cwd=ROOT,
    )
    os.close(writing)
    assert result.stderr == ""
    assert result.returncode == 1


@pytest.mark.parametrize("module", ["click", "pydantic"])
def test_ctrl_c_while_modules_are_imported_ends_quietly(tmp_path, module):
    (tmp_path / f"{module}.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nsignal.raise_signal(signal.SIGINT)\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rltrain.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "config", "show", CARTPOLE],
        capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT,
    )
    assert result.returncode == 130, result.stderr
    assert result.stderr.strip() == "error: interrupted"


def test_run_resume_without_config_looks_in_the_run_dir_that_is_set(tmp_path):
    for option in ("run.dir=other", 'run = {dir = "other"}'):
        result = rltrain("run", "--resume", "latest", "--set", option, cwd=tmp_path)
        assert result.returncode == 2
        assert f"no run in {tmp_path / 'other'}" in result.stderr


def test_help_says_where_runs_are_looked_for_and_all_their_states():
    for command in ("run", "eval", "runs"):
        said = " ".join(rltrain(command, "--help").stdout.split())
        assert "runs/" in said
        assert "run.dir" in said or command == "runs"
    for state in ("running", "finished", "target", "stopped", "failed", "killed", "ended"):
        assert re.search(rf"\b{state}\b", said), state


def test_runs_lists_states_newest_first(tmp_path):
    for name, started, state in (("old", 1e9, "finished"), ("new", 1.1e9, "target")):
        folder = tmp_path / name
        (folder / "logs").mkdir(parents=True)
        (folder / "lock").touch()
        (folder / "state.json").write_text(json.dumps({"started": started}))
        summary = {"state": state, "env_steps": 12345, "return_mean": 475.25, "duration_s": 3661.0}
        (folder / "summary.json").write_text(json.dumps(summary))
    lines = rltrain("runs", str(tmp_path)).stdout.splitlines()
    assert lines[1].split()[:5] == ["new", "target", "12,345", "475.2", "1:01:01"]
    assert lines[2].split()[:2] == ["old", "finished"]
    summary["return_mean"] = 0.952
    (folder / "summary.json").write_text(json.dumps(summary))
    assert any("0.952" in line for line in rltrain("runs", str(tmp_path)).stdout.splitlines())
    (tmp_path / "none").mkdir()
    assert "No runs" in rltrain("runs", str(tmp_path / "none")).stdout
    missing = rltrain("runs", str(tmp_path / "nowhere"))
    assert missing.returncode == 2
    assert "there is no folder" in missing.stderr


@pytest.mark.timeout(120)
def test_run_then_eval_then_resume_of_a_short_training(tmp_path):
    small = ("--set", "run.total_env_steps=1024", "--set", "run.target_return=none")
    trained = rltrain("run", CARTPOLE, "--no-dashboard", "--name", "short", *small, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert rltrain("runs", cwd=tmp_path).stdout.splitlines()[1].split()[:2] == [folder.name, "finished"]

    played = rltrain("eval", "latest", "--episodes", "3", "--json", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    result = json.loads(played.stdout)
    assert len(result["returns"]) == 3
    (written,) = folder.glob("eval-checkpoint-*.json")
    assert json.loads(written.read_text()) == result
    table = rltrain("eval", str(folder), "--episodes", "3", cwd=tmp_path).stdout
    assert Path(result["checkpoint"]).is_file()
    assert f"{result['return_mean']:.2f}" in table
    assert str(written) in table

    more = rltrain("run", "--resume", "latest", "--no-dashboard", "--set", "run.total_env_steps=2048", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert "changed: run.total_env_steps: 1024 -> 2048" in more.stderr
    assert [p.name for p in (tmp_path / "runs").iterdir()] == [folder.name]


@pytest.mark.timeout(90)
def test_doctor_reports_machine_and_checks_env():
    result = rltrain("doctor", str(ROOT / "configs/own_env.toml"))
    assert result.returncode == 0, result.stdout + result.stderr
    for word in ("python", "cores", "memory", "/dev/shm", "nofile", "compiler", "torch", "GPU", "nsys", "ncu"):
        assert re.search(rf"^{word} ", result.stdout, re.M), word
    assert "Environment configs.own_env:make_env" in result.stdout
    assert "0 errors" in result.stdout


@pytest.mark.timeout(90)
def test_board_serves_until_interrupted(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "from rltrain.cli import main; main()", "board", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, line
        with urllib.request.urlopen(address[0], timeout=30) as reply:
            assert reply.status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors == ""
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(address[0], timeout=5)
    finally:
        process.kill()
        process.communicate()


def test_resume_under_another_name_is_refused():
    refused = rltrain("run", "--resume", "latest", "--name", "other")
    assert refused.returncode == 2
    assert "a run keeps its name" in refused.stderr
