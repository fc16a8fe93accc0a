"""What the store sees and when: whole objects only, in order, under the final name, renames and deletes carried along."""
import errno
import json
import os
import subprocess
import threading
import time

import pytest
from mounts import MIB, eventually, run


class Watcher:
    """Polls the bucket: every (key, size) that was ever visible, in order of first sight."""

    def __init__(self, store):
        self.store, self.seen, self.order, self.listings = store, {}, [], []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)

    def poll(self):
        while not self.stop.is_set():
            listing = self.store.list()
            self.listings.append(set(listing))
            for key, size in listing.items():
                if key not in self.seen:
                    self.order.append(key)
                self.seen.setdefault(key, set()).add(size)
            time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        time.sleep(0.1)
        self.stop.set()
        self.thread.join(30)


def test_nothing_half_written_is_visible(mount, store):
    block = os.urandom(4 * MIB)
    with Watcher(store) as watcher, open(mount.path / "big", "wb", buffering=0) as f:
        for _ in range(25):
            f.write(block)
            time.sleep(0.05)
        f.close()
        mount.wait()
    assert watcher.seen["big"] == {100 * MIB}
    assert watcher.order == ["big"]
    assert store.get("big") == block * 25
    assert store.uploads() == []


def test_save_by_temporary_and_rename_uploads_once_under_the_final_name(mount, store):
    data = os.urandom(20 * MIB)
    (mount.path / "first").write_bytes(b"the store is probed at the first write")
    mount.wait()
    store.delete("first")
    before = mount.status()
    with Watcher(store) as watcher:
        with open(mount.path / "ckpt.pt.tmp", "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.rename(mount.path / "ckpt.pt.tmp", mount.path / "ckpt.pt")
        mount.wait()
    assert watcher.order == ["ckpt.pt"]
    assert store.get("ckpt.pt") == data
    after = mount.status()
    assert after["uploaded_bytes"] - before["uploaded_bytes"] <= len(data) * 1.05 + MIB
    assert after["requests"]["copy"] == before["requests"]["copy"]


def test_a_held_name_is_not_published_until_renamed(mount, store):
    (mount.path / "y").write_bytes(b"free")
    (mount.path / "x.tmp").write_bytes(b"held")
    mount.wait("y")
    time.sleep(1)
    assert store.list() == {"y": 4}
    os.rename(mount.path / "x.tmp", mount.path / "x")
    mount.wait()
    assert store.get("x") == b"held"


def test_marker_is_never_visible_before_what_it_points_to(mount, store):
    (mount.path / "step_1").mkdir()
    with Watcher(store) as watcher:
        for i in range(4):
            (mount.path / f"step_1/shard{i}").write_bytes(os.urandom(10 * MIB))
        (mount.path / "latest").write_text("step_1")
        mount.wait()
    early = [seen for seen in watcher.listings if "latest" in seen and len(seen) < 5]
    assert not early, early
    assert len(watcher.order) == 5


def test_close_remote_returns_when_the_object_is_there(make_mount, store):
    m = make_mount(close="remote")
    for size in (1, 10, 20 * MIB):
        data = os.urandom(size)
        (m.path / f"f{size}").write_bytes(data)
        assert store.get(f"f{size}") == data
    (m.path / "empty").touch()
    assert store.get("empty") == b""


def test_close_remote_does_not_publish_a_file_before_the_program_writes_it(make_mount, store):
    """`cmd > f` closes a copy of the descriptor before cmd runs."""
    m = make_mount(close="remote")
    with open(m.path / "f", "wb", buffering=0) as f:
        os.close(os.dup(f.fileno()))
        assert "f" not in store.list()
        f.write(b"all")
    assert store.get("f") == b"all"
    subprocess.run(["sh", "-c", f"printf ran > {m.path}/out"], check=True)
    assert store.get("out") == b"ran"


def test_fsync_remote_returns_when_the_bytes_are_there(make_mount, store):
    m = make_mount(fsync="remote")
    with open(m.path / "f", "wb", buffering=0) as f:
        f.write(b"first part")
        os.fsync(f.fileno())
        assert store.get("f") == b"first part"
        f.write(b" and second")
        os.fsync(f.fileno())
        assert store.get("f") == b"first part and second"
        f.write(b" end")
    m.wait()
    assert store.get("f") == b"first part and second end"


def test_fsync_remote_counts_for_what_others_wrote(make_mount, store):
    m = make_mount(fsync="remote")
    (m.path / "f.part").write_bytes(b"closed")  # held: not published by itself for minutes
    with open(m.path / "f.part", "rb") as f:
        os.fsync(f.fileno())
    assert store.get("f.part") == b"closed"
    with open(m.path / "g.part", "wb", buffering=0) as w, open(m.path / "g.part", "rb") as f:
        w.write(b"so far")
        os.fsync(f.fileno())
        assert store.get("g.part") == b"so far"
        w.write(b", all")
    with open(m.path / "g.part", "rb") as f:
        os.fsync(f.fileno())
    assert store.get("g.part") == b"so far, all"


def test_rename_and_unlink_reach_the_store(mount, store):
    for name in ("a", "b", "c"):
        (mount.path / name).write_bytes(name.encode())
    mount.wait()
    os.rename(mount.path / "a", mount.path / "renamed")
    os.unlink(mount.path / "b")
    os.replace(mount.path / "c", mount.path / "renamed")
    mount.wait()
    assert store.list() == {"renamed": 1}
    assert store.get("renamed") == b"c"


def test_directory_rename_moves_every_object(mount, store):
    for i in range(30):
        store.put(f"old/sub{i % 3}/f{i}", b"%d" % i)
    assert len(os.listdir(mount.path / "old/sub1")) == 10
    os.rename(mount.path / "old", mount.path / "new")
    assert (mount.path / "new/sub1/f1").read_bytes() == b"1"
    mount.wait()
    assert sorted(store.list()) == sorted(f"new/sub{i % 3}/f{i}" for i in range(30))
    assert all(store.get(f"new/sub{i % 3}/f{i}") == b"%d" % i for i in range(30))


def test_rm_rf_removes_every_object(mount, store):
    for i in range(30):
        store.put(f"d/s{i % 3}/f{i}", b"x")
    store.put("keep", b"x")
    subprocess.run(["rm", "-rf", mount.path / "d"], check=True, timeout=60)
    mount.wait()
    assert store.list() == {"keep": 1}


def test_file_removed_before_upload_never_shows(mount, store):
    with Watcher(store) as watcher:
        for i in range(20):
            (mount.path / "t.tmp").write_bytes(os.urandom(1000))
            os.unlink(mount.path / "t.tmp")
        mount.wait()
    assert watcher.order == []


def test_rewriting_quickly_ends_with_the_last_version(mount, store):
    for i in range(50):
        (mount.path / "f").write_bytes(b"version %02d" % i)
    mount.wait()
    assert store.get("f") == b"version 49"


def test_wait_says_when_time_runs_out(make_mount):
    m = make_mount(fault="op=put,action=delay:30s")
    (m.path / "f").write_bytes(b"x")
    done = run("wait", "--timeout", "1s", m.path, check=False, timeout=30)
    assert done.returncode == 3, done.stdout + done.stderr
    assert m.status()["dirty_files"] >= 1


def test_status_and_info_tell_the_state(mount, store):
    (mount.path / "f").write_bytes(b"12345")
    mount.wait()
    status = mount.status()
    assert status["source"] == store.source
    assert status["dirty_files"] == 0 and status["dirty_bytes"] == 0
    assert status["requests"]["put"] >= 1
    assert os.path.exists(f"/proc/{status['pid']}")
    info = mount.info("f")
    assert info["size"] == 5 and info["dirty_bytes"] == 0 and info["key"] == "f"


def test_asking_what_is_cached_brings_nothing_here(mount, store):
    store.put("f", b"x" * 1000)
    assert eventually((mount.path / "f").exists, 5)
    assert os.getxattr(mount.path / "f", "user.sluice.cached") == b"0"
    assert not [p for p in (mount.cache / "data").rglob("*") if p.is_file()]
    assert (mount.path / "f").read_bytes() == b"x" * 1000
    assert os.getxattr(mount.path / "f", "user.sluice.cached") == b"1000"


def test_two_writers_of_one_name_keep_both(make_mount, store):
    store.put("f", b"common base")
    a = make_mount("a", fault="op=put,action=delay:3s")
    assert (a.path / "f").read_bytes() == b"common base"
    (a.path / "f").write_bytes(b"ours, later")
    store.put("f", b"theirs came first")
    time.sleep(0.2)
    run("wait", "--timeout", "10s", a.path, check=False, timeout=60)
    assert a.status()["conflicts"] == 1
    assert store.get("f") == b"theirs came first"
    listed = run("conflicts", "list", a.path, check=False)
    assert "f" in listed.stdout
    kept = [p for p in (a.cache / "data").rglob("*") if p.is_file() and p.read_bytes() == b"ours, later"]
    assert kept, "our version is gone"


def test_a_change_elsewhere_shows_after_the_ttl(mount, store):
    store.put("f", b"one")
    assert (mount.path / "f").read_bytes() == b"one"
    store.put("f", b"two, longer")
    store.put("g", b"new")
    time.sleep(1.5)
    os.listdir(mount.path)
    time.sleep(0.5)
    assert (mount.path / "f").read_bytes() == b"two, longer"
    assert (mount.path / "g").read_bytes() == b"new"
    store.delete("g")
    time.sleep(1.5)
    os.listdir(mount.path)
    time.sleep(0.5)
    assert "g" not in os.listdir(mount.path)


def test_open_reader_never_mixes_two_versions(mount, store):
    store.put("big", b"A" * (24 * MIB))
    with open(mount.path / "big", "rb", buffering=0) as f:
        assert f.read(4096) == b"A" * 4096
        store.put("big", b"B" * (24 * MIB))
        got = set()
        for off in range(0, 24 * MIB, MIB):
            try:
                got |= set(os.pread(f.fileno(), 4096, off))
            except OSError as e:
                assert e.errno in (116, 5), e
        assert got == {ord("A")}


def test_what_others_put_into_a_directory_made_here_is_seen_from_inside_it(mount, store):
    def is_there():
        try:
            return os.stat("done", dir_fd=inside).st_size == 6
        except FileNotFoundError:
            return False

    os.mkdir(mount.path / "run")
    inside = os.open(mount.path / "run", os.O_RDONLY | os.O_DIRECTORY)  # nobody looks into its parent any more
    try:
        mount.wait()
        store.put("run/done", b"theirs")
        assert eventually(is_there, seconds=15)
    finally:
        os.close(inside)


@pytest.mark.parametrize("streams", [4])
def test_parallel_writers_publish_all(mount, store, streams):
    data = [os.urandom(6 * MIB) for _ in range(streams)]

    def write(i):
        with open(mount.path / f"shard{i}", "wb") as f:
            for off in range(0, len(data[i]), 65536):
                f.write(data[i][off:off + 65536])

    threads = [threading.Thread(target=write, args=(i,)) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    mount.wait()
    assert all(store.get(f"shard{i}") == data[i] for i in range(streams))


@pytest.mark.parametrize("target,more", [("d/" * 907, "e"), ("\u00fc" * 302, "\u00fc")], ids=["ascii", "encoded"])
def test_symlink_that_the_store_could_not_keep_is_refused(make_mount, target, more):
    a = make_mount("a")
    with pytest.raises(OSError) as refused:
        os.symlink(target + more, a.path / "longer")
    assert refused.value.errno == errno.ENAMETOOLONG
    os.symlink(target, a.path / "longest")
    a.wait()
    b = make_mount("b")
    assert os.listdir(b.path) == ["longest"]
    assert os.readlink(b.path / "longest") == target


def test_wait_tells_how_much_of_one_file_is_sent(make_mount):
    m = make_mount(fault="op=part,action=delay:600ms", part_size="5M", max_uploads=1)
    (m.path / "big").write_bytes(os.urandom(30 * MIB))
    lines = [json.loads(line) for line in run("wait", "--progress", "json", m.path / "big", timeout=120).stdout.splitlines()]
    left = [line["bytes_left"] for line in lines if line["event"] == "progress"]
    assert [n for n in left if 0 < n < 30 * MIB], left
    assert all(a >= b for a, b in zip(left, left[1:])), left
