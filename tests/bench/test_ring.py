"""`rltrain bench ring` in small: what both sides do, what is compared, what an interrupted bench says."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rltrain.bench.figures import Figure
from rltrain.bench.partner import PartnerError
from rltrain.bench.report import as_json, lines_of
from rltrain.bench.ring import LOOKING, SLEEPING, Plan, RingBench
from rltrain.bench.ring_sides import WRITER, Reader, Writer, arena_of, schema_of
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from tests.bench.records import RECORD

SIZE = 64 << 10


@pytest.mark.parametrize("nbytes", [64 << 10, 256 << 10, 2 << 20])
def test_schema_has_about_the_bytes_asked_for(nbytes):
    assert schema_of(nbytes).slot_bytes() == pytest.approx(nbytes, rel=0.01)


@pytest.fixture
def sides():
    """A writer and a reader of small fragments in this process, on arenas of their own attachment."""
    arena = arena_of(SIZE)
    yield Writer(arena), Reader(arena, lambda: None), TrajectoryRing(arena)
    arena.close()


@pytest.mark.parametrize("count", [1, 40])
def test_written_fragments_are_gathered_whole_and_the_ring_is_empty_again(sides, count):
    writer, reader, ring = sides
    thread = threading.Thread(target=writer.write, args=(count,))
    thread.start()
    assert reader.gather(count) >= 0
    thread.join(20)
    assert ring.published == count
    assert ring.states()["free"] == 16
    assert np.count_nonzero(reader._batch["obs"][:, : 8 * min(count, 8)] != 1) == 0


def test_gathered_fragment_of_other_rows_is_found_out(sides):
    _, reader, ring = sides
    slot = ring.claim(WRITER, 0)
    ring.field("policy_version")[slot, 0] = 5
    ring.publish(slot, WRITER, FragmentMeta(0, 0, 0, 4))
    with pytest.raises(PartnerError, match="fragment 4 holds the rows of fragment 5"):
        reader.gather(1)


@pytest.mark.parametrize("wait_s", [0.2, 0.0])
def test_empty_fragments_go_through_however_the_sides_wait(sides, wait_s):
    writer, reader, ring = sides
    thread = threading.Thread(target=writer.empty, args=(100, wait_s))
    thread.start()
    assert reader.empty(100, wait_s) > 0
    thread.join(20)
    assert (ring.published, ring.states()["free"]) == (100, 16)


def test_bench_measures_every_side_and_reports_it():
    bench = RingBench(Plan(sizes=(SIZE,), turns=2, turn_s=0.002))
    told = []
    bench.run(lambda *said: told.append(said))
    figures = [*bench.empty.values(), *bench.verbs.values(), bench.ring[SIZE], bench.side_by_side[SIZE]]
    assert [len(figure.values) for figure in [*figures, bench.alone[SIZE]]] == [2] * 9
    assert all(value > 0 for figure in figures for value in figure.values)
    assert told[-1][0] == pytest.approx(told[-1][1])
    report = bench.report(RECORD)
    text = "\n".join(lines_of(report))
    for wanted in ("64 KiB", SLEEPING, LOOKING, "written once and read once", "copies side by side"):
        assert wanted in text
    assert as_json(report)["tables"][2]["rows"][0][1]["values"] == bench.ring[SIZE].values


def test_bars_say_whether_they_are_reached_and_nothing_where_nothing_was_measured():
    bench = RingBench(Plan())
    assert [row[3] for row in bench.report(RECORD).tables[-1].rows] == ["-", "-", "-"]
    bench.ring[2 << 20], bench.side_by_side[2 << 20] = Figure("GB/s", [4.0, 7.0]), Figure("GB/s", [5.0, 10.0])
    bench.empty[SLEEPING].values.append(199_999.0)
    bench.empty[LOOKING].values.append(200_000.0)
    assert [row[3] for row in bench.report(RECORD).tables[-1].rows] == ["no", "no", "yes"]
