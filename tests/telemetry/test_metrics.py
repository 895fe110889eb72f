from __future__ import annotations

from pathlib import Path

import pytest

from rltrain.shm.counters import STATES
from rltrain.telemetry import curves, metrics
from rltrain.telemetry.gpu import GpuSample
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.metrics import METRICS, as_markdown, metric_for
from tests.telemetry.samples import RING, row


def ledger_sample():
    rows = [(role, row(role)) for role in STATES]

    class OneGpu:
        def read(self):
            return (GpuSample(0, "GPU", 50.0, 2**30, 2**34, 100.0, 300.0),)

    ledger = Ledger(rows, lambda: RING, OneGpu())
    for _, made in rows:
        for state in STATES[made.role]:
            made.enter(state)
    server, learner = rows[1][1], rows[2][1]
    server.add("batches")
    server.add("rows", 8)
    server.observe("queue_delay_us", 20)
    server.observe("service_us", 20)
    learner.observe("policy_lag_versions", 1)
    learner.set("replay_size", 100)
    ledger.sample()
    return ledger.window()


def test_curves_scalars_of_a_full_sample_stand_in_the_table():
    values = curves.scalars(ledger_sample())
    assert [name for name in values if metric_for(name) is None] == []
    assert {f"ledger/actor/{state}" for state in STATES["actor"]} <= set(values)
    assert "system/gpu0_power_w" in values


def test_curves_scalars_cover_every_scalar_that_the_supervisor_writes():
    written = {metric_for(name) for name in curves.scalars(ledger_sample())}
    promised = {
        m for m in METRICS if m.writer == "supervisor" and m.kind == "scalar" and not m.name.startswith("final/")
    }
    assert promised - written == set()


def test_ledger_histograms_are_the_histograms_of_the_table():
    assert set(ledger_sample().histograms) == {m.name for m in METRICS if m.kind == "histogram"}


def test_metrics_hold_every_name_of_the_algorithms_diagnostics():
    torch = pytest.importorskip("torch")
    from rltrain.algos.diagnostics import Diagnostics
    from rltrain.algos.schedules import Rates
    from tests import replayed

    diagnostics = Diagnostics(clip_range=0.2)
    one, rows = torch.ones(()), torch.full((4,), 0.25)
    diagnostics.add(one, one, one, one, torch.zeros(4), rows)
    diagnostics.add_values(rows, rows, rows)
    written = {f"loss/{name}" for name in diagnostics.metrics(Rates(1e-3, 0.0))}
    for algorithm in replayed.REPLAY_ALGORITHMS:
        update = replayed.start(replayed.replay_config(algorithm))[1]
        for seed in range(2):  # TD3's actor changes in every second update only
            _, metrics = update(replayed.transitions(replayed.spec_for(algorithm), seed), 0.0)
        written |= {f"loss/{name}" for name in metrics}
    assert written == {m.name for m in METRICS if m.name.startswith("loss/")}


def test_metric_for_placeholder_takes_one_word_only():
    assert metric_for("ledger/actor/env_step").name == "ledger/<role>/<state>"
    assert metric_for("ledger/actor/env_step/more") is None
    assert metric_for("ledger/actor") is None
    assert metric_for("system/gpu12_power_w").unit == "W"


def test_metrics_names_are_unique_within_their_kind():
    names = [(m.name, m.kind) for m in METRICS]
    assert len(names) == len(set(names))


def test_as_markdown_has_a_row_of_five_cells_for_each_metric():
    lines = as_markdown().splitlines()
    assert len(lines) == len(METRICS) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}


def test_readme_table_is_the_table_in_the_code():
    page = (Path(metrics.__file__).parent / "README.md").read_text(encoding="utf-8")

    assert metrics.as_markdown().strip() in page
