"""The verdict: which stage binds the speed of a run, by seven rules over a steady window, with the numbers.

Pure. The rules (`rules.py`) are asked in order and the first that holds gives the name; the one nearest to its bound
among the others is the runner-up. Shares leave out `boot`. `judge` takes a window of about ten seconds
(`Ledger.window`) of a run that goes on, after `silence` found no process that hangs; `judge_whole` the total of one
that has ended, whose processes owe no sign of life.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.telemetry.rules import Shares, ask
from rltrain.telemetry.sample import Sample

MIN_STEADY_S = 2.0
"""Least time after booting, in seconds, of learner and actors before anything is said."""
WARMING_UP, NONE, STALLED = "warming up", "no verdict", "stalled"
NOTICED_S = 10.0
"""Silence of a process that is told of, by the supervisor as here, and beside which nothing else matters."""


@dataclass(frozen=True)
class Verdict:
    """What binds.

    Args:
        name: `warming up`, `no verdict`, `stalled`, `weight-sync-bound`, `device-contention`, `copy-bound`,
            `learner-bound`, `prefetch-bound`, `staleness-gated`, `inference-bound`, `env-bound` or `batching-bound`.
        evidence: the measured numbers that the name rests on, or why there is no verdict; may be empty.
        runner_up: name of the rule that comes next, or None.
        advice: what to change and the gain to expect; may be empty.
    """

    name: str
    evidence: str = ""
    runner_up: str | None = None
    advice: str = ""

    @property
    def finding(self) -> str:
        """Name and evidence in one line."""
        return f"{self.name}: {self.evidence}" if self.evidence else self.name

    @property
    def line(self) -> str:
        """Name, evidence and advice in one line."""
        return f"{self.finding}; {self.advice}" if self.advice else self.finding


def silence(sample: Sample, is_learner_exempt: bool) -> Verdict | None:
    """Name the process that holds up a run that goes on, as it gives no sign of life; None where all do.

    Args:
        sample: up to now.
        is_learner_exempt: before its first update the learner may be compiling, without a sign of life.
    """
    exempt = ("evaluator", "learner") if is_learner_exempt else ("evaluator",)
    silent = [p for p in sample.processes if p.role not in exempt and p.silent_s >= NOTICED_S]
    if not silent:
        return None
    longest = max(silent, key=lambda process: process.silent_s)
    return Verdict(
        STALLED, f"{longest.name} gives no sign of life for {longest.silent_s:.0f} s, in state {longest.state}",
        advice="its log says where it is; what takes that long at once holds up all others",
    )


def judge(
    sample: Sample, schedule: str, slowdown: tuple[float, float] | None = None, cores: int | None = None
) -> Verdict:
    """Name the stage that binds.

    Args:
        sample: over a steady window.
        schedule: `sync`, `overlap` or `async`.
        slowdown: of server and learner while both use one device, each as a multiple of its time alone; None when
            that was not measured.
        cores: usable ones, None when not known.
    """
    learner, steady_learner = _without_boot(sample.role_shares("learner"))
    actor, steady_actor = _without_boot(sample.role_shares("actor"))
    server, _ = _without_boot(sample.role_shares("inference"))
    steady_s = sample.interval_s * min(steady_learner, steady_actor)
    if steady_s < MIN_STEADY_S or not learner or not actor:
        return Verdict(WARMING_UP)
    if not sample.env_steps_per_s and not learner.get("update"):
        return Verdict(NONE, "nothing was learned")
    num_slots = sum(sample.ring.values())
    shares = Shares(
        starved=learner.get("wait_data", 0.0),
        learner=learner,
        server=server,
        actor=actor,
        num_actors=len(sample.of_role("actor")),
        num_computing=sum(len(sample.of_role(role)) for role in ("actor", "inference", "learner")),
        cores=cores,
        ready_share=sample.ring.get("ready", 0) / num_slots if num_slots else 0.0,
        queue_p95_us=sample.queue_delay_us_p95,
        service_us=sample.service_us_p50,
        schedule=schedule,
        is_replayed=sample.replay_transitions is not None,
    )
    rules = ask(shares, slowdown)
    chosen = next(rule for rule in rules if rule.holds)
    runner_up = max((rule for rule in rules if rule.name != chosen.name), key=lambda rule: rule.closeness)
    return Verdict(
        chosen.name, chosen.evidence, runner_up.name if runner_up.closeness > 0 else None, chosen.advice
    )


def judge_whole(total: Sample, schedule: str, has_failed: bool, cores: int | None = None) -> Verdict:
    """Name what bound a run that has ended; `no verdict` with the reason where the figures say nothing.

    Args:
        total: of the ledger.
        schedule: as in `judge`.
        has_failed: whether the run failed.
        cores: as in `judge`.
    """
    if has_failed:
        return Verdict(NONE, "the run failed")
    if not total.env_steps_per_s:
        return Verdict(NONE, "nothing was learned")
    verdict = judge(total, schedule, cores=cores)
    if verdict.name == WARMING_UP:
        return Verdict(NONE, f"less than {MIN_STEADY_S:g} s of steady running")
    return verdict


def _without_boot(shares: dict[str, float]) -> tuple[dict[str, float], float]:
    """The shares of the time after booting, and that time's share."""
    steady = 1 - shares.get("boot", 0.0)
    if not shares or steady <= 0:
        return {}, 0.0
    return {state: share / steady for state, share in shares.items() if state != "boot"}, steady
