"""RLlib: PPO on its new API stack. Settings: `num_envs`, `runners` (0: in the main process), `threads`."""

from __future__ import annotations

from typing import Any

import torch
from meter import Meter, read_job
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def make_pong(config: Any) -> Any:
    """Make Pong with RLlib's own preprocessing."""
    import ale_py  # noqa: F401 - names the envs
    import gymnasium
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def configuration(job: dict[str, Any]) -> Any:
    """Return the algorithm's configuration."""
    runners, num_envs = job["runners"], job["num_envs"]
    config = (
        PPOConfig()
        .framework("torch")
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=num_envs // max(1, runners))
        .learners(num_learners=0)
        .debugging(seed=job["seed"], log_level="ERROR")
        .reporting(metrics_num_episodes_for_smoothing=100)
    )
    if job["work"] == "pong":
        from ray.tune.registry import register_env

        register_env("pong", make_pong)
        config = config.environment("pong", clip_rewards=True)
        model = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]], conv_activation="relu", head_fcnet_hiddens=[512],
            vf_share_layers=True,
        )  # fmt: skip
    else:
        config = config.environment("CartPole-v1")
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    if job["to_target"]:  # the values of RLlib's tuned example
        model = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
        return config.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(model_config=model)
    rows = num_envs * job["fragment_length"]
    return config.env_runners(rollout_fragment_length=job["fragment_length"]).training(
        train_batch_size_per_learner=rows, minibatch_size=rows // job["num_minibatches"], num_epochs=1
    ).rl_module(model_config=model)  # fmt: skip


def main() -> None:
    """Train."""
    import ray

    job = read_job()
    torch.set_num_threads(job["threads"])
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=job["runners"] + 1)
    algorithm = configuration(job).build_algo()
    meter = Meter(job)
    is_done = False
    while not is_done:
        found = algorithm.train()["env_runners"]
        has_all = found.get("num_episodes_lifetime", 0) >= 100  # before, the mean is of fewer
        mean = found.get("episode_return_mean") if has_all else None
        is_done = meter.learned(int(found["num_env_steps_sampled_lifetime"]), mean)
    meter.report()
    ray.shutdown()


if __name__ == "__main__":
    main()
