"""Options of the algorithms that learn from replay: what goes with them, and what the model is told."""

from __future__ import annotations

import json

import pytest

from rltrain.config.load import load
from rltrain.config.schema import Config
from rltrain.errors import ConfigError

ENV = "env.id=Test-v0"


def adjustments(*overrides):
    return load(None, [ENV, *overrides]).adjustments


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_normalised_rewards_are_refused_saying_why(name):
    with pytest.raises(ConfigError) as caught:
        load(None, [ENV, f"algo.name={name}", "env.normalize_reward=true"])
    (problem,) = caught.value.problems
    for part in ("env.normalize_reward = true", f'algo.name = "{name}"', "stored", "Accepted: false"):
        assert part in problem


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_own_network_is_refused_where_critics_must_fit_it(name):
    with pytest.raises(ConfigError) as caught:
        load(None, [ENV, f"algo.name={name}", "model.kind=my_file:make"])
    (problem,) = caught.value.problems
    for part in ('model.kind = "my_file:make"', f'algo.name = "{name}" cannot use', "auto, mlp", '"ppo" or "appo"'):
        assert part in problem
    load(None, [ENV, "algo.name=dqn", "model.kind=my_file:make"])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algo.name=sac", "model.initial_log_std=-1.0"], 'model.initial_log_std is not used: algo.name = "sac"'),
        (["algo.name=dqn", "model.separate_critic=true"], 'model.separate_critic is not used: algo.name = "dqn"'),
        (["algo.name=td3", "model.action_distribution=gaussian"], "model.action_distribution is not used"),
        (
            ["algo.name=dqn", "model.kind=my_file:make", "algo.dqn.dueling=true"],
            "algo.dqn.dueling is not used: model.kind",
        ),
        (
            ["algo.name=sac", "algo.sac.learn_temperature=false", "algo.sac.target_entropy=1.0"],
            "algo.sac.target_entropy is not used: algo.sac.learn_temperature is false",
        ),
    ],
)
def test_setting_without_effect_is_told(overrides, says):
    told = [sentence.replace(" (--set)", "") for sentence in adjustments(*overrides)]
    assert any(says in sentence for sentence in told), told


def test_setting_with_effect_is_not_told():
    assert adjustments("algo.name=sac", "algo.sac.target_entropy=1.0") == []
    assert adjustments("model.initial_log_std=-1.0", "model.separate_critic=true") == []
    assert adjustments("algo.name=dqn", "algo.dqn.dueling=true") == []


def settings(name, algo=None, **sections):
    return Config(env={"id": "Test-v0"}, algo={"name": name, name: algo or {}}, **sections).model_settings()


def test_model_settings_hold_the_section_and_what_the_algorithm_asks():
    assert settings("ppo")["policy"] == "actor_critic"
    assert settings("ppo")["hidden_sizes"] == [64, 64]
    dqn = settings("dqn", {"dueling": True})
    assert (dqn["policy"], dqn["dueling"], dqn["ladder_envs"]) == ("q_values", True, None)
    actors = {"num_actors": 2, "groups_per_actor": 3, "envs_per_group": 5}
    assert settings("dqn", {"epsilon_ladder": True}, actors=actors)["ladder_envs"] == 30
    assert settings("sac")["policy"] == "squashed"
    assert settings("td3", {"exploration_noise": 0.3})["exploration_noise"] == 0.3
    for name in ("ppo", "dqn", "sac", "td3"):
        assert json.loads(json.dumps(settings(name))) == settings(name)


def test_algorithms_from_replay_have_no_options_of_policy_gradients():
    with pytest.raises(ConfigError, match="entropy_coef"):
        load(None, [ENV, "algo.name=sac", "algo.sac.entropy_coef=0.1"])
