"""What the end of a process is told as, in words. No process."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rltrain.supervisor.deaths import consequence, why_it_ended
from rltrain.supervisor.stop_signals import StopSignals

NOTE = "In step(): environment 'my:Env', env index 3 (seed 5), episode 1, step 60 (step 60 of this env), action 1."


def test_death_of_the_learner_says_where_to_and_what_is_lost(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    told = consequence("learner", folder, 566_913)
    assert told == "There is no checkpoint yet: 566,913 env steps are lost, and every process begins again"
    with zipfile.ZipFile(folder / "checkpoint-000000500000.pt", "w") as whole:
        whole.writestr("state", b"0")
    told = consequence("learner", folder, 566_913)
    assert told == "Every process goes back to the checkpoint of 500,000 env steps; 66,913 env steps are lost"


def test_exception_of_an_env_is_told_with_its_place():
    error = {"kind": "ValueError", "message": "my bug\nin two lines", "notes": [NOTE]}
    child = SimpleNamespace(error=error)
    assert why_it_ended(child) == f"ValueError: my bug | {NOTE.removesuffix('.')}"


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Whoever started this process may have had it ignore some, as `nohup` and a shell's `&` do."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(
    ("names", "is_urgent"),
    [("HUP", False), ("HUP HUP", False), ("INT HUP", False), ("INT INT", True), ("HUP TERM", True), ("QUIT", True)],
)
def test_second_signal_is_urgent_unless_a_closing_terminal_sent_it(names, is_urgent):
    signals = StopSignals()
    try:
        for name in names.split():
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
        assert signals.is_urgent is is_urgent
    finally:
        signals.release()
