"""`rltrain tune`: probes, what is kept and why, the file that is written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from rltrain.bench import tune
from rltrain.bench.search import Setting
from rltrain.bench.trial import Trial, TrialError
from rltrain.bench.tune import Tuner, named, setting_of, with_values
from rltrain.cli.app import run_app
from rltrain.config.load import load
from rltrain.errors import ConfigError

TEXT = """\
# A comment that stays.
[run]
name = "mine"

[env]
id = "CartPole-v1"

[actors]  # few
num_actors = 1
envs_per_group = 4   # too few

[pipeline]
num_slots = 8
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def machine(monkeypatch):
    """Trials of a made-up machine: faster with more envs up to 64 a group; notes what was run."""
    ran: list[dict] = []

    def trial(path, overrides, seconds):
        ran.append(dict(overrides))
        if overrides["pipeline.inference"] == "local":
            raise TrialError("a run failed with exit code 3:\nerror: no local here")
        envs = min(64, overrides["actors.envs_per_group"])
        return Trial({
            "env_steps_per_s": 1000.0 * envs, "policy_lag_p99_versions": overrides["actors.groups_per_actor"],
            "ledger": {"learner": {"update": 0.97}},
        })  # fmt: skip

    monkeypatch.setattr(tune, "run_trial", trial)
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    return ran


def tuned(config: Path, seconds: float = 1e9, lag: int | None = None) -> tuple[Tuner, list[str]]:
    said: list[str] = []
    tuner = Tuner(config, {}, seconds, lag, said.append)
    tuner.run(lambda *_: None)
    return tuner, said


def test_best_setting_is_found_and_each_probe_told_with_its_reason(config, machine):
    tuner, said = tuned(config)
    assert tuner.search.best.envs_per_group == 64
    assert tuner.rate(tuner.search.best) == 64_000
    assert "4.00 x the best so far: kept  (larger batches cost less for each row)" in said[1]
    assert any("failed: error: no local here" in line for line in said)
    assert len(said) == len(machine) + 1
    assert all(overrides["pipeline.num_slots"] == "auto" for overrides in machine), "it follows from the envs"


def test_setting_beyond_the_bound_on_the_lag_is_not_kept(config, machine):
    tuner, said = tuned(config, lag=2)
    assert tuner.search.best.groups_per_actor == 2
    assert any("a policy lag of 3 versions is above 2" in line for line in said)


def test_probes_end_when_the_time_is_over(config, machine):
    _, said = tuned(config, seconds=0.0)
    assert len(machine) == 1, "one probe in any case"
    assert said[-1].startswith("the time is over")


def test_tuned_file_keeps_comments_and_changes_what_must_be_changed(config, machine):
    tuner, _ = tuned(config)
    text = tuner.tuned_text()
    assert "# A comment that stays." in text
    written = tomllib.loads(text)
    assert written["actors"] == {"num_actors": 1, "envs_per_group": 64}
    assert written["pipeline"] == {"num_slots": "auto"}
    path = config.with_name("again.toml")
    path.write_text(text)
    assert setting_of(load(path).config) == tuner.search.best


def test_file_whose_lines_cannot_be_changed_is_written_out_whole(tmp_path, machine):
    path = tmp_path / "inline.toml"
    path.write_text('env = {id = "CartPole-v1"}\nactors = {num_actors = 1, envs_per_group = 4}\n')
    tuner, _ = tuned(path)
    whole = tomllib.loads(tuner.tuned_text())
    assert whole["actors"]["envs_per_group"] == 64
    assert "algo" in whole
    assert sorted(file.name for file in tmp_path.iterdir()) == ["inline.toml"]


def test_values_are_put_into_their_sections():
    text = with_values(TEXT, {"actors.envs_per_group": 8, "pipeline.schedule": "sync", "learner.num_threads": 2})
    assert tomllib.loads(text) == {
        "run": {"name": "mine"}, "env": {"id": "CartPole-v1"}, "actors": {"num_actors": 1, "envs_per_group": 8},
        "pipeline": {"schedule": "sync", "num_slots": 8}, "learner": {"num_threads": 2},
    }  # fmt: skip
    assert "[actors]  # few" in text


def test_setting_in_words():
    assert named(Setting(2, 1024, 3, "local", 1)) == "2 x 3 x 1,024 envs, inference local, 1 learner thread"


def test_command_writes_beside_the_file_and_never_over_another(config, machine, capsys, monkeypatch):
    monkeypatch.chdir(config.parent)
    report = config.parent / "probes.json"
    assert run_app(["tune", "mine.toml", "--json", str(report)]) == 0
    out = capsys.readouterr().out
    assert "best: 1 x 2 x 64 envs" in out
    assert "16.00 x 4,000 at the start" in out
    assert load(config.with_name("mine.tuned.toml")).config.actors.envs_per_group == 64
    probes = json.loads(report.read_text())
    assert probes["best"]["actors.envs_per_group"] == 64
    assert len(probes["probes"]) == len(machine)
    assert run_app(["tune", "mine.toml"]) == 2
    assert "is there already. Give --force" in capsys.readouterr().err


def test_wrong_configuration_is_refused_before_a_probe(config, machine):
    with pytest.raises(ConfigError, match="envs_per_grup"):
        Tuner(config, {"actors.envs_per_grup": 3}, 10, None, print)
    assert machine == []


def test_interrupted_command_writes_the_best_so_far(config, machine, monkeypatch, capsys):
    real, num = tune.run_trial, []

    def interrupted(*arguments):
        num.append(None)
        if len(num) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(tune, "run_trial", interrupted)
    monkeypatch.chdir(config.parent)
    with pytest.raises(KeyboardInterrupt):
        run_app(["tune", "mine.toml"])
    assert "interrupted: the best so far counts" in capsys.readouterr().out
    assert load(config.with_name("mine.tuned.toml")).config.actors.envs_per_group == 16
