"""Sample Factory: APPO through `run_rl`'s runner. Settings: `num_envs`, `workers`, `mode` (async, sync, serial)."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium
from meter import Meter, read_job
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


class Watch(AlgoObserver):
    """Tells the meter after each batch."""

    def __init__(self, meter: Meter):
        self._meter = meter

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """Called by the runner; its count of env steps is that of the batch before, which a rate does not mind."""
        returns = list(runner.policy_avg_stats.get("reward", [[]])[0])
        mean = sum(returns) / len(returns) if len(returns) >= 100 else None
        if self._meter.learned(sum(runner.env_steps.values()), mean):
            self._meter.finish()


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """Make an env by its id; Pong with the usual preprocessing."""
    if name != "ALE/Pong-v5":
        return gymnasium.make(name, render_mode=render_mode)
    from ale_py.registration import register_v5_envs

    register_v5_envs()  # type: ignore[no-untyped-call]  # ale_py does it by itself only where Gymnasium is new
    env = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0, render_mode=render_mode)
    env = gymnasium.wrappers.AtariPreprocessing(env)
    env = gymnasium.wrappers.FrameStack(env, 4)
    return gymnasium.wrappers.TransformReward(NumpyFrames(env), lambda reward: max(-1.0, min(1.0, float(reward))))


class NumpyFrames(gymnasium.ObservationWrapper):
    """Gymnasium's stack of frames as one array."""

    def observation(self, observation: Any) -> Any:
        """Copy the frames."""
        import numpy as np

        return np.asarray(observation)


def arguments(job: dict[str, Any], folder: str) -> list[str]:
    """Return the command line of Sample Factory."""
    is_pong = job["work"] == "pong"
    workers = job["workers"]
    options: dict[str, Any] = {
        "algo": "APPO", "env": "ALE/Pong-v5" if is_pong else "CartPole-v1", "experiment": "peers", "train_dir": folder,
        "device": "cpu", "seed": job["seed"], "use_rnn": False, "recurrence": 1, "with_vtrace": False,
        "summaries_use_frameskip": False, "use_env_info_cache": False, "stats_avg": 100,
        "save_every_sec": 10**6, "save_best_every_sec": 10**6, "decorrelate_experience_max_seconds": 0,
        "train_for_env_steps": 10**12, "num_workers": workers, "num_envs_per_worker": job["num_envs"] // workers,
        "async_rl": job["mode"] == "async", "serial_mode": job["mode"] == "serial",
        "worker_num_splits": 2 if job["num_envs"] // workers % 2 == 0 else 1,
    }  # fmt: skip
    if job["to_target"]:  # the values of sf_examples/train_gym_env.py
        options |= {"policy_workers_per_policy": 2, "batch_size": 512, "reward_scale": 0.1}
    else:
        rows = job["num_envs"] * job["fragment_length"]
        options |= {
            "rollout": job["fragment_length"], "batch_size": rows // job["num_minibatches"],
            "num_batches_per_epoch": job["num_minibatches"], "num_epochs": 1,
        }  # fmt: skip
    if is_pong:
        options |= {"encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0, "nonlinearity": "relu"}
    elif not job["to_target"]:
        options |= {"nonlinearity": "tanh", "actor_critic_share_weights": False, "normalize_input": False}
    written = [f"--{name}={value}" for name, value in options.items()]
    return written if is_pong or job["to_target"] else [*written, "--encoder_mlp_layers", "64", "64"]


def main() -> None:
    """Train."""
    job = read_job()
    register_env("CartPole-v1", make_env)
    register_env("ALE/Pong-v5", make_env)
    with tempfile.TemporaryDirectory() as folder:
        written = arguments(job, folder)
        parser, _ = parse_sf_args(argv=written)
        _, runner = make_runner(parse_full_cfg(parser, written))
        meter = Meter(job)
        runner.register_observer(Watch(meter))
        if runner.init() == 0:
            runner.run()
        meter.report()


if __name__ == "__main__":
    main()
