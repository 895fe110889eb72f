"""`bench roofline` and `bench pipeline` in small, and the stand-ins that do nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rltrain.bench.pipeline import PipelineBench, _best, schedule_changes
from rltrain.bench.pipeline import Plan as PipelinePlan
from rltrain.bench.report import lines_of
from rltrain.bench.roofline import Plan, Roofline
from rltrain.bench.stages import Stages
from rltrain.bench.trial import Trial, run_trial
from rltrain.config.load import load
from rltrain.config.schema import EnvSection
from rltrain.envs.make import make_group
from rltrain.envs.observations import describe_obs
from rltrain.errors import ConfigError
from tests.bench.test_conventional import CARTPOLE, ROOT
from tests.bench.test_report import RECORD

pytestmark = pytest.mark.timeout(300)
STAGES = Stages(4e-6, 4e-6, {8: 2e-6, 64: 1e-6}, 2e-6, 2e-6, 1e-9, 1e-9)


def trial(rate: float, **shares: dict[str, float]) -> Trial:
    """A trial with these shares of each process's time."""
    ledger = {name.replace("_", "-"): states for name, states in shares.items()}
    return Trial({"env_steps_per_s": rate, "verdict": "learner-bound", "ledger": ledger, "device": "cpu"})


@pytest.mark.parametrize(
    "section",
    [
        {"id": "CartPole-v1"},
        {"id": "Pendulum-v1", "normalize_obs": True},
        {"id": "ALE/Pong-v5", "resize": (84, 84), "grayscale": True, "frame_stack": 4},
    ],
    ids=lambda section: section["id"],
)
def test_null_env_has_the_spaces_of_the_other_with_its_preprocessing(section):
    like = EnvSection(**section).model_dump(mode="json", exclude_none=True)
    real = make_group(EnvSection(**section).model_dump(), 3, 0, 0)
    null = make_group(EnvSection(id="null", kwargs={"like": like}).model_dump(), 3, 0, 0)
    try:
        assert null.is_native
        assert describe_obs(null.observation_space) == describe_obs(real.observation_space)
        assert null.action_space == real.action_space
    finally:
        real.close()
        null.close()


def test_run_with_stand_ins_moves_every_step_and_learns_nothing():
    bench = Roofline(CARTPOLE, {"learner.device": "cpu", "algo.ppo.epochs": 1}, Plan.quick())
    options = {**bench._null(), "run.total_env_steps": 5_000}
    ended = run_trial(CARTPOLE, options, None).summary
    assert ended["env_steps"] >= 5_000
    assert ended["updates"] > 0
    assert ended["episodes"] == 0
    again = run_trial(CARTPOLE, {**options, "run.total_env_steps": 10_000}, None).summary
    assert again["weights_sha256"] == ended["weights_sha256"], "its one weight does not move"


def test_roofline_measures_stages_and_pipeline_and_draws_the_limit():
    plan = dataclasses.replace(Plan.quick(), turns=1, stage_s=0.02, pipeline_s=1.0)
    bench = Roofline(CARTPOLE, {"learner.device": "cpu"}, plan)
    told = []
    bench.run(lambda *said: told.append(said))
    assert told[-1][0] == pytest.approx(told[-1][1]), "all of the expected time is done at the end"
    (stages,) = bench._found.stages
    assert set(stages.inference) == {16, 32}
    assert min(stages.env, stages.env_cpu, stages.update, stages.transfer, stages.publish) > 0
    report = bench.report(RECORD)
    text = "\n".join(lines_of(report))
    assert all(word in text for word in ("policy, batch of 32", "weight publication", "plumbing alone", "of the limit"))
    assert report.charts[0].limits["limit"] == pytest.approx(stages.limit(1, bench.cores)[0])


def test_roofline_says_which_part_of_the_limit_was_reached():
    bench = Roofline(CARTPOLE, {"learner.device": "cpu", "actors.num_actors": 8}, Plan.quick())
    bench.cores = 64
    bench._found.stages, bench._found.trials = [STAGES, STAGES], [trial(250_000.0), trial(400_000.0)]
    report = bench.report(RECORD)
    achieved = next(row for row in report.tables[0].rows if row[0] == "achieved")
    assert achieved[2].values == pytest.approx([0.5, 0.8])
    assert "the limit is that of: update" in report.notes


def test_roofline_interrupted_before_the_first_turn_still_reports():
    assert list(lines_of(Roofline(CARTPOLE, {}, Plan.quick()).report(RECORD)))


def test_roofline_of_a_replay_algorithm_is_refused():
    with pytest.raises(ConfigError, match=r'"dqn" learns from a replay.*Accepted: ppo, appo'):
        Roofline(ROOT / "configs/dqn_cartpole.toml", {}, Plan.quick())


def test_pipeline_compares_every_schedule_and_inference_mode():
    bench = PipelineBench(CARTPOLE, {"learner.device": "cpu"}, PipelinePlan.quick())
    labels = [side.label for side in bench.sides]
    own = [f"{schedule}, {mode}" for schedule in ("sync", "overlap", "async") for mode in ("server", "local")]
    assert labels[-6:] == own
    assert labels[0] == "conventional loop, 1 thread"
    replayed = PipelineBench(ROOT / "configs/dqn_cartpole.toml", {}, PipelinePlan.quick())
    assert len(replayed.sides) == 12
    assert replayed.sides[1].label == "sync, server, prefetch off"


def test_pipeline_ratios_are_to_the_best_of_the_baselines():
    bench = PipelineBench(CARTPOLE, {}, PipelinePlan.quick())
    for number, side in enumerate(bench.sides):
        side.rate.values = [100.0 * (number + 1), 1.0]
    rows = {row[0]: row for row in bench.report(RECORD).tables[0].rows}
    best_loop = max(i for i, side in enumerate(bench.sides) if side.label.startswith("conventional")) + 1
    last = bench.sides[-1].label
    assert rows[last][3].values == pytest.approx([len(bench.sides) / best_loop, 1])
    assert _best([]) is None


def test_async_side_trains_on_the_same_passes_with_minibatches_that_fit():
    config = load(ROOT / "configs/halfcheetah.toml").config
    changes = schedule_changes(config, "async")
    assert (changes["algo.name"], changes["algo.appo.epochs"]) == ("appo", 10)
    texts = [f"{path}={value!r}".replace("'", '"').replace("None", '"none"').replace("True", "true").replace(
        "False", "false") for path, value in changes.items()]
    resolved = load(ROOT / "configs/halfcheetah.toml", texts).config
    assert resolved.algo.appo.num_minibatches == 4


def test_busy_share_is_the_larger_of_the_servers_and_the_learners():
    learner = {"update": 0.5, "h2d": 0.1, "wait_data": 0.4}
    server = {"wait_request": 0.2, "batch_delay": 0.1, "forward": 0.5, "d2h": 0.2}
    assert trial(1, learner=learner, inference=server).device_busy_share == pytest.approx(0.7)
    assert trial(1, learner={"update": 0.9}, inference=server).device_busy_share == pytest.approx(0.9)
    assert trial(1, learner={**learner, "h2d": 0.3}, inference=server).device_busy_share == pytest.approx(0.8)
    local = {"actor_0": {"forward": 0.6}, "actor_1": {"forward": 0.8}}
    assert trial(1, learner=learner, **local).device_busy_share == pytest.approx(0.7), "the mean of the actors"
    learner["wait_data"] = 0.5
    assert np.isclose(trial(1, learner=learner).learner_idle_share, 0.5)
