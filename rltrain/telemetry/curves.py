"""A sample as points of TensorBoard curves, named as in the table of metrics."""

from __future__ import annotations

from rltrain.telemetry.sample import Sample


def scalars(sample: Sample) -> dict[str, float]:
    """Return metric name -> value; figures that were not measured are left out."""
    values: dict[str, float | None] = {
        "throughput/env_steps_per_s": sample.env_steps_per_s,
        "throughput/updates_per_s": sample.updates_per_s,
        "throughput/updates": sample.updates,
        "throughput/policy_version": sample.policy_version,
        "inference/batch_size_mean_rows": sample.batch_size_mean_rows,
        "inference/padding_share": sample.padding_share,
        **{f"inference/fired_{reason}_share": share for reason, share in sample.fired_shares.items()},
        "inference/queue_delay_p50_us": sample.queue_delay_us_p50,
        "inference/queue_delay_p95_us": sample.queue_delay_us_p95,
        "inference/queue_delay_p99_us": sample.queue_delay_us_p99,
        "inference/service_p50_us": sample.service_us_p50,
        "inference/service_p95_us": sample.service_us_p95,
        "lag/policy_lag_p50_versions": sample.policy_lag_p50,
        "lag/policy_lag_p99_versions": sample.policy_lag_p99,
        "lag/dropped_env_steps": sample.dropped_env_steps,
        "lag/overwritten_fragments": sample.overwritten_fragments,
        "system/copy_share": sample.copy_share,
        "replay/size_transitions": sample.replay_transitions,
        "replay/sample_share": sample.sample_share,
        "system/restarts": sample.restarts,
        "system/bad_updates": sample.bad_updates,
    }
    values |= {f"ring/{state}_slots": slots for state, slots in sample.ring.items()}
    for role in dict.fromkeys(process.role for process in sample.processes):
        values |= {f"ledger/{role}/{state}": share for state, share in sample.role_shares(role).items()}
        members = [process for process in sample.processes if process.role == role]
        values[f"system/{role}_cpu_percent"] = _total([process.cpu_percent for process in members])
        values[f"system/{role}_rss_bytes"] = _total([process.rss_bytes for process in members])
    for gpu in sample.gpus:
        values[f"system/gpu{gpu.index}_utilisation_percent"] = gpu.utilisation_percent
        values[f"system/gpu{gpu.index}_memory_used_bytes"] = gpu.memory_used_bytes
        values[f"system/gpu{gpu.index}_power_w"] = gpu.power_w
    return {name: float(value) for name, value in values.items() if value is not None}


def _total(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None
