"""Stopped, killed and resumed: the same weights as never stopped, one line of curves, nothing left behind."""

from __future__ import annotations

import copy
import json
import signal

import numpy as np
import pytest
import torch

from rltrain.algos.flat_parameters import FlatParameters
from rltrain.envs.make import make_group
from rltrain.envs.seeding import FIRST_EVAL_ENV_INDEX
from rltrain.fields import EnvSpec
from rltrain.workers.checkpoints import CheckpointStore
from rltrain.workers.evaluator import Player, load_policy
from tests.runs import Running, resume, scalars, toy, train, train_all, until

pytestmark = pytest.mark.timeout(300)

EXACT = {"env.normalize_obs": True, "env.normalize_reward": True, "run.seed": 5, "checkpoint.keep": 100}
SCHEDULES = ("overlap", "sync")
VARIANTS = {
    "overlap": {"pipeline.schedule": "overlap"},
    "sync": {"pipeline.schedule": "sync"},
    "uneven": {"pipeline.schedule": "overlap", **toy("Uneven", n=50)},
}


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Of each variant: 2,048 env steps at once, and 1,024 with the rest after a resume."""
    folder = tmp_path_factory.mktemp("exact")
    parts = {"straight": {"run.total_env_steps": 2048, "checkpoint.every_env_steps": 512}, "halves": {}}
    ended = train_all(
        folder,
        {
            f"{name} {part}": {**EXACT, **variant, **options}
            for name, variant in VARIANTS.items()
            for part, options in parts.items()
        },
    )
    half = {name: ended[f"{name} halves"].finished().summary["env_steps"] for name in VARIANTS}
    more = {name: resume(folder / f"{name} halves", "--set", "run.total_env_steps=2048") for name in VARIANTS}
    for name, started in more.items():
        with started as run:
            ended[f"{name} halves"] = run.end()
    return {**{name: run.finished() for name, run in ended.items()}, "half_steps": half}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_run_ends_with_the_weights_of_a_straight_one(exact, variant):
    """Case C05: in `uneven`, also the generators of the envs are each at another place."""
    straight, halves = exact[f"{variant} straight"], exact[f"{variant} halves"]
    assert 1024 <= exact["half_steps"][variant] < 2048
    assert halves.summary["weights_sha256"] == straight.summary["weights_sha256"]
    for figure in ("env_steps", "updates", "episodes", "return_mean", "policy_version"):
        assert halves.summary[figure] == straight.summary[figure], figure
    assert "changed: run.total_env_steps: 1024 -> 2048" in halves.stderr


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_checkpoints_hold_tensors_and_plain_values_only(exact, schedule):
    for run in (exact[f"{schedule} straight"], exact[f"{schedule} halves"]):
        for path in run.checkpoints:
            content = torch.load(path, weights_only=True)
            assert content["env_steps"] > 0
            assert len(content["snapshots"]) == 4, "the states of all env groups"


def parts_of(path) -> tuple[dict, EnvSpec]:
    checkpoint, *_ = CheckpointStore.load(path)
    return checkpoint, EnvSpec.from_dict(json.loads(checkpoint["spec"]))


def test_action_for_a_fixed_raw_observation_is_the_same_after_loading(exact):
    """What the learner trained, as it publishes it, against what evaluation builds from the file."""
    obs = {"obs": torch.tensor([[300.0, -200.0, 100.0, 50.0], [0.1, 0.2, -0.1, 0.3]])}
    seen = []
    for path in exact["overlap straight"].checkpoints[:2]:
        checkpoint, spec = parts_of(path)
        loaded = load_policy(checkpoint, spec)
        trained = copy.deepcopy(loaded)
        flat = FlatParameters(trained)
        for tensor in trained.state_dict().values():
            tensor.zero_()
        flat.load(checkpoint["train_state"]["weights"].numpy())
        action = torch.zeros(2, dtype=torch.int64)
        with torch.inference_mode():
            before, after = trained.policy(obs).log_prob(action), loaded.policy(obs).log_prob(action)
        assert torch.allclose(before, after, atol=1e-6, rtol=0)
        seen.append((after, {k: v for k, v in checkpoint["model"].items() if "normaliser" in k}))
    (one, statistics), (two, later) = seen
    assert not torch.equal(one, two)
    assert statistics
    assert all(not torch.equal(statistics[name], later[name]) for name in statistics)


def test_statistics_do_not_move_while_a_policy_plays(exact):
    checkpoint, spec = parts_of(exact["overlap straight"].checkpoints[-1])
    model = load_policy(checkpoint, spec)
    env = json.loads(checkpoint["config"])["env"]
    group = make_group(env, 4, 0, FIRST_EVAL_ENV_INDEX)
    Player(group, spec, model, 0, is_stochastic=True).play(40)
    group.close()
    assert all(torch.equal(value, checkpoint["model"][name]) for name, value in model.state_dict().items())


def test_eval_gives_the_same_score_twice_and_refuses_lost_statistics(exact, tmp_path):
    run = exact["overlap straight"]
    checkpoint, _ = parts_of(run.checkpoints[-1])
    checkpoint["model"] = {name: x for name, x in checkpoint["model"].items() if "normaliser" not in name}
    stripped = CheckpointStore(tmp_path / "stripped", 1, False).save(checkpoint, 1, None)
    content = run.checkpoints[-1].read_bytes()
    evaluate = ("eval", str(run.checkpoints[-1]), "--json", "--episodes", "4", "--stochastic")
    commands = {"one": evaluate, "two": evaluate, "lost": ("eval", str(stripped))}
    started = {name: Running(tmp_path / name, *arguments) for name, arguments in commands.items()}
    ended = {}
    for name, process in started.items():
        with process:
            ended[name] = process.end()
    one, two = (json.loads(ended[name].stdout) for name in ("one", "two"))
    assert one["returns"] == two["returns"]
    assert run.checkpoints[-1].read_bytes() == content
    assert ended["lost"].returncode == 5
    assert "normaliser" in ended["lost"].stderr
    assert "Traceback" not in ended["lost"].stderr


RATE, TOTAL = 3e-4, 100_000


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run killed after a checkpoint, resumed, stopped by SIGTERM, resumed again and stopped by Ctrl-C."""
    folder = tmp_path_factory.mktemp("killed")
    options = {
        "run.total_env_steps": TOTAL, "checkpoint.every_env_steps": 2048, "algo.ppo.learning_rate": RATE,
        "algo.ppo.learning_rate_end": 0.0, "log.every_env_steps": 256,
    }  # fmt: skip
    found = {}
    with train(folder, options) as run:
        until(lambda: run.ended_or(run.has_checkpoint), "a checkpoint")
        until(lambda: run.ended_or(lambda: is_held_beyond_checkpoint(run)), "points beyond the checkpoint")
        run.signal(signal.SIGKILL)
        run.end()
        until(lambda: not run.survivors(), "no process outlives the supervisor", limit_s=10)
        found["killed at"] = max(steps_of(run))
        found["state"] = Running(folder, "runs").end().stdout.splitlines()[1].split()[1]
    for name, number in (("terminated", signal.SIGTERM), ("interrupted", signal.SIGINT)):
        with resume(folder) as run:
            newest = max(steps_of(run))
            until(lambda: run.ended_or(lambda: max(steps_of(run)) > newest), "a further checkpoint")  # noqa: B023
            run.signal(number)
            found[name] = run.end()
            until(lambda: not run.survivors(), "nothing is left", limit_s=10)
    return {**found, "folder": found["terminated"].folder, "curves": scalars(found["terminated"].folder)}


def is_held_beyond_checkpoint(run: Running) -> bool:
    """Hold the learner; let it go on where the curves on disk do not lead past the last checkpoint."""
    learner = run.children()["learner"]
    learner.suspend()
    if max(curve_steps(run), default=0) > max(steps_of(run)) + 300:
        return True
    learner.resume()
    return False


def steps_of(run: Running) -> list[int]:
    return [int(path.stem.split("-")[1]) for path in (run.folder() / "checkpoints").glob("checkpoint-*.pt")]


def curve_steps(run: Running) -> list[int]:
    return [step for step, _ in scalars(run.folder()).get("loss/learning_rate", [])]


def test_killed_run_is_listed_as_killed_and_leaves_no_process(killed):
    assert killed["state"] == "killed"


@pytest.mark.parametrize(("name", "code"), [("terminated", 143), ("interrupted", 130)])
def test_resumed_run_stopped_by_signal_writes_a_checkpoint(killed, name, code):
    ended = killed[name]
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ended.stderr == "" or ended.stderr.startswith("note:")
    assert "finishing the update and writing a checkpoint" in ended.stdout
    steps = [int(path.stem.split("-")[1]) for path in ended.checkpoints]
    assert max(steps) > killed["killed at"]
    if name == "interrupted":
        assert ended.summary["state"] == "stopped"
        assert ended.summary["exit_code"] == code
        assert ended.summary["env_steps"] == max(steps)


def test_curves_of_killed_and_resumed_run_go_on_without_a_fold(killed):
    assert len(list((killed["folder"] / "tensorboard").glob("events*"))) == 3
    for tag, points in killed["curves"].items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), tag
    learned = [step for step, _ in killed["curves"]["loss/learning_rate"]]
    assert learned[0] < 1024
    assert learned[-1] > killed["killed at"]
    assert np.diff(learned).max() < 1024, "no gap at a resume"


def test_learning_rate_of_resumed_run_depends_on_the_global_step(killed):
    """A batch of 128 env steps is learned with the rate at its start; the point stands at its end."""
    for step, rate in killed["curves"]["loss/learning_rate"]:
        at_start, at_end = RATE * (1 - (step - 128) / TOTAL), RATE * (1 - step / TOTAL)
        assert at_end - 1e-9 <= rate <= at_start + 1e-9


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_checkpoint_of_another_schedule_is_resumed_in_overlap(tmp_path, schedule):
    """`overlap` acts with the weights one version back, which no other schedule saves."""
    with train(tmp_path, {"pipeline.schedule": schedule}) as run:
        version = run.end().finished().summary["policy_version"]
    more = ("--set", "pipeline.schedule=overlap", "--set", "run.total_env_steps=4096")
    with resume(tmp_path, *more) as run:
        ended = run.end().finished()
    assert ended.summary["env_steps"] >= 4096
    assert ended.summary["policy_version"] > version
    assert "the checkpoint holds no weights before its own" in ended.stdout + ended.stderr


OWN = """
from tests.toy_envs import Count

def make_env(): return Count(n=5, reward={reward})
"""


def test_run_remembers_the_folder_of_its_own_code(tmp_path):
    """Evaluated and resumed from a folder that holds another module of the same name."""
    home, other = tmp_path / "home", tmp_path / "other"
    for folder, reward in ((home, 1), (other, 7)):
        folder.mkdir()
        (folder / "own_code.py").write_text(OWN.format(reward=reward))
    with train(home, {"env.id": "own_code:make_env"}) as run:
        made = run.end().finished().folder
    with Running(other, "eval", str(made), "--json", "--episodes", "1") as run:
        assert json.loads(run.end().finished().stdout)["return_mean"] == 5.0
    with Running(other, "run", "--resume", str(made), "--set", "run.total_env_steps=2048") as run:
        run.end().finished()
    assert json.loads((made / "summary.json").read_text())["return_mean"] == 5.0
    with Running(other, "run", "--resume", str(made)) as run:
        ended = run.end()
    assert ended.returncode == 2
    assert "env steps, all of run.total_env_steps = 2048" in ended.stderr
    assert "To train on, give more, such as --set run.total_env_steps=" in ended.stderr


def test_error_of_an_own_env_begins_with_the_users_line(tmp_path):
    (tmp_path / "own_code.py").write_text("from os import nothing\n")
    with train(tmp_path, {"env.id": "own_code:make_env"}) as run:
        ended = run.end()
    assert ended.returncode == 3
    assert "rltrain/workers" not in ended.stderr
    assert "own_code.py" in ended.stderr
    assert "While importing 'own_code' for env.id = 'own_code:make_env'" in ended.stderr
