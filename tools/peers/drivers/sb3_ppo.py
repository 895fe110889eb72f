"""Stable-Baselines3: PPO on `make_vec_env` and `make_atari_env`. Settings: `num_envs`, `vector`, `threads`."""

from __future__ import annotations

from typing import Any

import torch
from meter import Meter, read_job
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

VECTORS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
ENDLESS = 10**12
ZOO_ENV_STEPS = 100_000
"""What RL Zoo trains on CartPole-v1; its schedules end there."""


class Watch(BaseCallback):
    """Tells the meter; a rollout starts where an update has ended."""

    def __init__(self, meter: Meter):
        super().__init__()
        self._meter, self._is_done = meter, False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            episodes = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = sum(episodes) / len(episodes) if len(episodes) == self.model.ep_info_buffer.maxlen else None
            self._is_done = self._meter.learned(self.num_timesteps, mean)

    def _on_step(self) -> bool:
        return not self._is_done


def zoo(env: Any, seed: int) -> Any:
    """Return PPO with the hyperparameters of RL Zoo for CartPole-v1."""
    return PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left, clip_range=lambda left: 0.2 * left, seed=seed, device="cpu",
    )  # fmt: skip


def main() -> None:
    """Train."""
    job = read_job()
    torch.set_num_threads(job["threads"])
    num_envs, vector = job["num_envs"], VECTORS[job["vector"]]
    if job["work"] == "pong":
        env = make_atari_env(
            "ale_py:ALE/Pong-v5", num_envs, seed=job["seed"], vec_env_cls=vector,
            env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
            wrapper_kwargs={"terminal_on_life_loss": False},
        )  # fmt: skip
        env = VecFrameStack(env, 4)
    else:
        env = make_vec_env("CartPole-v1", num_envs, seed=job["seed"], vec_env_cls=vector)
    if job["to_target"]:
        model, env_steps = zoo(env, job["seed"]), ZOO_ENV_STEPS
    else:
        rows = num_envs * job["fragment_length"]
        policy = "CnnPolicy" if job["work"] == "pong" else "MlpPolicy"
        model, env_steps = PPO(
            policy, env, n_steps=job["fragment_length"], batch_size=rows // job["num_minibatches"], n_epochs=1,
            seed=job["seed"], device="cpu",
        ), ENDLESS  # fmt: skip
    meter = Meter(job)
    model.learn(env_steps, callback=Watch(meter))
    meter.report()
    env.close()


if __name__ == "__main__":
    main()
