"""The verdict: which stage binds the speed of a run, by seven rules over a steady window, with the numbers.

Pure. The rules are asked in order and the first that holds gives the name; the one nearest to its bound among the
others is the runner-up. Shares leave out `boot`. Pass a window of about ten seconds (`Ledger.window`), or the total
of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.telemetry.sample import Sample

MIN_STEADY_S = 1.0
"""Least time after booting, in seconds, of learner and actors before anything is said."""
MAX_SYNC_SHARE = 0.10
MAX_SLOWDOWN = 1.25
MIN_STARVED = 0.10
MAX_COPY_SHARE = 0.15
MIN_READY_SHARE = 0.25
MIN_SLOT_WAIT = 0.25
MIN_GATED = 0.10
MAX_BUSY = 0.85
MAX_QUEUE_TO_SERVICE = 2.0


@dataclass(frozen=True)
class Verdict:
    """What binds.

    Args:
        name: `warming-up`, `weight-sync-bound`, `device-contention`, `copy-bound`, `learner-bound`,
            `prefetch-bound`, `staleness-gated`, `inference-bound`, `env-bound` or `batching-bound`.
        line: name, evidence and advice in one line.
        evidence: the measured numbers that the name rests on.
        runner_up: name of the rule that comes next, or None.
        advice: what to change and the gain to expect.
    """

    name: str
    line: str
    evidence: str
    runner_up: str | None
    advice: str


@dataclass(frozen=True)
class _Rule:
    name: str
    holds: bool
    closeness: float
    """Measured figure over its bound; 1 is at the bound."""
    evidence: str
    advice: str


@dataclass(frozen=True)
class _Shares:
    """The shares that the rules ask about, without `boot`."""

    starved: float
    learner: dict[str, float]
    server: dict[str, float]
    actor: dict[str, float]
    num_actors: int
    ready_share: float
    queue_p95_us: float | None
    service_us: float | None
    schedule: str


def judge(sample: Sample, schedule: str, slowdown: tuple[float, float] | None = None) -> Verdict:
    """Name the stage that binds.

    Args:
        sample: over a steady window.
        schedule: `sync`, `overlap` or `async`.
        slowdown: of server and learner while both use one device, each as a multiple of its time alone; None when
            that was not measured.
    """
    learner, steady_learner = _without_boot(sample.role_shares("learner"))
    actor, steady_actor = _without_boot(sample.role_shares("actor"))
    server, _ = _without_boot(sample.role_shares("inference"))
    steady_s = sample.interval_s * min(steady_learner, steady_actor)
    if steady_s < MIN_STEADY_S or not learner or not actor:
        evidence = f"{steady_s:.1f} s of steady running so far"
        return Verdict("warming-up", f"warming-up: {evidence}", evidence, None, "")
    num_slots = sum(sample.ring.values())
    shares = _Shares(
        starved=learner.get("wait_data", 0.0),
        learner=learner,
        server=server,
        actor=actor,
        num_actors=len(sample.of_role("actor")),
        ready_share=sample.ring.get("ready", 0) / num_slots if num_slots else 0.0,
        queue_p95_us=sample.queue_delay_us_p95,
        service_us=sample.service_us_p50,
        schedule=schedule,
    )
    rules = [_weight_sync(shares)]
    if slowdown is not None:
        rules.append(_contention(slowdown))
    rules += [rule(shares) for rule in (_copies, _learner, _prefetch, _staleness, _inference, _envs, _batching)]
    chosen = next(rule for rule in rules if rule.holds)
    others = [rule for rule in rules if rule.name != chosen.name]
    runner_up = max(others, key=lambda rule: rule.closeness)
    return Verdict(
        chosen.name, f"{chosen.name}: {chosen.evidence}; {chosen.advice}", chosen.evidence,
        runner_up.name if runner_up.closeness > 0 else None, chosen.advice,
    )


# -- the rules, in order --------------------------------------------------------------------------------------------


def _weight_sync(s: _Shares) -> _Rule:
    publishing = s.learner.get("publish", 0.0)
    loading = max(s.server.get("load_weights", 0.0), s.actor.get("load_weights", 0.0))
    return _Rule(
        "weight-sync-bound",
        publishing + loading > MAX_SYNC_SHARE,
        (publishing + loading) / MAX_SYNC_SHARE,
        f"publishing weights takes {_percent(publishing)}, loading them {_percent(loading)} of the time",
        f"larger batches, so fewer versions: up to {_gain(publishing + loading)}",
    )


def _contention(slowdown: tuple[float, float]) -> _Rule:
    server, learner = slowdown
    return _Rule(
        "device-contention",
        min(slowdown) >= MAX_SLOWDOWN,
        min(slowdown) / MAX_SLOWDOWN,
        f"while both use the device, inference is {server:.2f}x and the learner {learner:.2f}x slower than alone",
        "move inference to another device, or to the CPU",
    )


def _copies(s: _Shares) -> _Rule:
    exposed = s.learner.get("gather", 0.0) + s.learner.get("h2d", 0.0)
    share = exposed / max(1e-9, 1 - s.starved)
    return _Rule(
        "copy-bound",
        s.starved < MIN_STARVED and share > MAX_COPY_SHARE,
        share / MAX_COPY_SHARE,
        f"copies that the learner waits for take {_percent(share)} of its step",
        f"hide them behind the update (smaller observations, uint8 instead of float): up to {_gain(exposed)}",
    )


def _learner(s: _Shares) -> _Rule:
    computing = s.learner.get("update", 0.0)
    held_back = s.actor.get("wait_slot", 0.0) + s.actor.get("wait_weights", 0.0)
    gain = f"a learner twice as fast: up to {_gain(min(0.5, held_back))}"
    if held_back < 0.05:
        gain = "actors are hardly held back, so they bind next"
    return _Rule(
        "learner-bound",
        s.starved < MIN_STARVED,
        (1 - s.starved) / (1 - MIN_STARVED),
        f"the learner computes {_percent(computing)} and waits for data {_percent(s.starved)} of the time",
        f"fewer epochs, a smaller network or a faster device; {gain}",
    )


def _prefetch(s: _Shares) -> _Rule:
    blocked = s.actor.get("wait_slot", 0.0)
    closeness = max(s.ready_share / MIN_READY_SHARE, blocked / MIN_SLOT_WAIT)
    return _Rule(
        "prefetch-bound",
        s.starved >= MIN_STARVED and closeness >= 1,
        closeness,
        f"learner starved {_percent(s.starved)} while {_percent(s.ready_share)} of the slots hold data and actors "
        f"wait {_percent(blocked)} for a free one",
        f"more pipeline.num_slots, or a core for the prefetch thread: up to {_gain(s.starved)}",
    )


def _staleness(s: _Shares) -> _Rule:
    gated = s.actor.get("wait_weights", 0.0)
    if s.schedule == "sync":
        busy = 1 - s.starved
        evidence = (
            f"schedule sync makes the stages wait by design: learning {_percent(busy)}, "
            f"collecting {_percent(s.starved)} of the time"
        )
        advice = f'pipeline.schedule = "overlap": up to {_gain(min(busy, s.starved))}'
    else:
        evidence = f"actors wait {_percent(gated)} for newer weights, learner starved {_percent(s.starved)}"
        advice = f'pipeline.schedule = "async", or a larger max_policy_lag there: up to {_gain(min(gated, s.starved))}'
    holds = s.starved >= MIN_STARVED and gated >= MIN_GATED
    return _Rule("staleness-gated", holds, gated / MIN_GATED, evidence, advice)


def _inference(s: _Shares) -> _Rule:
    if not s.server:
        forward, stepping = s.actor.get("forward", 0.0), s.actor.get("env_step", 0.0)
        return _Rule(
            "inference-bound", forward > max(0.5, stepping), forward / max(0.5, stepping),
            f"learner starved {_percent(s.starved)}: actors run the policy {_percent(forward)} and step envs "
            f"{_percent(stepping)} of the time",
            _by_design(s, 'more actors, a smaller network, or pipeline.inference = "server"'),
        )
    busy = 1 - s.server.get("wait_request", 0.0) - s.server.get("batch_delay", 0.0)
    queue_ratio = s.queue_p95_us / s.service_us if s.queue_p95_us and s.service_us else 0.0
    # A request also waits out the batch window while the server idles: only a busy server makes a queue.
    is_queueing = queue_ratio > MAX_QUEUE_TO_SERVICE and busy > 0.5
    closeness = max(busy / MAX_BUSY, queue_ratio / MAX_QUEUE_TO_SERVICE if busy > 0.5 else 0.0)
    queue = f", queue p95 {s.queue_p95_us:,.0f} us at a service of {s.service_us:,.0f} us" if queue_ratio else ""
    return _Rule(
        "inference-bound", busy > MAX_BUSY or is_queueing, closeness,
        f"learner starved {_percent(s.starved)}: inference busy {_percent(busy)}{queue}",
        _by_design(s, f"more envs_per_group (larger batches) or a faster device: up to {_gain(s.starved)}"),
    )


def _envs(s: _Shares) -> _Rule:
    stepping = s.actor.get("env_step", 0.0)
    largest_other = max((share for state, share in s.actor.items() if state != "env_step"), default=0.0)
    num_more = max(1, round(s.num_actors / 3))
    gain = min((s.num_actors + num_more) / s.num_actors, 1 / max(0.1, 1 - s.starved))
    return _Rule(
        "env-bound", stepping >= largest_other, stepping / max(1e-9, largest_other),
        f"learner starved {_percent(s.starved)}: actors step envs {_percent(stepping)} of the time",
        _by_design(s, f"{num_more} more actor{'s' if num_more > 1 else ''}, given free cores: about {gain:.1f}x"),
    )


def _batching(s: _Shares) -> _Rule:
    waiting, stepping = s.actor.get("wait_action", 0.0), s.actor.get("env_step", 0.0)
    delay = s.server.get("batch_delay", 0.0)
    change = "a shorter max_queue_delay_us" if delay > 0.2 else "more groups_per_actor"
    return _Rule(
        "batching-bound", True, waiting / max(1e-9, stepping),
        f"learner starved {_percent(s.starved)}: actors wait {_percent(waiting)} for actions while the server delays "
        f"batches {_percent(delay)} of the time",
        _by_design(s, f"{change}: up to {_gain(min(waiting, s.starved))}"),
    )


def _by_design(s: _Shares, advice: str) -> str:
    """In `sync` part of the starving is the schedule's own, whatever else binds."""
    return f"{advice}; schedule sync waits by design, overlap does not" if s.schedule == "sync" else advice


# -- numbers --------------------------------------------------------------------------------------------------------


def _without_boot(shares: dict[str, float]) -> tuple[dict[str, float], float]:
    """The shares of the time after booting, and that time's share."""
    steady = 1 - shares.get("boot", 0.0)
    if not shares or steady <= 0:
        return {}, 0.0
    return {state: share / steady for state, share in shares.items() if state != "boot"}, steady


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gain(saved_share: float) -> str:
    """What saving this share of the time would bring."""
    return f"{1 / max(0.1, 1 - saved_share):.1f}x"
