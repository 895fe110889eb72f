"""The rules of the verdict: each looks at shares of time without `boot` and says whether its stage binds.

Pure. Asked in order by `verdict.py`, and the first that holds gives the name.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SYNC_SHARE = 0.10
MAX_SLOWDOWN = 1.25
MIN_STARVED = 0.10
MAX_COPY_SHARE = 0.15
MIN_READY_SHARE = 0.25
MIN_SLOT_WAIT = 0.25
MIN_GATED = 0.10
MAX_BUSY = 0.85
MAX_QUEUE_TO_SERVICE = 2.0
MIN_BATCH_DELAY = 0.05
"""Below this share the server as good as never waits for a fuller batch."""


@dataclass(frozen=True)
class Rule:
    """What one rule found.

    Args:
        name: of the stage.
        holds: whether it binds.
        closeness: measured figure over its bound; 1 is at the bound.
        evidence: the measured numbers.
        advice: what to change and the gain to expect.
    """

    name: str
    holds: bool
    closeness: float
    evidence: str
    advice: str


@dataclass(frozen=True)
class Shares:
    """What the rules ask about, shares without `boot`.

    Args:
        starved: the learner's wait for data.
        learner: state -> share.
        server: state -> share; empty without a server.
        actor: state -> share, mean over the actors.
        num_actors: that ran.
        num_computing: processes that compute: actors, server, learner.
        cores: usable ones, None when not known.
        ready_share: of the ring's slots.
        queue_p95_us: wait of a request, None when not measured.
        service_us: median, None when not measured.
        schedule: `sync`, `overlap` or `async`.
        is_replayed: whether the learner draws from a replay.
    """

    starved: float
    learner: dict[str, float]
    server: dict[str, float]
    actor: dict[str, float]
    num_actors: int
    num_computing: int
    cores: int | None
    ready_share: float
    queue_p95_us: float | None
    service_us: float | None
    schedule: str
    is_replayed: bool = False


def ask(shares: Shares, slowdown: tuple[float, float] | None) -> list[Rule]:
    """Return what every rule found, in the order in which they are asked; the last always holds.

    Args:
        shares: of the time.
        slowdown: of server and learner while both use one device; None when not measured.
    """
    contention = [] if slowdown is None else [_contention(slowdown)]
    others = (_copies, _replay, _learner, _prefetch, _staleness, _inference, _envs, _batching)
    return [_weight_sync(shares), *contention, *(rule(shares) for rule in others)]


def _weight_sync(s: Shares) -> Rule:
    publishing = s.learner.get("publish", 0.0)
    loading = max(s.server.get("load_weights", 0.0), s.actor.get("load_weights", 0.0))
    return Rule(
        "weight-sync-bound",
        publishing + loading > MAX_SYNC_SHARE,
        (publishing + loading) / MAX_SYNC_SHARE,
        f"publishing weights takes {_percent(publishing)}, loading them {_percent(loading)} of the time",
        f"larger batches, so fewer versions: up to {_gain(publishing + loading)}",
    )


def _contention(slowdown: tuple[float, float]) -> Rule:
    server, learner = slowdown
    return Rule(
        "device-contention",
        min(slowdown) >= MAX_SLOWDOWN,
        min(slowdown) / MAX_SLOWDOWN,
        f"while both use the device, inference is {server:.2f}x and the learner {learner:.2f}x slower than alone",
        "move inference to another device, or to the CPU",
    )


def _copies(s: Shares) -> Rule:
    exposed = s.learner.get("h2d", 0.0)
    share = exposed / max(1e-9, 1 - s.starved)
    return Rule(
        "copy-bound",
        s.starved < MIN_STARVED and share > MAX_COPY_SHARE,
        share / MAX_COPY_SHARE,
        f"copies that the learner waits for take {_percent(share)} of its step",
        f"hide them behind the update (smaller observations, uint8 instead of float): up to {_gain(exposed)}",
    )


def _replay(s: Shares) -> Rule:
    waiting, computing = s.learner.get("sample", 0.0), s.learner.get("update", 0.0)
    return Rule(
        "replay-bound",
        s.starved < MIN_STARVED and waiting > MAX_COPY_SHARE,
        waiting / MAX_COPY_SHARE,
        f"the learner waits for the replay (inserting, drawing, gathering) {_percent(waiting)} and computes "
        f"{_percent(computing)} of the time",
        f"a core for drawing ahead (replay.prefetch), or larger batches with fewer updates: up to {_gain(waiting)}",
    )


def _learner(s: Shares) -> Rule:
    computing = s.learner.get("update", 0.0)
    held_back = s.actor.get("wait_slot", 0.0) + s.actor.get("wait_weights", 0.0)
    gain = f"a learner twice as fast: up to {_gain(min(0.5, held_back))}"
    if held_back < 0.05:
        gain = "actors are hardly held back, so they bind next"
    less = "fewer epochs, a smaller network"
    if s.is_replayed:
        less = "fewer updates (replay.updates_per_env_step), a smaller replay.batch_size or network"
    return Rule(
        "learner-bound",
        s.starved < MIN_STARVED,
        (1 - s.starved) / (1 - MIN_STARVED),
        f"the learner computes {_percent(computing)} and waits for data {_percent(s.starved)} of the time",
        f"{less} or a faster device; {gain}",
    )


def _prefetch(s: Shares) -> Rule:
    blocked = s.actor.get("wait_slot", 0.0)
    closeness = max(s.ready_share / MIN_READY_SHARE, blocked / MIN_SLOT_WAIT)
    return Rule(
        "prefetch-bound",
        s.starved >= MIN_STARVED and closeness >= 1,
        closeness,
        f"learner starved {_percent(s.starved)} while {_percent(s.ready_share)} of the slots hold data and actors "
        f"wait {_percent(blocked)} for a free one",
        f"more pipeline.num_slots, or a core for the prefetch thread: up to {_gain(s.starved)}",
    )


def _staleness(s: Shares) -> Rule:
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
        change = 'pipeline.schedule = "async"' if s.schedule == "overlap" else "a larger pipeline.max_policy_lag"
        advice = f"{change}: up to {_gain(min(gated, s.starved))}"
    holds = s.starved >= MIN_STARVED and gated >= MIN_GATED
    return Rule("staleness-gated", holds, gated / MIN_GATED, evidence, advice)


def _inference(s: Shares) -> Rule:
    if not s.server:
        forward, stepping = s.actor.get("forward", 0.0), s.actor.get("env_step", 0.0)
        return Rule(
            "inference-bound", forward > stepping, forward / max(1e-9, stepping),
            f"learner starved {_percent(s.starved)}: actors run the policy {_percent(forward)} and step envs "
            f"{_percent(stepping)} of the time",
            _by_design(s, f'a smaller network, or pipeline.inference = "server"; {_more_actors(s)}'),
        )
    busy = _busy(s)
    queue_ratio = s.queue_p95_us / s.service_us if s.queue_p95_us and s.service_us else 0.0
    # A request also waits out the batch window while the server idles: only a busy server makes a queue.
    is_queueing = queue_ratio > MAX_QUEUE_TO_SERVICE and busy > 0.5
    closeness = max(busy / MAX_BUSY, queue_ratio / MAX_QUEUE_TO_SERVICE if busy > 0.5 else 0.0)
    queue = f", queue p95 {s.queue_p95_us:,.0f} us at a service of {s.service_us:,.0f} us" if queue_ratio else ""
    return Rule(
        "inference-bound", busy > MAX_BUSY or is_queueing, closeness,
        f"learner starved {_percent(s.starved)}: inference busy {_percent(busy)}{queue}",
        _by_design(s, f"more envs_per_group (larger batches) or a faster device: up to {_gain(s.starved)}"),
    )


def _envs(s: Shares) -> Rule:
    stepping = s.actor.get("env_step", 0.0)
    largest_other = max((share for state, share in s.actor.items() if state != "env_step"), default=0.0)
    # Without a server there are no batches to wait for, so what is left is the actors' own work.
    return Rule(
        "env-bound", stepping >= largest_other or not s.server, stepping / max(1e-9, largest_other),
        f"learner starved {_percent(s.starved)}: actors step envs {_percent(stepping)} of the time",
        _by_design(s, _more_actors(s)),
    )


def _more_actors(s: Shares) -> str:
    """How many more there is room for and what they would bring, or that there is no room."""
    num_more = max(1, round(s.num_actors / 3))
    given = ", given free cores"
    if s.cores is not None:
        num_free = s.cores - s.num_computing
        if num_free <= 0:
            return f"{_cores(s)}, so more actors bring nothing: a faster env, or more cores"
        num_more, given = min(num_more, num_free), f" ({num_free} free core{'s' if num_free > 1 else ''})"
    gain = min((s.num_actors + num_more) / s.num_actors, 1 / max(0.1, 1 - s.starved))
    return f"{num_more} more actor{'s' if num_more > 1 else ''}{given}: about {gain:.1f}x"


def _batching(s: Shares) -> Rule:
    waiting, stepping = s.actor.get("wait_action", 0.0), s.actor.get("env_step", 0.0)
    delay = s.server.get("batch_delay", 0.0)
    gain = _gain(min(waiting, s.starved))
    evidence = f"learner starved {_percent(s.starved)}: actors wait {_percent(waiting)} for actions"
    if delay >= MIN_BATCH_DELAY:
        evidence += f" while the server delays batches {_percent(delay)} of the time"
        change = "a shorter max_queue_delay_us" if delay > 0.2 else "more groups_per_actor"
        advice = f"{change}: up to {gain}"
    else:
        evidence += f" although the server is busy only {_percent(_busy(s))}: hand-overs between processes bind"
        advice = "more envs_per_group (more work for each hand-over)"
        if s.cores is not None and s.num_computing > s.cores:
            evidence += f" ({_cores(s)})"
            advice += ', or pipeline.inference = "local" for a small policy on few cores'
        else:
            advice += f": up to {gain}"
    return Rule("batching-bound", True, waiting / max(1e-9, stepping), evidence, _by_design(s, advice))


def _busy(s: Shares) -> float:
    """Share of the time in which the server works."""
    return 1 - s.server.get("wait_request", 0.0) - s.server.get("batch_delay", 0.0)


def _cores(s: Shares) -> str:
    return f"{s.num_computing} processes compute on {s.cores} core{'' if s.cores == 1 else 's'}"


def _by_design(s: Shares, advice: str) -> str:
    """In `sync` part of the starving is the schedule's own, whatever else binds."""
    return f"{advice}; schedule sync waits by design, overlap does not" if s.schedule == "sync" else advice


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gain(saved_share: float) -> str:
    """What saving this share of the time would bring."""
    return f"{1 / max(0.1, 1 - saved_share):.1f}x"
