from __future__ import annotations

import pytest

from rltrain.shm.counters import STATES
from rltrain.telemetry.figures import decimal, duration, mebibytes, one_line
from rltrain.telemetry.glyphs import ASCII, KINDS, UNICODE, glyphs_for, kind_of


@pytest.mark.parametrize("width", [1, 7, 19, 60])
@pytest.mark.parametrize("parts", [{"compute": 1 / 3, "copy": 1 / 3, "wait": 1 / 3}, {"boot": 1.0}, {"wait": 0.999}])
def test_glyphs_stacked_fills_the_width_exactly(parts, width):
    assert sum(len(text) for text, _ in UNICODE.stacked(parts, width)) == width


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_glyphs_kinds_differ_without_colour(glyphs):
    assert len({glyphs.fill[kind] for kind in KINDS}) == len(KINDS)


def test_kind_of_every_waiting_state_is_wait():
    states = {state for of_role in STATES.values() for state in of_role}
    waiting = {state for state in states if kind_of(state) == "wait"}
    assert waiting == {state for state in states if state.startswith("wait_")} | {"batch_delay", "sample"}


def test_glyphs_sparkline_spans_smallest_to_largest():
    assert UNICODE.sparkline([9.0, 0.0, float("nan"), 3.5, 7.0], 4) == "▁▅█"
    assert ASCII.sparkline([2.0, 2.0], 10) == "__"
    assert ASCII.sparkline([], 10) == ""


@pytest.mark.parametrize(
    ("encoding", "environ", "expected"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, UNICODE), ("utf-8", {"LANG": "C.utf8"}, UNICODE),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, ASCII),
        ("utf-8", {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, ASCII),
        ("utf-8", {}, ASCII), ("ascii", {"LANG": "en_US.UTF-8"}, ASCII), ("iso-8859-1", {"LANG": "de_DE"}, ASCII),
        ("utf-8", {"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, UNICODE), (None, {"LANG": "C.UTF-8"}, ASCII),
    ],
)
def test_glyphs_for_needs_a_utf8_stream_and_locale(encoding, environ, expected):
    assert glyphs_for(encoding, environ) is expected


def test_figures_as_text():
    assert [decimal(x) for x in (None, 0.0, 0.01234, 9.876, 12.34, -250.0, 123456.0)] == [
        "-", "0.0", "0.0123", "9.88", "12.3", "-250.0", "123,456"
    ]
    assert [duration(x) for x in (None, 59.94, 65, 3725)] == ["-", "59.9 s", "1:05 min", "1:02:05 h"]
    assert [mebibytes(x) for x in (2**28, 12 * 2**30)] == ["256 MiB", "12.0 GiB"]
    assert one_line("a\n\tb \x07é", "ascii") == "a b ?\\xe9"
