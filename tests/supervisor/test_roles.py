"""What each process is told of the configuration."""

from __future__ import annotations

import pytest

from rltrain.config.load import load
from rltrain.supervisor.roles import plan_roles


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], (False, 0)),
        (["pipeline.max_queue_delay_us=70"], (False, 70)),
        (["pipeline.schedule=async"], (True, 5000)),
        (["pipeline.schedule=async", "pipeline.adaptive=false", "pipeline.max_queue_delay_us=70"], (False, 70)),
        (["pipeline.adaptive=true", "pipeline.max_queue_delay_us=5000"], (False, 0)),
    ],
)
def test_server_waits_as_configured_and_never_adapts_where_runs_are_the_same_each_time(tmp_path, options, expected):
    path = tmp_path / "config.toml"
    path.write_text('[env]\nid = "CartPole-v1"\n')
    loaded = load(path, options)
    (server,) = [plan for plan in plan_roles(loaded.config, None) if plan.role == "inference"]
    batcher = server.settings["batcher"]
    assert (batcher["adaptive"], batcher["max_queue_delay_us"]) == expected
    in_vain = expected == (False, 0) and len(options) == 2
    told = ["pipeline.adaptive", "pipeline.max_queue_delay_us"] if in_vain else []
    assert [text.split(" (")[0] for text in loaded.adjustments] == told
