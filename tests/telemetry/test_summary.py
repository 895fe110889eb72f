from __future__ import annotations

from dataclasses import replace

import pytest

from rltrain.telemetry.summary import closing_summary
from rltrain.telemetry.verdict import judge
from tests.telemetry.samples import HEADER, sample

TOTAL = sample({
    "actor": {"boot": 0.1, "env_step": 0.6, "wait_action": 0.299, "write": 0.001},
    "learner": {"update": 0.93, "wait_data": 0.05, "publish": 0.02},
})
SUMMARY = {
    "reason": "target", "env_steps": 654_321, "updates": 4_000, "policy_version": 1_000, "episodes": 77,
    "return_mean": 476.5, "episode_length_mean_steps": 476.5,
    "checkpoint": "runs/cartpole-1/checkpoints/checkpoint-000000654321.pt",
    "weights_sha256": "ab", "state": "finished", "duration_s": 65.0, "run_folder": "runs/cartpole-1", "restarts": 0,
    "exit_code": 0,
}


def summary(header=HEADER, total=TOTAL, **changes) -> str:
    return closing_summary(SUMMARY | changes, total, judge(TOTAL, "overlap"), header)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The run folder, with the checkpoint that the summary names."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/cartpole-1/checkpoints"
    folder.mkdir(parents=True)
    (folder / "checkpoint-000000654321.pt").touch()
    return folder


def test_closing_summary_says_result_speed_time_by_state_verdict_and_next_command():
    text = summary()
    for words in (
        "target return is reached", "476.5 mean of the last 77 episodes", "target 475",
        "654,321 (201,234 per second while training); 1:05 min in all",
        "env_step 60 %, wait_action 30 %, boot 10 %", "update 93 %, wait_data 5 %", "learner-bound: the learner",
        "runs/cartpole-1/checkpoints/checkpoint-000000654321.pt", "rltrain eval runs/cartpole-1",
    ):
        assert words in " ".join(text.split())
    assert "write" not in text
    assert "--resume" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_closing_summary_stopped_run_shows_how_to_resume():
    text = summary(reason="stopped", state="stopped", exit_code=130)
    assert "stopped before its end (exit code 130)" in text
    assert "rltrain run --resume runs/cartpole-1" in text


def test_closing_summary_return_is_of_as_many_episodes_as_the_window_holds():
    assert "mean of the last 20 episodes" in summary(replace(HEADER, target_window=20))
    assert "mean of the last 77 episodes" in summary(replace(HEADER, target_window=100))
    assert "mean of 1 episode," in summary(episodes=1)


def test_closing_summary_resumed_run_says_how_many_env_steps_this_part_had():
    text = " ".join(summary(replace(HEADER, resumed_env_steps=600_000)).split())
    assert "654,321, 54,321 of them in this part (201,234 per second while training)" in text


def test_closing_summary_failed_run_is_short_and_offers_what_there_is():
    text = summary(state="failed", reason="stopped", exit_code=6)
    assert [line.split()[0] for line in text.splitlines()[2:]] == [
        "result", "env", "checkpoint", "evaluate", "resume"
    ]
    assert "failed (exit code 6)" in text
    assert "654,321; 1:05 min in all" in text


def test_closing_summary_failed_run_without_env_steps_offers_neither_evaluation_nor_resume():
    text = summary(state="failed", reason="stopped", exit_code=6, env_steps=0)
    assert "rltrain eval" not in text
    assert "--resume" not in text
    assert "logs are in runs/cartpole-1" in " ".join(text.split())


def test_closing_summary_run_that_failed_early_has_what_is_known(folder):
    text = closing_summary(
        {"state": "failed", "duration_s": 1.0, "run_folder": "runs/cartpole-1", "restarts": 3, "exit_code": 4},
        None, None, replace(HEADER, target_return=None),
    )
    assert "failed (exit code 4)" in text
    assert "0; 1.0 s in all" in text
    assert "none was written; logs are in runs/cartpole-1" in text
    assert "rltrain eval" not in text


def test_closing_summary_names_only_a_checkpoint_that_is_there(folder):
    (folder / "checkpoint-000000000100.pt").touch()
    (folder / "checkpoint-000000654321.pt").unlink()
    text = summary(reason="stopped", state="stopped", exit_code=130)
    assert "checkpoint-000000000100.pt" in text
    assert "654321.pt" not in text
    assert "rltrain run --resume runs/cartpole-1" in text
    (folder / "checkpoint-000000000100.pt").unlink()
    text = summary(reason="stopped", state="stopped", exit_code=130)
    assert "what was written is no longer there; logs are in runs/cartpole-1" in " ".join(text.split())
    assert "rltrain eval" not in text
    assert "--resume" not in text


def test_closing_summary_return_that_is_nan_is_no_figure():
    assert "no episode has ended" in summary(return_mean=float("nan"))


def test_closing_summary_counts_what_was_lost_only_where_something_was():
    assert "dropped" not in summary()
    assert "overwritten" not in summary()
    text = summary(total=replace(TOTAL, dropped_env_steps=1_280, overwritten_fragments=12))
    assert "1,280 env steps, too old" in text
    assert "12 fragments that nobody had taken" in text
