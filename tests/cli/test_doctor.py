"""`rltrain doctor` on environments that end their process or never come back: it always says so and ends itself."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import rude_envs, toy_envs
from tests.runs import Running, until

pytestmark = pytest.mark.timeout(90)
TOY, RUDE = Path(toy_envs.__file__), Path(rude_envs.__file__)
SHORT_START = {"supervision.boot_timeout_s": 3}
SHORT_CALL = {"supervision.heartbeat_timeout_s": 3}
"""Counted from the call of the environment; what comes before takes long on a busy machine."""


def doctor(directory: Path, env: str, limits: dict[str, Any] | None = None, **kwargs: Any) -> Running:
    """Start `rltrain doctor` on an env of `tests/`, such as `toy_envs:Hang`."""
    directory.mkdir(parents=True, exist_ok=True)
    options = {"env.id": f'"tests.{env}"', **{f"env.kwargs.{key}": repr(value) for key, value in kwargs.items()}}
    lines = [f"{path} = {value}" for path, value in {**options, **(limits or {})}.items()]
    (directory / "config.toml").write_text("\n".join(lines) + "\n")
    return Running(directory, "doctor", "config.toml")


def findings(said: str) -> list[tuple[str, str, str]]:
    """Return level, topic and message of each finding."""
    return re.findall(r"^  (ok|warning|error) +(\S+): (.*)$", said, re.M)


def ended(started: Running) -> list[tuple[str, str, str]]:
    """Wait for an end that is told as one of a bad environment, with no process left; returns the findings."""
    with started:
        result = started.end(60)
        assert started.survivors() == []
    assert result.returncode == 5, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    found = findings(result.stdout)
    assert [level for level, _, _ in found].count("error") == 1, result.stdout
    assert "\n1 error, " in result.stdout
    return found


def line_of(file: Path, text: str) -> str:
    """Return `file:line` of the one line that is `text`."""
    (number,) = (i for i, line in enumerate(file.read_text().splitlines(), 1) if line.strip() == text)
    return f"{file}:{number}"


ABORT, HANG = line_of(RUDE, "os.abort()"), line_of(TOY, "threading.Event().wait()")


@pytest.mark.parametrize(
    ("where", "topic", "before", "doing"),
    [
        ("init", "build", [], "imported and built"),
        ("reset", "stepping", [], "reset for the first time"),
        ("step", "stepping", ["spaces"], "stepped"),
    ],
)
def test_doctor_env_that_aborts_tells_the_signal_and_the_line(tmp_path, where, topic, before, doing):
    *made, (_, at, message) = ended(doctor(tmp_path, "rude_envs:Leave", how="abort", where=where))
    assert at == topic
    assert f"was killed by SIGABRT while it was {doing}, at {ABORT} in _leave; training" in message
    assert [topic for _, topic, _ in made] == before


def test_doctor_env_that_exits_without_a_word_tells_the_code_and_what_it_was_doing(tmp_path):
    *made, (_, topic, message) = ended(doctor(tmp_path, "rude_envs:Leave", how="_exit"))
    assert topic == "stepping"
    assert "ended with exit code 7 while it was stepped;" in message
    assert [topic for _, topic, _ in made] == ["spaces"]


def test_doctor_env_killed_as_by_the_kernel_is_told_with_the_hint(tmp_path):
    _, (_, _, message) = ended(doctor(tmp_path, "rude_envs:Leave", how="kill"))
    assert "was killed by SIGKILL while it was stepped;" in message
    assert "memory ran out" in message


@pytest.mark.parametrize(("where", "topic"), [("init", "build"), ("step", "stepping")])
def test_doctor_sys_exit_of_an_env_is_an_error_like_any_other(tmp_path, where, topic):
    found = ended(doctor(tmp_path, "rude_envs:Leave", how="exit", where=where))
    (message,) = (text for level, at, text in found if (level, at) == ("error", topic))
    assert f"raised SystemExit: 7 at {line_of(RUDE, 'sys.exit(7)')}; training would stop there." in message
    if where == "step":
        assert {"vectorization", "autoreset", "truncation", "gymnasium"} <= {topic for _, topic, _ in found}


@pytest.mark.parametrize(
    ("where", "k", "topic", "doing", "limits"),
    [
        ("init", 0, "build", "imported and built", SHORT_START),
        ("reset", 0, "stepping", "reset for the first time", SHORT_START),
        ("step", 20, "stepping", "stepped", SHORT_CALL),
        ("reset", 3, "stepping", "stepped", SHORT_CALL),
    ],
)
def test_doctor_env_that_hangs_tells_the_limit_and_the_line(tmp_path, where, k, topic, doing, limits):
    *made, (_, at, message) = ended(doctor(tmp_path, "toy_envs:Hang", limits, where=where, k=k))
    assert at == topic
    ((option, limit_s),) = limits.items()
    assert f"No return within {option} = {limit_s} s while it was {doing}, at {HANG} in _hang." in message
    assert [topic for _, topic, _ in made] == ([] if limits is SHORT_START else ["spaces"])


def test_doctor_env_that_hangs_after_the_group_keeps_every_finding_made(tmp_path):
    found = ended(doctor(tmp_path, "toy_envs:Hang", SHORT_CALL, k=300, n=20))
    topics = [topic for _, topic, _ in found]
    assert topics[:4] == ["spaces", "stepping", "vectorization", "autoreset"]
    assert topics[-1] == "stepping"
    assert HANG in found[-1][2]


@pytest.mark.parametrize(("slow", "n"), [({"step_s": 0.02}, 40), ({"reset_s": 0.4}, 1000)])
def test_doctor_slow_calls_each_within_its_limit_are_no_hang(tmp_path, slow, n):
    """All steps of the group take longer than one may, and so do all resets of gymnasium's checker."""
    with doctor(tmp_path, "rude_envs:Slow", {**SHORT_START, **SHORT_CALL}, n=n, **slow) as started:
        result = started.end(60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "No return" not in result.stdout
    assert "gymnasium" in [topic for _, topic, _ in findings(result.stdout)]


@pytest.mark.parametrize(
    ("where", "topic", "doing"),
    [("close", "closing", "closed"), ("options", "gymnasium", "reset by gymnasium's checker")],
)
def test_doctor_call_that_no_run_needs_and_that_hangs_is_a_warning(tmp_path, where, topic, doing):
    with doctor(tmp_path, "rude_envs:HangApart", {**SHORT_START, **SHORT_CALL}, where=where) as started:
        result = started.end(60)
        assert started.survivors() == []
    assert result.returncode == 0, result.stdout + result.stderr
    level, at, message = findings(result.stdout)[-1]
    assert (level, at) == ("warning", topic)
    assert f"while it was {doing}, at {HANG} in _hang. Training does not depend on that" in message
    assert "run would" not in message


@pytest.mark.parametrize("env", ["ForkAndReturn", "ForkAndExit"])
def test_doctor_env_that_forks_is_found_and_its_copies_find_nothing(tmp_path, env):
    told = tmp_path / "told"
    with doctor(tmp_path, f"forking_envs:{env}", told=str(told)) as started:
        result = started.end(60)
        assert started.survivors() == []
    assert result.returncode == 0, result.stdout + result.stderr
    found = findings(result.stdout)
    assert len({(topic, message) for _, topic, message in found}) == len(found), result.stdout
    assert [level for level, topic, _ in found if topic == "forking"] == ["warning"]
    assert [topic for _, topic, _ in found].count("stepping") == 1
    assert len({line.split()[1] for line in told.read_text().splitlines()}) == 1, "no copy steps or closes an env"


def test_doctor_kills_what_a_hanging_env_started_in_a_session_of_its_own(tmp_path):
    with doctor(tmp_path, "forking_envs:HangWithDaemon", SHORT_CALL) as started:
        result = started.end(60)
        assert started.survivors() == []
    assert result.returncode == 5
    assert "No return within supervision.heartbeat_timeout_s" in result.stdout
    assert len([line for line in result.stdout.splitlines() if line.isdecimal()]) == 2, "two envs of a group"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("where", "doing"), [("step", "stepped"), ("reset", "reset for the first time")])
def test_doctor_stopped_while_an_env_hangs_says_where_it_is(tmp_path, number, code, where, doing):
    k, flag = {"step": 20, "reset": 0}[where], tmp_path / "hangs"
    with doctor(tmp_path, "rude_envs:TellHang", where=where, k=k, flag=str(flag)) as started:
        until(lambda: started.ended_or(flag.exists), "the env hangs")
        started.signal(number)
        result = started.end(30)
        assert started.survivors() == []
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stderr == (
        f"error: Stopped while the environment was {doing}, at {HANG} in _hang; the check is not complete.\n"
    )
    assert len(findings(result.stdout)) == (1 if where == "step" else 0)


def test_doctor_prints_each_finding_at_once(tmp_path):
    with doctor(tmp_path, "toy_envs:Hang") as started:
        until(lambda: started.ended_or(lambda: findings(started.out.read_text())), "the first finding")
        assert started.process.poll() is None
        assert [topic for _, topic, _ in findings(started.out.read_text())] == ["spaces"]
