"""PufferLib: its trainer PuffeRL. Settings: `num_envs`, `vector` (serial, processes, native), `workers`, `threads`.

`native` is PufferLib's own CartPole in C, which the distribution pufferlib has and pufferlib-core has not. Runs with
both: their trainers have the same interface.
"""

from __future__ import annotations

import tempfile
from collections import deque
from typing import Any

import gymnasium
import pufferlib
import pufferlib.emulation
import pufferlib.pytorch
import pufferlib.vector
import torch
from meter import Meter, read_job
from pufferlib import pufferl
from torch import nn


class EpisodeReturn(gymnasium.Wrapper):
    """Puts the return of an episode into the info of its last step, where PuffeRL looks for statistics."""

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        self._return = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Add the reward up."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self._return += float(reward)
        return obs, reward, terminated, truncated, {"episode_return": self._return} if terminated or truncated else {}


def make_env(work: str, buf: Any = None, seed: int = 0) -> Any:
    """Make one Gymnasium env as PufferLib wants it."""
    if work == "cartpole":
        env = gymnasium.make("CartPole-v1")
    else:
        import ale_py  # noqa: F401 - names the envs

        env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
        env = gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), 4)
    return pufferlib.emulation.GymnasiumPufferEnv(env=EpisodeReturn(env), buf=buf, seed=seed)


class Mlp(nn.Module):
    """Actor and critic with two hidden layers of 64 each."""

    hidden_size = 64

    def __init__(self, num_obs: int, num_actions: int):
        super().__init__()
        self.actor, self.critic = self._layers(num_obs, num_actions), self._layers(num_obs, 1)

    @staticmethod
    def _layers(num_inputs: int, num_outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs)
        )

    def forward(self, observations: Any, state: Any = None) -> Any:
        """Logits and values."""
        return self.actor(observations.float()), self.critic(observations.float())

    forward_eval = forward


class NatureCnn(nn.Module):
    """The Nature CNN."""

    hidden_size = 512

    def __init__(self, num_actions: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(512, num_actions), nn.Linear(512, 1)

    def forward(self, observations: Any, state: Any = None) -> Any:
        """Logits and values."""
        hidden = self.body(observations.float() / 255)
        return self.actor(hidden), self.critic(hidden)

    forward_eval = forward


def make_vector(job: dict[str, Any]) -> Any:
    """Make the vector env."""
    if job["vector"] == "native":
        from pufferlib.ocean.cartpole.cartpole import Cartpole

        return pufferlib.vector.make(Cartpole, env_kwargs={"num_envs": job["num_envs"]}, backend=pufferlib.PufferEnv)
    options: dict[str, Any] = {"backend": pufferlib.vector.Serial}
    if job["vector"] == "processes":
        options = {"backend": pufferlib.vector.Multiprocessing, "num_workers": job["workers"], "overwork": True}
    return pufferlib.vector.make(
        make_env, env_kwargs={"work": job["work"]}, num_envs=job["num_envs"], **options
    )


def configuration(job: dict[str, Any], folder: str) -> dict[str, Any]:
    """PufferLib's defaults, with Adam, and what the job asks for."""
    config: dict[str, Any] = {
        "seed": job["seed"], "torch_deterministic": True, "cpu_offload": False, "device": "cpu", "optimizer": "adam",
        "anneal_lr": False, "precision": "float32", "total_timesteps": 10**9, "learning_rate": 1e-3, "gamma": 0.98,
        "gae_lambda": 0.9, "update_epochs": 1, "clip_coef": 0.2, "vf_coef": 2.0, "vf_clip_coef": 0.2,
        "max_grad_norm": 1.5, "ent_coef": 0.001, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8,
        "data_dir": folder, "checkpoint_interval": 10**9, "batch_size": "auto", "max_minibatch_size": 10**6,
        "compile": False, "compile_mode": "default", "compile_fullgraph": False, "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0, "prio_alpha": 0.8, "prio_beta0": 0.2, "use_rnn": False, "env": job["work"],
    }  # fmt: skip
    length = 32 if job["to_target"] else job["fragment_length"]
    parts = 4 if job["to_target"] else job["num_minibatches"]
    config |= {"bptt_horizon": length, "minibatch_size": job["num_envs"] * length // parts}
    if job["to_target"]:
        config |= {"learning_rate": 3e-3, "update_epochs": 4, "prio_alpha": 0.0, "vf_clip_coef": 10.0}
    return config


def main() -> None:
    """Train."""
    job = read_job()
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    vector = make_vector(job)
    num_actions = int(vector.single_action_space.n)
    policy = NatureCnn(num_actions) if job["work"] == "pong" else Mlp(4, num_actions)
    meter, returns = Meter(job), deque[float](maxlen=100)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pufferl.PuffeRL(configuration(job, folder), vector, policy)
        num_seen = 0
        is_done = False
        while not is_done:
            stats = trainer.evaluate()
            ended = stats.get("episode_return", [])
            num_seen = num_seen if num_seen <= len(ended) else 0  # the trainer begins a new list when it logs
            returns.extend(ended[num_seen:])
            num_seen = len(ended)
            trainer.train()
            mean = sum(returns) / len(returns) if len(returns) == returns.maxlen else None
            is_done = meter.learned(trainer.global_step, mean)
        meter.finish()


if __name__ == "__main__":
    main()
