"""A run of envs that write to every output and whose episodes have no end. Cases E18 and E19."""

from __future__ import annotations

import json

import pytest

from tests.runs import Running, train_all

pytestmark = pytest.mark.timeout(300)

CHATTY = {"env.id": "tests.rude_envs:Chatty", "env.kwargs.n": 10**9}
ENDLESS = {
    **CHATTY, "run.total_env_steps": 10_500, "actors.num_actors": 1, "actors.groups_per_actor": 1,
    "actors.envs_per_group": 1, "pipeline.fragment_length": 256,
}  # fmt: skip
"""All of one env."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endless")
    limit = {"env.max_episode_steps": 50, "run.total_env_steps": 2000}
    return train_all(folder, {"endless": ENDLESS, "limited": {**ENDLESS, **limit}})


def test_run_of_an_endless_episode_warns_once_and_shows_how_long_it_runs(runs):
    run = runs["endless"].finished()
    assert run.stdout.count("has no time limit") == 1
    assert "tests.rude_envs:Chatty has no time limit" in run.stdout
    assert "an episode runs for 10," in run.stdout
    assert run.summary["episodes"] == 0
    assert run.summary["return_mean"] != run.summary["return_mean"] or run.summary["return_mean"] is None


def test_run_with_a_limit_has_truncated_episodes_of_that_length(runs):
    run = runs["limited"].finished()
    assert run.summary["episodes"] >= 2000 // 51
    assert run.summary["episode_length_mean_steps"] == 50.0
    assert "no time limit" not in run.stdout


def test_eval_json_of_an_env_that_writes_to_every_output_is_one_document(runs, tmp_path):
    folder = runs["limited"].finished().folder
    with Running(tmp_path, "eval", str(folder), "--json", "--episodes", "2") as evaluation:
        ended = evaluation.end().finished()
    assert json.loads(ended.stdout)["lengths"] == [50, 50]
    for words in ("by print", "to descriptor 1", "to descriptor 2"):
        assert ended.stderr.count(f"chatty {words}\n") >= 50
