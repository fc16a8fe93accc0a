"""Names that change places while what they were is still on its way to the store: nothing is lost, doubled, or stuck."""
import contextlib
import ctypes
import os
import threading
import time

import lake
import pytest
from mounts import MIB, Mount, eventually

SLOW = "op=copy,action=delay:300ms"
libc = ctypes.CDLL(None, use_errno=True)


def exchange(a, b):
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def objects(store):
    found = {}
    for key in store.list():
        if not key.endswith("/"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed since
                found[key] = store.get(key)
    return found


def publish(m, **files):
    for name, data in files.items():
        (m.path / name).write_bytes(data)
    m.wait()


def check(m, store, want):
    m.wait(timeout=30)
    assert objects(store) == want
    assert m.status()["conflicts"] == 0
    time.sleep(1.2)
    assert {n: (m.path / n).read_bytes() for n in os.listdir(m.path) if (m.path / n).is_file()} == want


def hold_up(m):
    """The renames that follow have to wait for this file's upload, so that none is carried out before the last is asked for."""
    (m.path / "first").write_bytes(b"1")


def test_three_renames_swap_two_files(make_mount, store):
    m = make_mount(fault=SLOW + ";op=put,action=delay:500ms")
    publish(m, a=b"A", b=b"BB")
    hold_up(m)
    os.rename(m.path / "a", m.path / "t")
    os.rename(m.path / "b", m.path / "a")
    os.rename(m.path / "t", m.path / "b")
    check(m, store, {"a": b"BB", "b": b"A", "first": b"1"})


def test_file_moved_on_after_its_first_name_was_taken(make_mount, store):
    m = make_mount(fault=SLOW + ";op=put,action=delay:500ms")
    publish(m, a=b"old")
    hold_up(m)
    os.rename(m.path / "a", m.path / "t")
    (m.path / "a").write_bytes(b"new one")
    os.rename(m.path / "t", m.path / "u")
    check(m, store, {"a": b"new one", "first": b"1", "u": b"old"})


def test_renamed_file_still_written_does_not_block_its_old_name(make_mount, store):
    m = make_mount(fault=SLOW)
    publish(m, log=b"old\n")
    with open(m.path / "log", "ab", buffering=0) as f:
        f.write(b"more\n")
        os.rename(m.path / "log", m.path / "log.1")
        (m.path / "log").write_bytes(b"new\n")
        m.wait("log", timeout=15)
        assert store.get("log") == b"new\n"
        f.write(b"last\n")
    check(m, store, {"log": b"new\n", "log.1": b"old\nmore\nlast\n"})


def test_close_that_waits_for_the_store_takes_the_name_of_a_file_still_written(make_mount, store):
    m = make_mount(close="remote", op_timeout="20s")
    (m.path / "log").write_bytes(b"old\n")
    with open(m.path / "log", "r+b", buffering=0) as f:
        f.truncate(0)
        f.write(b"more\n")
        os.rename(m.path / "log", m.path / "log.1")
        began = time.monotonic()
        (m.path / "log").write_bytes(b"new\n")
        assert time.monotonic() - began < 10
        assert store.get("log") == b"new\n"
        f.write(b"last\n")
    check(m, store, {"log": b"new\n", "log.1": b"more\nlast\n"})


def test_name_that_was_renamed_to_a_held_one_is_written_again(mount, store):
    publish(mount, f=b"old")
    os.rename(mount.path / "f", mount.path / "f.tmp")
    (mount.path / "f").write_bytes(b"new")
    time.sleep(0.3)
    os.rename(mount.path / "f.tmp", mount.path / "g")
    check(mount, store, {"f": b"new", "g": b"old"})


@pytest.mark.parametrize("closed_first", [False, True])
def test_renamed_file_removed_after_its_old_name_was_taken(make_mount, store, closed_first):
    m = make_mount(fault=SLOW + ";op=put,action=delay:500ms")
    publish(m, a=b"old")
    hold_up(m)
    os.rename(m.path / "a", m.path / "b")
    with open(m.path / "a", "wb", buffering=0) as f:
        f.write(b"new")
        if not closed_first:
            os.unlink(m.path / "b")
    if closed_first:
        os.unlink(m.path / "b")
    check(m, store, {"a": b"new", "first": b"1"})
    assert "changed elsewhere" not in m.log()


@pytest.mark.parametrize("pause", [0, 0.15, 0.5])
def test_rename_there_and_back(make_mount, store, pause):
    m = make_mount(fault=SLOW)
    publish(m, a=b"A")
    os.rename(m.path / "a", m.path / "b")
    time.sleep(pause)
    os.rename(m.path / "b", m.path / "a")
    check(m, store, {"a": b"A"})


def test_rename_there_and_back_after_an_overwrite(make_mount, store):
    m = make_mount(fault="op=put,action=delay:300ms")
    publish(m, a=b"A")
    os.rename(m.path / "a", m.path / "b")
    (m.path / "b").write_bytes(b"second")
    time.sleep(0.1)
    os.rename(m.path / "b", m.path / "a")
    check(m, store, {"a": b"second"})


def test_directory_takes_the_name_of_a_file_that_moved(make_mount, store):
    m = make_mount(fault=SLOW)
    publish(m, a=b"A")
    os.rename(m.path / "a", m.path / "b")
    (m.path / "a").mkdir()
    assert eventually(lambda: list(objects(store)) == ["b"], 10), "the object at the old name stays"
    (m.path / "a/x").write_bytes(b"X")
    m.wait(timeout=30)
    assert objects(store) == {"a/x": b"X", "b": b"A"}


@pytest.fixture
def bucket():
    """A store in which `d` and `d/x` may stand beside each other."""
    made = lake.Lake()
    yield made
    made.remove()


def test_file_at_the_name_of_a_directory_that_is_still_being_removed_stays_a_file(bucket, base):
    m = Mount(bucket, base / "m", order="none", fault="op=delete,action=delay:4s")
    m.mount()
    try:
        (m.path / "d").mkdir()
        (m.path / "d/x").write_bytes(b"below")
        m.wait()
        os.unlink(m.path / "d/x")
        os.rmdir(m.path / "d")
        (m.path / "d").write_bytes(b"file")
        os.setxattr(m.path / "d", "user.mark", b"1")
        m.remount()
        assert "d/x" in bucket.objects
        until = time.monotonic() + 3
        while time.monotonic() < until:
            os.listdir(m.path)
            assert (m.path / "d").read_bytes() == b"file"
            time.sleep(0.2)
        m.wait(timeout=60)
        assert bucket.list() == ["d"]
        assert os.getxattr(m.path / "d", "user.mark") == b"1"
    finally:
        m.finish()


class Huge:
    """Content of an object that is copied by parts, of which nobody reads a byte."""

    def __len__(self):
        return 6 << 30

    def __getitem__(self, part):
        return b"%d" % part.start


@pytest.mark.parametrize("end", [Mount.umount, Mount.kill9])
def test_interrupted_copy_of_a_huge_object_leaves_no_upload(bucket, base, monkeypatch, end):
    handler = bucket.server.RequestHandlerClass
    plain, put = handler.do_PUT, bucket.put
    goes_on, reached = threading.Event(), threading.Event()

    def put_part(self):
        if "/moved?" in self.path and "partNumber=2&" in self.path + "&":
            reached.set()
            goes_on.wait()
        plain(self)

    def put_huge(key, data, meta=None):
        etag = put(key, b"huge", meta)
        bucket.objects[key] = (data if isinstance(data, Huge) or key != "moved" else Huge(), etag, meta or {})
        return etag

    monkeypatch.setattr(handler, "do_PUT", put_part)
    monkeypatch.setattr(bucket, "put", put_huge)
    bucket.put("huge", Huge())
    m = Mount(bucket, base / "m").mount()
    try:
        os.rename(m.path / "huge", m.path / "moved")
        assert reached.wait(60)
        first = next(q["uploadId"] for _, key, q in bucket.calls if key == "moved" and "uploadId" in q)
        end(m)
        assert first in bucket.metas
        m.mount()
        assert eventually(lambda: first not in bucket.metas, 60)
        goes_on.set()
        m.wait(timeout=60)
        assert bucket.list() == ["moved"] and not bucket.metas
    finally:
        goes_on.set()
        m.finish()


@pytest.mark.parametrize("pause", [0, 1])
def test_exchange_of_published_files(mount, store, pause):
    a, b = os.urandom(3 * MIB), os.urandom(MIB)
    publish(mount, a=a, b=b)
    for _ in range(6):
        exchange(mount.path / "a", mount.path / "b")
        a, b = b, a
        time.sleep(pause / 4)
    check(mount, store, {"a": a, "b": b})


def test_exchange_after_an_edit_of_files_that_were_never_read(mount, store):
    a, b = bytearray(os.urandom(40 * MIB)), bytearray(os.urandom(40 * MIB))
    store.put("a", bytes(a))
    store.put("b", bytes(b))
    for name, data in (("a", a), ("b", b)):
        with open(mount.path / name, "r+b", buffering=0) as f:
            f.seek(5 * MIB)
            f.write(b"edited")
        data[5 * MIB:5 * MIB + 6] = b"edited"
    exchange(mount.path / "a", mount.path / "b")
    check(mount, store, {"a": bytes(b), "b": bytes(a)})


def test_empty_directory_moved_twice_leaves_no_marker_behind(mount, store):
    (mount.path / "one").mkdir()
    mount.wait(timeout=30)
    os.rename(mount.path / "one", mount.path / "two")
    os.rename(mount.path / "two", mount.path / "three")
    mount.wait(timeout=30)
    time.sleep(1.2)
    assert os.listdir(mount.path) == ["three"]


def test_directory_whose_last_file_moved_away_stays(mount, store):
    store.put("d/only", b"x")
    assert os.listdir(mount.path / "d") == ["only"]
    os.rename(mount.path / "d/only", mount.path / "elsewhere")
    mount.wait(timeout=30)
    time.sleep(1.2)
    assert sorted(os.listdir(mount.path)) == ["d", "elsewhere"]
    time.sleep(1.2)
    assert sorted(os.listdir(mount.path)) == ["d", "elsewhere"]


def test_chmod_while_the_content_is_uploaded_reaches_the_store(make_mount, store):
    m = make_mount(fault="op=put,action=delay:500ms")
    (m.path / "warm").write_bytes(b"x")
    m.wait()
    (m.path / "f").write_bytes(b"data")
    time.sleep(0.2)
    os.chmod(m.path / "f", 0o751)
    m.wait(timeout=30)
    again = make_mount("again", posix_meta="on")
    assert oct(os.stat(again.path / "f").st_mode & 0o777) == "0o751"
