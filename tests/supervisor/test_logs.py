"""Bounded log files, and the pump that fills them from real children."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from rltrain.supervisor import logs
from rltrain.supervisor.logs import EARLY_BYTES, BoundedLog, OutputPump


def opened(path, max_bytes):
    log = BoundedLog(max_bytes)
    log.open(path)
    return log


@pytest.fixture
def log(tmp_path):
    log = opened(tmp_path / "actor-0.log", max_bytes=4096)
    yield log
    log.close()


def test_log_beyond_its_limit_keeps_the_newest_whole_lines(log):
    for i in range(1000):
        log.write(b"line %04d of many\n" % i)
        assert log.path.stat().st_size <= 4096
    first, *lines = log.path.read_bytes().splitlines()
    assert b"older output were dropped" in first
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(numbers[0], 1000))
    assert len(lines) > 50
    assert log.lost_bytes == 0


def test_log_at_a_resumed_run_goes_on_behind_the_old_lines(tmp_path):
    for text in (b"first\n", b"second\n"):
        log = opened(tmp_path / "log", max_bytes=4096)
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"


def test_log_written_before_it_is_opened_keeps_the_newest_part(tmp_path):
    log = BoundedLog(max_bytes=1 << 20)
    log.write(b"dropped\n")
    log.write(b"x" * (EARLY_BYTES - 6))
    log.write(b"\nlast\n")
    assert log.tail(1) == ["last"]
    log.open(tmp_path / "log")
    log.write(b"later\n")
    content = (tmp_path / "log").read_bytes()
    assert len(content) == EARLY_BYTES + 6
    assert content.startswith(b"xxx")
    assert content.endswith(b"x\nlast\nlater\n")
    log.close()


def test_log_tail_joins_pieces_and_holds_forty_lines(log):
    for piece in (b"one", b" two\nthr", b"ee\r\n", b"caf\xff"):
        log.write(piece)
    assert log.tail(9) == ["one two", "three", "caf\ufffd"]
    assert log.tail(1) == ["caf\ufffd"]
    assert log.tail(0) == []
    log.write(b"\n" * 100)
    assert len(log.tail(99)) == 40


def test_log_with_an_endless_line_stays_bounded(log):
    for _ in range(100):
        log.write(b"x" * 1000)
    assert log.path.stat().st_size <= 4096
    assert len(log.tail(1)[0]) <= 4096


def test_log_on_a_full_disk_counts_what_it_lost_and_keeps_the_tail():
    log = opened("/dev/full", max_bytes=4096)
    log.write(b"nobody will read this\n")
    log.write(b"nor this\n")
    assert log.lost_bytes == 31
    assert log.tail(2) == ["nobody will read this", "nor this"]
    log.close()


def spawn(pump, log, code):
    reading, writing = os.pipe()
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=writing, stderr=writing)
    os.close(writing)
    pump.register(reading, log)
    return child


def poll_until(pump, condition):
    deadline = time.monotonic() + 20
    while not condition(pump.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_pump_copies_both_streams_of_children_to_their_ends(tmp_path):
    pump, files = OutputPump(), [opened(tmp_path / str(i), 1 << 20) for i in range(2)]
    code = "import sys; print('out'); sys.stdout.flush(); print('err', {}, file=sys.stderr)"
    children = [spawn(pump, log, code.format(i)) for i, log in enumerate(files)]
    poll_until(pump, lambda num_open: num_open == 0)
    for i, (child, log) in enumerate(zip(children, files, strict=True)):
        assert child.wait(timeout=10) == 0
        assert log.path.read_text() == f"out\nerr {i}\n"
        log.close()
    pump.close()


def test_pump_with_an_endless_child_returns_and_serves_the_quiet_one(tmp_path):
    pump, loud, quiet = OutputPump(), opened(tmp_path / "loud", 1 << 16), opened(tmp_path / "quiet", 1 << 16)
    shouter = spawn(pump, loud, "import os\nwhile True: os.write(1, b'noise' * 1000)")
    whisperer = spawn(pump, quiet, "print('hello')")
    poll_until(pump, lambda _: quiet.tail(1) == ["hello"] and loud.tail(1))
    shouter.kill()
    assert shouter.wait(timeout=10) == -9
    assert whisperer.wait(timeout=10) == 0
    poll_until(pump, lambda num_open: num_open == 0)
    for closable in (pump, loud, quiet):
        closable.close()


def test_pump_close_takes_what_is_left_and_closes_the_pipe(log):
    pump = OutputPump()
    reading, writing = os.pipe()
    pump.register(reading, log)
    os.write(writing, b"last words")
    pump.close()
    assert log.tail(1) == ["last words"]
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"too late")
    os.close(writing)


def test_pump_reads_a_bounded_amount_in_one_poll(log, monkeypatch):
    monkeypatch.setattr(logs, "READ_BYTES", 500)
    monkeypatch.setattr(logs, "BYTES_PER_POLL", 1000)
    pump = OutputPump()
    reading, writing = os.pipe()
    pump.register(reading, log)
    os.write(writing, b"x" * 1500)
    sizes = [(pump.poll(), log.path.stat().st_size)[1] for _ in range(3)]
    assert sizes == [1000, 1500, 1500]
    os.close(writing)
    pump.close()
