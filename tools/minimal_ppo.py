"""A minimal single-process PPO loop on CartPole-v1's own vector env: the floor that the pipeline must not be under.

    python tools/minimal_ppo.py [--num-envs 1024] [--threads 2] [--seconds 10] [--steps 32] [--minibatches 4]

Collect, compute advantages, one pass of minibatches, repeat: nothing is overlapped, nothing is copied that need not be.
Separate 2x64 tanh actor and critic. Prints env steps learned per second, without the first second.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import nn


def network(num_inputs: int, num_outputs: int) -> nn.Sequential:
    """Two hidden layers of 64."""
    return nn.Sequential(
        nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs)
    )


def collect(
    env: VectorEnv, obs: np.ndarray, actor: nn.Module, buffers: dict[str, torch.Tensor], num_steps: int
) -> np.ndarray:
    """Fill the buffers with `num_steps` of every env; returns the last observation."""
    with torch.inference_mode():
        for t in range(num_steps):
            rows = torch.from_numpy(obs)
            buffers["obs"][t] = rows
            logits = actor(rows).log_softmax(1)
            action = (torch.rand(len(obs)) < logits[:, 1].exp()).long()
            buffers["action"][t] = action
            buffers["logp"][t] = logits.gather(1, action[:, None])[:, 0]
            obs, reward, terminated, truncated, _ = env.step(action.numpy())
            buffers["reward"][t] = torch.from_numpy(reward)
            buffers["ended"][t] = torch.from_numpy(terminated | truncated)
            buffers["terminated"][t] = torch.from_numpy(terminated)
        buffers["obs"][num_steps] = torch.from_numpy(obs)
    return obs


def advantages(
    value: torch.Tensor, buffers: dict[str, torch.Tensor], discount: float = 0.99, gae_lambda: float = 0.95
) -> torch.Tensor:
    """Generalised advantage estimation; a row after an episode's end is a reset and is masked by the caller."""
    next_value = value[1:] * ~buffers["terminated"]
    delta = buffers["reward"] + discount * next_value - value[:-1]
    keep = discount * gae_lambda * ~buffers["ended"]
    advantage = torch.zeros_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + keep[t] * running
        advantage[t] = running
    return advantage


def learn(
    actor: nn.Module, critic: nn.Module, optimizer: torch.optim.Optimizer, buffers: dict[str, torch.Tensor],
    num_minibatches: int,
) -> None:
    """One pass."""
    num_steps = buffers["reward"].shape[0]
    with torch.inference_mode():
        value = critic(buffers["obs"].flatten(0, 1)).view(num_steps + 1, -1)
        advantage = advantages(value, buffers).flatten()
        target = advantage + value[:-1].flatten()
    obs, action, logp = buffers["obs"][:-1].flatten(0, 1), buffers["action"].flatten(), buffers["logp"].flatten()
    valid = torch.ones_like(buffers["ended"])
    valid[1:] = ~buffers["ended"][:-1]
    rows = valid.flatten().nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows))]
    for part in rows.chunk(num_minibatches):
        logits = actor(obs[part]).log_softmax(1)
        new_logp = logits.gather(1, action[part][:, None])[:, 0]
        ratio = (new_logp - logp[part]).exp()
        a = advantage[part]
        a = (a - a.mean()) / (a.std() + 1e-8)
        policy_loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        value_loss = (critic(obs[part])[:, 0] - target[part]).square().mean()
        entropy = -(logits.exp() * logits).sum(1).mean()
        optimizer.zero_grad()
        (policy_loss + 0.25 * value_loss - 0.01 * entropy).backward()
        torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
        optimizer.step()


def main() -> None:
    """Run the loop and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--minibatches", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    env = gymnasium.make_vec("CartPole-v1", num_envs=args.num_envs, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=0)
    actor, critic = network(4, 2), network(4, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3, fused=True)
    shape = (args.steps, args.num_envs)
    buffers = {
        "obs": torch.zeros(args.steps + 1, args.num_envs, 4),
        "action": torch.zeros(shape, dtype=torch.int64),
        "logp": torch.zeros(shape),
        "reward": torch.zeros(shape),
        "ended": torch.zeros(shape, dtype=torch.bool),
        "terminated": torch.zeros(shape, dtype=torch.bool),
    }
    began = time.perf_counter()
    measured_from: float | None = None
    steps = 0
    while (now := time.perf_counter()) - began < args.seconds:
        if measured_from is None and now - began > 1:
            measured_from, steps = now, 0
        obs = collect(env, obs, actor, buffers, args.steps)
        learn(actor, critic, optimizer, buffers, args.minibatches)
        valid = np.prod(shape) - int(buffers["ended"][:-1].sum())
        steps += int(valid)
    if measured_from is None:
        parser.error("--seconds must be more than 1: the first second is not measured")
    seconds = time.perf_counter() - measured_from
    print(json.dumps({"env_steps_per_s": steps / seconds, "num_envs": args.num_envs, "threads": args.threads}))


if __name__ == "__main__":
    main()
