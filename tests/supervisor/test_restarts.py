"""When a dead process is started again, by hand."""

from __future__ import annotations

from rltrain.supervisor.restarts import HEALTHY_S, STEADY_S, GiveUp, Restart, Restarts


def test_restarts_after_boot_failure_gives_up_at_once():
    decision = Restarts(max_restarts=3, backoff_s=0.5).after_death("actor 2", 10.0, None, may_differ=False)
    assert isinstance(decision, GiveUp)
    assert "actor 2" in decision.reason


def test_restarts_back_to_back_begin_at_once_then_double_the_wait_up_to_thirty_seconds():
    restarts = Restarts(max_restarts=9, backoff_s=0.5)
    waits = [restarts.after_death("actor 0", 100.0, 100.0).at_s - 100.0 for _ in range(9)]
    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_restarts_beyond_the_budget_give_up_and_name_the_option():
    restarts = Restarts(max_restarts=2, backoff_s=1)
    assert restarts.after_death("actor 0", 0.0, ready_s=0.0) == Restart(0.0)
    assert restarts.after_death("actor 0", 5.0, ready_s=1.0) == Restart(6.0)
    decision = restarts.after_death("actor 0", 9.0, ready_s=7.0)
    assert isinstance(decision, GiveUp)
    assert decision.num_deaths == 3
    assert "died 3 times" in decision.reason
    assert "supervision.max_restarts = 2" in decision.reason


def test_restarts_of_two_processes_have_budgets_of_their_own():
    restarts = Restarts(max_restarts=1, backoff_s=1)
    assert restarts.after_death("actor 0", 0.0, ready_s=0.0) == Restart(0.0)
    assert restarts.after_death("actor 1", 0.0, ready_s=0.0) == Restart(0.0)
    assert isinstance(restarts.after_death("actor 0", 2.0, ready_s=0.0), GiveUp)


def test_restarts_after_a_healthy_stretch_have_the_whole_budget_again():
    restarts = Restarts(max_restarts=1, backoff_s=1)
    restarts.after_death("actor 0", 0.0, ready_s=0.0)
    assert restarts.after_death("actor 0", 1.0 + HEALTHY_S, ready_s=0.0) == Restart(1.0 + HEALTHY_S)
    assert isinstance(restarts.after_death("actor 0", 2 * HEALTHY_S, ready_s=0.0), GiveUp)


def test_restarts_of_a_process_that_ran_steadily_in_between_come_at_once():
    """What counts is the time since it was ready, however long it took to start; one that never was did not run."""
    restarts = Restarts(max_restarts=99, backoff_s=1)
    lives = [(100.0, 50.0), (101.0, 100.5), (200.0, 199.0), (300.0, None), (400.0, 400.0 - STEADY_S), (420.0, 419.0)]
    waits = [restarts.after_death("actor 0", died_s, ready_s).at_s - died_s for died_s, ready_s in lives]
    assert waits == [0, 1, 2, 4, 0, 1]


def test_restarts_with_budget_zero_give_up_at_the_first_death():
    assert isinstance(Restarts(max_restarts=0, backoff_s=1).after_death("server", 0.0, ready_s=0.0), GiveUp)
