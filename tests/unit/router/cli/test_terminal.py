import io

import pytest

from router.cli.terminal import LiveLine, bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_one_rewritten_line():
    stream = Terminal()
    line = LiveLine(stream)
    line.show("one")
    line.show("two")
    line.say("stays")
    line.show("three")
    line.clear()
    line.clear()
    wipe = "\r\x1b[2K"
    assert stream.getvalue() == f"{wipe}one{wipe}two{wipe}stays\n{wipe}three{wipe}"


def test_a_long_line_is_cut():
    stream = Terminal()
    LiveLine(stream).show("x" * 500)
    assert stream.getvalue().count("x") == 100


def test_elsewhere_only_lines_that_stay_are_written():
    stream = io.StringIO()
    line = LiveLine(stream)
    line.show("gone")
    line.say("stays")
    line.clear()
    assert stream.getvalue() == "stays\n"


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [(0, 4, "[....] 0/4"), (1, 4, "[#...] 1/4"), (4, 4, "[####] 4/4"), (9, 4, "[####] 9/4"), (0, 0, "[####] 0/0")],
)
def test_the_bar_fills(done, total, text):
    assert bar(done, total, width_chars=4) == text
