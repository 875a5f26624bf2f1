import asyncio
import os

from router import watched
from router.contract.errors import BadSettings
from router.watched import WatchedFiles, keep_fresh


def test_each_change_is_told_once(tmp_path):
    path, link, other = tmp_path / "a", tmp_path / "link", tmp_path / "b"
    path.write_text("1")
    other.write_text("1")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    link.symlink_to(path)
    files = WatchedFiles([link, tmp_path / "none"])
    assert not files.changed()
    path.write_text("12")
    assert files.changed() and not files.changed()
    link.unlink()
    link.symlink_to(other)  # as Kubernetes replaces a secret
    assert files.changed() and not files.changed()
    link.unlink()
    assert files.changed() and not files.changed()


def test_what_cannot_be_used_leaves_all_as_it_was(tmp_path, caplog):
    path, read = tmp_path / "a", []
    files = WatchedFiles([path])

    def parse():
        if path.read_text() == "bad":
            raise BadSettings("No.")
        read.append(path.read_text())

    files.reread(parse, "Keys")
    assert not read
    for text in ("good", "bad", "better"):
        path.write_text(text)
        files.reread(parse, "Keys")
        files.reread(parse, "Keys")
    assert read == ["good", "better"] and caplog.messages == ["Keys stay as they were. No."]


async def test_everything_is_refreshed_again_and_again(monkeypatch):
    monkeypatch.setattr(watched, "LOOK_S", 0.0)
    often = asyncio.Event()

    class Counter:
        count = 0

        def refresh(self):
            self.count += 1
            if self.count == 3:
                often.set()

    counters = [Counter(), Counter()]
    task = asyncio.create_task(keep_fresh(counters))
    await often.wait()
    task.cancel()
    assert counters[0].count >= 3 and counters[1].count >= 2


async def test_without_files_there_is_nothing_to_do():
    await keep_fresh([])
