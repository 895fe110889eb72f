"""Reading a configuration: precedence, and every mistake told at once with path, value, line and nearest name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rltrain.config.load import config_from_dict, describe_options, load, to_toml
from rltrain.config.options import accepted, accepts_tuple, find, leaves
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
        ("[pipeline]\nfragment_length = 1", 4, ["pipeline.fragment_length = 1", "a whole number at least 2"]),
        ("[run]\nseed = true", 4, ["run.seed = true", "a whole number at least 0"]),
        ("[run]\nseed = 1.0", 4, ["run.seed = 1.0", "a whole number"]),
        ("[algo.ppo]\ndiscount = 1.5", 4, ["algo.ppo.discount = 1.5", "at least 0 and at most 1"]),
        ("[algo.ppo]\nlearning_rate = inf", 4, ["algo.ppo.learning_rate", "a number above 0"]),
        ('[pipeline]\nschedule = "asynch"', 4, ['"asynch"', '"sync", "overlap" or "async"']),
        ("[model]\nhidden_sizes = [64, 0]", 4, ["model.hidden_sizes = [64, 0]", "each a whole number at least 1"]),
        ('[algo]\nname = "pppo"', 4, ['algo.name = "pppo"', '"ppo", "appo", "dqn", "sac", "td3" or "null"']),
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


@pytest.mark.parametrize("path", [path for path, field in leaves() if "a whole number" in accepted(field)])
def test_load_huge_whole_number_is_refused_with_the_limit(tmp_path, path):
    section, key = path.rsplit(".", 1)
    algorithm = [f"algo.name={section.removeprefix('algo.')}"] if section.startswith("algo.") else []
    for number in (hex(10**25), hex(16**5000)):
        value = f"[{number}, {number}]" if accepts_tuple(find(path)) else number
        source = tmp_path / "huge.toml"
        source.write_text(f"[{section}]\n{key} = {value}\n")
        (problem,) = problems_of(source, "env.id=CartPole-v1", *algorithm)
        assert problem.startswith(f"{path} = ")
        assert re.search(r"(at most|below) [0-9_]+", problem), problem
        assert len(problem) < 700


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("learner.num_threads=5000", "at most 1024"),
        ("model.hidden_sizes=[65_537]", "at most 65_536"),
        ("pipeline.max_batch_size=100_000_001", "at most 100_000_000"),
        ("supervision.boot_timeout_s=1e300", "at most 1_000_000"),
    ],
)
def test_load_size_above_its_limit_names_it(tmp_path, override, says):
    (problem,) = problems_of(write(tmp_path, ""), override)
    assert says in problem


@pytest.mark.parametrize("num_actors", [1, 1024])
def test_load_sizes_that_only_together_are_huge_name_the_product_and_the_remedies(tmp_path, num_actors):
    sizes = [f"actors.num_actors={num_actors}", "actors.groups_per_actor=64", "actors.envs_per_group=65_536"]
    (problem,) = problems_of(write(tmp_path, ""), *sizes, "pipeline.fragment_length=10")
    assert f"{3 * num_actors * 64 * 65_536 * 10:_} rows" in problem
    assert "Accepted: at most 100_000_000" in problem
    for option in ("num_slots", "envs_per_group", "fragment_length", "num_actors", "groups_per_actor"):
        assert f"{option} = " in problem


def test_load_largest_product_is_accepted(tmp_path):
    sizes = ["actors.num_actors=1", "actors.groups_per_actor=1", "actors.envs_per_group=10_000"]
    config = load(write(tmp_path, ""), [*sizes, "pipeline.fragment_length=3_333"]).config
    assert config.pipeline.max_batch_size == 10_000
    problems_of(write(tmp_path, ""), *sizes, "pipeline.fragment_length=3_334")


@pytest.mark.parametrize(
    ("checkpoint", "every_s"),
    [
        ("", 120.0), ("every_env_steps = 9", None), ("every_s = 5.0\nevery_env_steps = 9", 5.0),
        ('every_s = "none"', None),
    ],
)
def test_load_checkpoints_by_time_are_those_of_who_asks_for_none_by_env_steps(tmp_path, checkpoint, every_s):
    """Else they would push the others out of `checkpoint.keep`."""
    config = load(write(tmp_path, f"[checkpoint]\n{checkpoint}\n")).config
    assert config.checkpoint.every_s == every_s
    (tmp_path / "dump.toml").write_text(to_toml(config))
    assert load(tmp_path / "dump.toml").config.checkpoint.every_s == every_s


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "1" * 5000], ids=["deep lists", "long integer"])
def test_load_value_beyond_the_toml_reader_is_refused(tmp_path, value):
    path = write(tmp_path, "")
    path.write_text(f'[env]\nid = "CartPole-v1"\nkwargs.x = {value}\n')
    (problem,) = problems_of(path)
    assert str(path) in problem
    assert "env.kwargs.x" in problems_of(write(tmp_path, ""), f"env.kwargs.x={value}")[0]


@pytest.mark.parametrize("key", [".".join("x" * 3000), "x"], ids=["deep tables", "lists"])
def test_load_deep_kwargs_are_refused(tmp_path, key):
    (problem,) = problems_of(write(tmp_path, ""), f"env.kwargs.{key}={'[' * 101 + ']' * 101}")
    assert "at most 100 inside each other" in problem
    assert load(write(tmp_path, ""), [f"env.kwargs.x={'[' * 99 + ']' * 99}"])


@pytest.mark.parametrize("target", [":", "a:", ":b", "a..b:c", ".a:b", "a.:b"])
@pytest.mark.parametrize("option", ["env.id", "model.kind"])
def test_load_half_a_factory_says_the_form(tmp_path, option, target):
    (problem,) = problems_of(write(tmp_path, ""), f"{option}={target}")
    assert f'{option} = "{target}"' in problem
    assert "accepted is `module:factory`" in problem


@pytest.mark.parametrize("target", ["a:b", "a.b:C.d", "a:Own-v0", "my_module:space/Own-v0"])
def test_load_whole_factory_is_accepted(tmp_path, target):
    assert load(write(tmp_path, ""), [f"env.id={target}"]).config.env.id == target


@pytest.mark.parametrize("option", ["run.dir", "env.id", "model.kind"])
def test_load_nul_in_a_name_is_refused(tmp_path, option):
    (problem,) = problems_of(write(tmp_path, ""), f'{option}="a\\u0000b"')
    assert problem.startswith(f"{option} = ")


def test_load_file_with_a_byte_order_mark_is_read(tmp_path):
    path = write(tmp_path, "")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path).config.env.id == "CartPole-v1"


def test_load_infinity_and_nan_are_kept_in_kwargs_and_refused_elsewhere(tmp_path):
    path = write(tmp_path, '[env]\nid = "CartPole-v1"\nkwargs = {x = inf, y = [-inf], z = nan}\n')
    config = load(path).config
    sent = config_from_dict(json.loads(json.dumps(config.model_dump(mode="json"))))
    (tmp_path / "dump.toml").write_text(to_toml(config))
    for kwargs in (config.env.kwargs, sent.env.kwargs, load(tmp_path / "dump.toml").config.env.kwargs):
        assert (kwargs["x"], kwargs["y"]) == (float("inf"), [float("-inf")])
        assert kwargs["z"] != kwargs["z"]
    for option in ("run.target_return=inf", "algo.ppo.discount=nan", "supervision.boot_timeout_s=inf"):
        problems_of(path, option)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], (False, 0)),
        (["pipeline.max_queue_delay_us=300"], (False, 300)),
        (["pipeline.schedule=async"], (True, 5000)),
        (["pipeline.schedule=async", "pipeline.max_queue_delay_us=300"], (True, 300)),
        (["pipeline.schedule=async", "pipeline.max_queue_delay_us=0"], (False, 0)),
        (["pipeline.schedule=async", "pipeline.adaptive=false"], (False, 0)),
        (["pipeline.schedule=async", "pipeline.inference=local"], (False, 0)),
    ],
)
def test_delay_adapts_in_async_unless_said_otherwise(tmp_path, options, expected):
    loaded = load(write(tmp_path, ""), options)
    pipeline = loaded.config.pipeline
    assert (pipeline.adaptive, pipeline.max_queue_delay_us) == expected
    assert loaded.adjustments == []


def test_load_pinning_where_the_system_cannot_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path, "[pipeline]\npin_cores = true\n")
    assert load(path).config.pipeline.pin_cores
    monkeypatch.delattr("os.sched_setaffinity")
    (problem,) = problems_of(path)
    assert problem.startswith("pipeline.pin_cores = true (")
    assert "Accepted here: false." in problem
    assert load(path, ["pipeline.pin_cores=false"]).config.pipeline.pin_cores is False
