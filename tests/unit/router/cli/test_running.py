import os

from router.cli.running import Running, find_running, noted


def test_the_note_is_there_while_it_is_true(tmp_path):
    path = tmp_path / "deep" / "up.json"
    running = Running(os.getpid(), "http://x", "redis://y")
    with noted(running, path):
        assert find_running(path) == running
    assert not path.exists()


def test_the_note_of_a_process_that_is_gone_does_not_count(tmp_path):
    with noted(Running(2**22 + 1, "http://x", "redis://y"), tmp_path / "up.json"):
        assert find_running(tmp_path / "up.json") is None


def test_a_newer_note_is_left_alone(tmp_path):
    path = tmp_path / "up.json"
    newer = Running(os.getpid(), "http://newer", "redis://y")
    with noted(newer, path):
        with noted(Running(os.getpid(), "http://older", "redis://y"), path):
            path.write_bytes(b'{"pid": %d, "url": "http://newer", "store": "redis://y"}' % os.getpid())
        assert find_running(path) == newer


def test_no_note_and_a_broken_note_are_nothing(tmp_path):
    assert find_running(tmp_path / "up.json") is None
    (tmp_path / "up.json").write_text("{")
    assert find_running(tmp_path / "up.json") is None
