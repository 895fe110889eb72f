"""Which processes a run has, and what each is told: its own settings and nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rltrain.config.machine import by_physical_core
from rltrain.config.schema import Config
from rltrain.supervisor.pinning import assign_cores

SERVER_THREADS = 1


@dataclass(frozen=True)
class RolePlan:
    """One process of a run.

    Args:
        name: `learner`, `inference`, `actor-0`, ..., `evaluator`.
        role: its role; also the module under `rltrain.workers`.
        row: its counter row.
        settings: what its `main` gets.
        needs_torch: whether it is forked from the zygote that has loaded torch.
        lanes: the lanes it owns (actors).
    """

    name: str
    role: str
    row: int
    settings: dict
    needs_torch: bool
    lanes: tuple[int, ...] = ()


def plan_roles(config: Config, checkpoint: str | None) -> list[RolePlan]:
    """Lay out the processes of a run in the order of their counter rows.

    Args:
        config: the resolved configuration.
        checkpoint: path to resume from, or None.
    """
    plans = [_learner(config, 0, checkpoint)]
    if config.pipeline.inference == "server":
        plans.append(_server(config, len(plans)))
    for index in range(num_actors(config)):
        plans.append(_actor(config, len(plans), index))
    if config.eval.every_env_steps is not None:
        plans.append(_evaluator(config, len(plans)))
    cores = _cores(config)
    for plan in plans:
        plan.settings.update(code_dir=config.run.code_dir, cores=cores.get(plan.name))
    return plans


def num_lanes(config: Config) -> int:
    """Return the number of env groups in the whole run."""
    return num_actors(config) * config.actors.groups_per_actor


def num_actors(config: Config) -> int:
    """Return the number of actor processes."""
    assert config.actors.num_actors != "auto", "the configuration is resolved"
    return config.actors.num_actors


def num_slots(config: Config) -> int:
    """Return the number of slots of the trajectory ring."""
    assert config.pipeline.num_slots != "auto", "the configuration is resolved"
    return config.pipeline.num_slots


def _cores(config: Config) -> dict[str, list[int]]:
    """Return the cores that each process is kept on; none is named where all may run on any."""
    if not config.pipeline.pin_cores:
        return {}
    threads = config.learner.num_threads
    assert threads != "auto", "the configuration is resolved"
    usable = by_physical_core(os.sched_getaffinity(0))
    return assign_cores(usable, threads, config.pipeline.inference == "server", num_actors(config))


def policy_settings(config: Config) -> dict:
    """What every process that runs the policy is told at boot."""
    return {
        "model": config.model_settings(),
        "normalize_obs": config.env.normalize_obs,
        "seed": config.run.seed,
        "device": config.server_device(),
        "cuda_graphs": config.pipeline.cuda_graphs,
        "precision": config.learner.precision,
    }


def _learner(config: Config, row: int, checkpoint: str | None) -> RolePlan:
    settings = {
        "config": config.model_dump(mode="json"),
        "counter_row": row,
        "resume": checkpoint,
        "num_threads": config.learner.num_threads,
        "device": config.learner.device,
        "num_lanes": num_lanes(config),
    }
    return RolePlan("learner", "learner", row, settings, needs_torch=True)


def _server(config: Config, row: int) -> RolePlan:
    pipeline = config.pipeline
    adapts_in_vain = pipeline.adaptive and pipeline.schedule != "async"
    batcher = {
        "max_batch_size": pipeline.max_batch_size,
        "preferred_batch_sizes": list(pipeline.preferred_batch_sizes),
        "max_queue_delay_us": 0 if adapts_in_vain else pipeline.max_queue_delay_us,
        "adaptive": pipeline.adaptive and not adapts_in_vain,
    }
    settings = {
        "counter_row": row,
        "batcher": batcher,
        "num_threads": SERVER_THREADS,
        "is_lockstep": pipeline.schedule != "async",
        "device_option": "learner.device" if pipeline.inference_device == "auto" else "pipeline.inference_device",
    }
    return RolePlan("inference", "inference", row, settings, needs_torch=True)


def _actor(config: Config, row: int, index: int) -> RolePlan:
    groups = config.actors.groups_per_actor
    settings = {
        "index": index,
        "env": config.env.model_dump(mode="json"),
        "seed": config.run.seed,
        "num_envs": config.actors.envs_per_group,
        "env_threads": config.actors.env_threads,
        "groups": groups,
        "schedule": config.pipeline.schedule,
        "when_full": config.pipeline.when_full,
        "inference": config.pipeline.inference,
        "counter_row": row,
        "life": 0,
    }
    lanes = tuple(range(index * groups, (index + 1) * groups))
    needs_torch = config.pipeline.inference == "local"
    return RolePlan(f"actor-{index}", "actor", row, settings, needs_torch, lanes)


def _evaluator(config: Config, row: int) -> RolePlan:
    settings = {
        "counter_row": row,
        "env": config.env.model_dump(mode="json"),
        "eval": config.eval.model_dump(mode="json"),
        "seed": config.run.seed,
    }
    return RolePlan("evaluator", "evaluator", row, settings, needs_torch=True)
