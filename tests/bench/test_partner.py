"""The other process of a bench: orders and answers, its death, its silence."""

from __future__ import annotations

import os
import signal

import pytest

from rltrain.bench.partner import Partner, PartnerError
from rltrain.bench.ring_sides import arena_of


def partner(arena, settings):
    """What the tests' partner answers: one of the arena's slots, or how it ends."""

    def answer(order):
        if order["do"] == "die":
            raise ValueError("broken on purpose")
        if order["do"] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return {"pid": os.getpid(), "slots": arena.layout.num_slots, "told": settings["told"]}

    return answer


@pytest.fixture
def other():
    arena = arena_of(None)
    with Partner("tests.bench.test_partner", arena, {"told": 3}) as started:
        yield started
    arena.close()


def test_partner_asked_answers_from_another_process_on_the_same_arena(other):
    other.ask(do="say")
    answer = other.answer(20)
    assert answer["pid"] != os.getpid()
    assert (answer["slots"], answer["told"]) == (16, 3)
    other.check()
    other.close()
    with pytest.raises(ProcessLookupError):
        os.kill(answer["pid"], 0)


def test_partner_that_dies_is_told_of_with_what_it_wrote(other):
    other.ask(do="die")
    with pytest.raises(PartnerError, match=r"(?s)exit code 1.*broken on purpose"):
        other.answer(20)
    with pytest.raises(PartnerError, match="exit code 1"):
        other.check()


def test_partner_that_is_silent_is_given_up(other):
    other.ask(do="stop")
    with pytest.raises(PartnerError, match=r"did not answer within 0\.1 s"):
        other.answer(0.1)


def test_partner_that_cannot_start_is_told_of():
    arena = arena_of(None)
    with pytest.raises(PartnerError, match="No module named 'nowhere'"):
        Partner("nowhere", arena, {})
    arena.close()
