"""The table of every metric that a run writes to TensorBoard: name, unit, meaning, writer.

A name is `group/name_unit`; `<...>` stands for one word. All curves are drawn over env steps learned from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Args:
        name: as TensorBoard shows it; `<role>`, `<state>` and `<index>` stand for one word.
        unit: of the value; `1` for a share or a ratio.
        meaning: what it says.
        writer: the process that measures it.
        kind: `scalar`, `histogram` or `text`.
    """

    name: str
    unit: str
    meaning: str
    writer: str
    kind: str = "scalar"

    def matches(self, name: str) -> bool:
        """Whether `name` is this metric, placeholders filled in."""
        parts = re.split(r"<[a-z]+>", self.name)
        return re.fullmatch(r"[a-z0-9_]+".join(re.escape(part) for part in parts), name) is not None


def _rows(writer: str, group: str, *rows: tuple[str, str, str], kind: str = "scalar") -> tuple[Metric, ...]:
    return tuple(Metric(f"{group}/{name}", unit, meaning, writer, kind) for name, unit, meaning in rows)


METRICS: tuple[Metric, ...] = (
    *_rows(
        "learner", "loss",
        ("policy_loss", "1", "policy loss, mean over the minibatches of one batch"),
        ("value_loss", "reward²", "value loss before its coefficient, mean over the minibatches"),
        ("entropy", "nats", "entropy of the policy, mean over rows"),
        ("approx_kl", "nats", "KL divergence from the behaviour policy, estimated as ratio - 1 - log(ratio)"),
        ("clip_fraction", "1", "part of the rows whose importance ratio is outside the clip"),
        ("explained_variance", "1", "1 - Var(target - value) / Var(target); 1 is a perfect critic"),
        ("grad_norm", "1", "norm of the gradient before clipping, mean over the minibatches; that of the critics"),
        ("ratio_deviation", "1", "mean |ratio - 1| of the first minibatch: how far the data is off-policy"),
        ("learning_rate", "1", "step size in force, after its schedule"),
        ("entropy_coef", "1", "weight of the entropy in force, after its schedule"),
        ("critic_loss", "reward²", "loss of the temporal-difference errors, weighted, of one update (dqn, sac, td3)"),
        ("actor_loss", "reward", "mean of what the actor lowers: minus value, for sac plus temperature * log-density"),
        ("td_error_mean", "reward", "mean size of the temporal-difference errors of one update, not weighted"),
        ("q_mean", "reward", "mean value of the actions taken; of the first critic for sac and td3"),
        ("actor_grad_norm", "1", "norm of the actor's gradient before clipping (sac, td3)"),
        ("temperature", "reward/nat", "weight of the entropy in force (sac)"),
        ("epsilon", "1", "probability of a random action, of the env that explores most (dqn)"),
    ),
    *_rows(
        "learner", "rollout",
        ("return_mean", "reward", "mean undiscounted raw return of the last run.target_window episodes"),
        ("episode_length_mean_steps", "env steps", "mean length of the same episodes"),
        ("episodes", "episodes", "episodes learned from since the start of training, resumed parts included"),
    ),
    *_rows(
        "evaluator", "eval",
        ("return_mean", "reward", "mean raw return of one evaluation, statistics frozen"),
        ("return_std", "reward", "standard deviation over the episodes of one evaluation"),
        ("episode_length_mean_steps", "env steps", "mean length of the episodes of one evaluation"),
        ("episodes", "episodes", "episodes in the evaluation"),
    ),
    *_rows(
        "supervisor", "throughput",
        ("env_steps_per_s", "env steps/s", "env steps learned from per second, at the latest batches"),
        ("updates_per_s", "updates/s", "optimiser steps per second, at the latest batches"),
        ("updates", "updates", "optimiser steps since the start of training"),
        ("policy_version", "versions", "weights published since the start of training"),
    ),
    *_rows(
        "supervisor", "ledger",
        ("<role>/<state>", "1", "share of wall time that the processes of a role spend in a state, mean over them"),
    ),
    *_rows(
        "supervisor", "replay",
        ("size_transitions", "transitions", "transitions in the replay that may be drawn"),
        ("sample_share", "1", "share of wall time in which batches are drawn from the replay, hidden or not"),
    ),
    *_rows(
        "supervisor", "ring",
        ("free_slots", "slots", "slots that an actor may claim"),
        ("writing_slots", "slots", "slots that actors are filling"),
        ("ready_slots", "slots", "slots that wait for the learner"),
        ("reading_slots", "slots", "slots that the prefetch thread copies from"),
    ),
    *_rows(
        "supervisor", "inference",
        ("batch_size_mean_rows", "rows", "rows of an inference batch, mean"),
        ("padding_share", "1", "rows of the batches that only fill them up to a size that is run"),
        ("fired_full_share", "1", "batches that fired because they were full"),
        ("fired_preferred_share", "1", "batches that fired at a preferred size"),
        ("fired_delay_share", "1", "batches that fired because their oldest request had waited long enough"),
        ("fired_all_waiting_share", "1", "batches that fired because every live group waited"),
        ("queue_delay_p50_us", "us", "wait of a request before its batch fires, median"),
        ("queue_delay_p95_us", "us", "the same, 95th percentile"),
        ("queue_delay_p99_us", "us", "the same, 99th percentile"),
        ("service_p50_us", "us", "time from firing a batch to its replies, median"),
        ("service_p95_us", "us", "the same, 95th percentile"),
    ),
    *_rows(
        "supervisor", "inference",
        ("batch_size_rows", "rows", "rows of an inference batch"),
        ("queue_delay_us", "us", "wait of a request before its batch fires"),
        ("service_us", "us", "time from firing a batch to its replies"),
        kind="histogram",
    ),
    *_rows(
        "supervisor", "lag",
        ("policy_lag_p50_versions", "versions", "learner version minus behaviour version when consumed, median"),
        ("policy_lag_p99_versions", "versions", "the same, 99th percentile"),
        ("dropped_env_steps", "env steps", "env steps dropped for being too old, since the start"),
        ("overwritten_fragments", "fragments", "fragments thrown away unread by overwrite_oldest, since the start"),
    ),
    *_rows(
        "supervisor", "lag",
        ("policy_lag_versions", "versions", "learner version minus behaviour version when consumed"),
        ("batch_fragments", "fragments", "fragments of a learner batch"),
        kind="histogram",
    ),
    *_rows(
        "supervisor", "rollout",
        ("episode_length_steps", "env steps", "length of the episodes that ended"),
        kind="histogram",
    ),
    *_rows(
        "supervisor", "system",
        ("<role>_cpu_percent", "%", "CPU use of a role's processes together; 100 is one core"),
        ("<role>_rss_bytes", "bytes", "resident memory of a role's processes together, shared pages in each"),
        ("copy_share", "1", "share of wall time that the prefetch thread spends in making batches, hidden or not"),
        ("restarts", "restarts", "restarts of processes since the start"),
        ("bad_updates", "updates", "updates skipped for a non-finite loss or gradient, since the start"),
        ("gpu<index>_utilisation_percent", "%", "time in which some kernel was resident, as NVML gives it"),
        ("gpu<index>_memory_used_bytes", "bytes", "GPU memory in use by all processes"),
        ("gpu<index>_power_w", "W", "power draw"),
    ),
    *_rows(
        "supervisor", "final",
        ("return_mean", "reward", "mean return at the end of the run, shown beside the hyperparameters"),
        ("env_steps", "env steps", "env steps learned from at the end of the run"),
        ("env_steps_per_s", "env steps/s", "mean over the run"),
        ("duration_s", "s", "wall time of the run"),
    ),
    *_rows(
        "supervisor", "run",
        ("config", "text", "the resolved configuration"),
        ("verdict", "text", "what bound the speed of the run, written at its end"),
        kind="text",
    ),
)


def metric_for(name: str, kind: str = "scalar") -> Metric | None:
    """Return the table's row for a written name, or None when the table has none."""
    return next((metric for metric in METRICS if metric.kind == kind and metric.matches(name)), None)


def as_markdown() -> str:
    """Return the table as Markdown."""
    lines = ["| name | kind | unit | meaning | writer |", "|---|---|---|---|---|"]
    for m in METRICS:
        meaning = m.meaning.replace("|", "\\|")
        lines.append(f"| `{m.name}` | {m.kind} | {m.unit} | {meaning} | {m.writer} |")
    return "\n".join(lines) + "\n"
