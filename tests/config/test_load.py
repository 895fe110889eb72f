"""Reading a configuration: precedence, and every mistake told at once with path, value, line and nearest name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltrain.config.load import config_from_dict, describe_options, load, to_toml
from rltrain.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "try.toml"
    path.write_text(text if "[env]" in text else f'[env]\nid = "CartPole-v1"\n{text}')
    return path


def problems_of(path: Path | None, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return caught.value.problems


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_load_shipped_config_resolves_without_adjustment(path):
    loaded = load(path)
    assert isinstance(loaded.config.actors.num_actors, int)
    assert loaded.adjustments == []
    opening = path.read_text().splitlines()[:6]
    for word in ("# Hardware:", "# Expected:", "# Result:"):
        assert any(line.startswith(word) for line in opening), f"{path.name} lacks {word}"


def test_load_precedence_is_default_file_set_flag(tmp_path):
    path = write(tmp_path, "[run]\nseed = 1\nname = 'a'\ntotal_env_steps = 5\n")
    loaded = load(path, ["run.seed=2", "run.name=b", "run.seed=3"], name="c")
    run = loaded.config.run
    assert (run.seed, run.name, run.total_env_steps, run.target_window) == (3, "c", 5, 100)
    wanted = {"run.seed": "flag", "run.name": "flag", "run.total_env_steps": "file", "run.target_window": "default",
              "pipeline.num_slots": "auto"}
    assert {path: loaded.origins[path] for path in wanted} == wanted


def test_load_set_values_need_no_quotes_and_keep_their_types(tmp_path):
    overrides = ["run.name=2024", "env.kwargs.render_mode=rgb_array", "env.kwargs.n=3", "model.hidden_sizes=[8, 4]",
                 "algo.ppo.max_grad_norm=none", "algo.ppo.learning_rate=1", "eval.stochastic=true",
                 "learner.device=cuda:1"]
    config = load(write(tmp_path, ""), overrides).config
    assert config.run.name == "2024"
    assert config.env.kwargs == {"render_mode": "rgb_array", "n": 3}
    assert config.model.hidden_sizes == (8, 4)
    assert config.algo.ppo.max_grad_norm is None
    assert isinstance(config.algo.ppo.learning_rate, float)
    assert config.learner.device == "cuda:1"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[algo.ppo]\nlearning_rat = 1e-3", 4, ["algo.ppo.learning_rat = 0.001", "algo.ppo.learning_rate"]),
        ("[algo.ppo]\ngama = 0.9", 4, ["algo.ppo.gama = 0.9", "algo.ppo.discount"]),
        ('[algo.ppo]\nlearning_rate = "1e-3"', 4, ['algo.ppo.learning_rate = "1e-3"', "a number above 0"]),
        ("[learner]\nlearning_rate = 1e-3", 4, ["learner.learning_rate", "Did you mean algo.ppo.learning_rate?"]),
        ("[algo.appo]\nclip_range = 0.1", 4, ["algo.appo.clip_range", 'algorithm is "ppo"', "algo.ppo.clip_range"]),
        ("[pipelin]\nfragment_length = 3", 3, ["[pipelin]", "Did you mean pipeline?"]),
        ("[run]\nseed = true", 4, ["run.seed = true", "a whole number at least 0"]),
        ("[run]\nseed = 1.0", 4, ["run.seed = 1.0", "a whole number"]),
        ("[algo.ppo]\ndiscount = 1.5", 4, ["algo.ppo.discount = 1.5", "at least 0 and at most 1"]),
        ("[algo.ppo]\nlearning_rate = inf", 4, ["algo.ppo.learning_rate", "a number above 0"]),
        ('[pipeline]\nschedule = "asynch"', 4, ['"asynch"', '"sync", "overlap" or "async"']),
        ("[model]\nhidden_sizes = [64, 0]", 4, ["model.hidden_sizes = [64, 0]", "each a whole number at least 1"]),
        ('[algo]\nname = "pppo"', 4, ['algo.name = "pppo"', '"ppo" or "appo"']),
        ("model.hidden_size = [3]", 3, ["env.model", "Accepted here"]),
    ],
)
def test_load_mistake_names_path_value_line_and_remedy(tmp_path, text, line, says):
    path = write(tmp_path, text)
    (problem,) = problems_of(path)
    for part in [*says, f"{path}, line {line}"]:
        assert part in problem, problem


def test_load_several_mistakes_are_told_together(tmp_path):
    path = write(tmp_path, "[run]\nsed = 1\nseed = -1\n[algo.ppo]\nepochs = 0\n")
    found = problems_of(path, "nonsense", "learner.device=gpu")
    assert len(found) == 5
    assert any("run.sed = 1" in p and "run.seed" in p for p in found)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["pipeline.num_slots=3", "actors.num_actors=1"], "at least 4"),
        (["pipeline.num_slots=2", "actors.num_actors=1", "pipeline.schedule=async"], "at least 3"),
        (["pipeline.when_full=overwrite_oldest"], 'needs pipeline.schedule = "async"'),
        (["pipeline.adaptive=true"], 'needs pipeline.schedule = "async"'),
        (["pipeline.max_batch_size=4"], "actors.envs_per_group = 8"),
        (["pipeline.preferred_batch_sizes=[1_000_000]"], "1000000 is never reached"),
        (["pipeline.schedule=async", "learner.min_batch_fragments=3", "learner.max_batch_fragments=2"], "at most 2"),
        (["pipeline.schedule=async", "learner.max_batch_fragments=999999"], "needs 999999 slots"),
        (["algo.ppo.num_minibatches=513", "actors.num_actors=1"], "at most 512"),
        (["algo.ppo.num_minibatches=17", "algo.ppo.epochs=1", "actors.num_actors=1"], "16 whole env columns"),
        (["algo.name=appo", "algo.appo.num_minibatches=17", "actors.num_actors=1"], "at most 16"),
        (["model.kind=impala_cn"], "impala_cnn"),
    ],
)
def test_load_impossible_combination_says_what_is_accepted(tmp_path, overrides, says):
    (problem,) = problems_of(write(tmp_path, ""), *overrides)
    assert says in problem, problem
    assert "ccepted" in problem


def test_load_limits_of_combinations_are_accepted(tmp_path):
    load(write(tmp_path, ""), ["actors.num_actors=1", "pipeline.num_slots=4", "algo.ppo.num_minibatches=512",
                               "pipeline.max_batch_size=8", "pipeline.preferred_batch_sizes=[8]"])


def test_load_no_toml_gives_file_line_and_column(tmp_path):
    path = write(tmp_path, "[run]\nname = cartpole\n")
    (problem,) = problems_of(path)
    assert f"{path} is no TOML: line 4, column 8" in problem
    assert "Text needs quotes" in problem
    path.write_text('[env]\nid = "a"\nid = "b"\n')
    assert "line 3" in problems_of(path)[0]
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in problems_of(path)[0]


def test_load_missing_file_names_nearest(tmp_path):
    write(tmp_path, "")
    assert "try.toml" in problems_of(tmp_path / "tri.toml")[0]
    assert "is a folder" in problems_of(tmp_path)[0]


def test_load_without_env_id_says_so():
    assert "env.id is missing" in problems_of(None)[0]


def test_load_settings_without_effect_are_reported(tmp_path):
    path = write(tmp_path, "[pipeline]\ninference = 'local'\nmax_queue_delay_us = 5\n[algo.ppo]\nepochs = 2\n")
    told = load(path, ["algo.name=appo", "pipeline.max_policy_lag=3"]).adjustments
    for option in ("pipeline.max_queue_delay_us", "algo.ppo.epochs", "pipeline.max_policy_lag"):
        assert any(note.startswith(option) for note in told), (option, told)
    assert len(told) == 3


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_dump_loads_back_equal_and_says_nothing(tmp_path, path):
    loaded = load(path, ["env.kwargs.odd key='\"\\\\ é'"])
    copy = tmp_path / "config.toml"
    copy.write_text(to_toml(loaded.config))
    again = load(copy)
    assert again.config == loaded.config
    assert again.adjustments == []
    assert config_from_dict(json.loads(json.dumps(loaded.config.model_dump(mode="json")))) == loaded.config


def test_describe_options_covers_every_option_with_a_meaning(tmp_path):
    options = describe_options(load(write(tmp_path, ""), ["algo.name=appo"]))
    paths = [option.path for option in options]
    assert "algo.appo.vtrace_rho_clip" in paths
    assert not any(path.startswith("algo.ppo") for path in paths)
    assert all(len(option.meaning) > 10 for option in options)
