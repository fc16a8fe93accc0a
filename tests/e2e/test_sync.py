"""`sluice sync` and --sync: everything is known before it is asked for, differences alone are applied, failures are named."""
import json
import os
import pathlib
import signal
import threading

import pytest
from mounts import QUICK, eventually, run

DIRS, FILES = (10, 20) if QUICK else (20, 50)


def make_lake(store, dirs=DIRS, files=FILES):
    keys = [f"set/d{d:03}/f{f:04}" for d in range(dirs) for f in range(files)]
    todo = list(keys)

    def work():
        while True:
            try:
                store.put(todo.pop(), b"x")
            except IndexError:
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return keys


def requests(m):
    r = m.status()["requests"]
    return r["list"] + r["head"] + r["get"]


def sync(m, *args, path="", check=True):
    """The last line of each sync."""
    done = run("sync", "--json", *args, m.path / path, check=check)
    return [line for line in map(json.loads, done.stdout.splitlines()) if line["event"] == "sync" and line["state"] != "running"]


def names(m):
    return sorted(str(pathlib.Path(top, f).relative_to(m.path)) for top, _, files in os.walk(m.path) for f in files)


def test_all_is_known_after_a_sync_and_in_the_next_mount(make_mount, store):
    keys = make_lake(store)
    m = make_mount(metadata_ttl="1h")
    (line,) = sync(m)
    assert (line["state"], line["errors"], line["names"]) == ("done", 0, len(keys) + DIRS + 1)
    before = requests(m)
    assert names(m) == keys
    assert all((m.path / k).stat().st_size == 1 for k in keys)
    assert requests(m) == before
    m.remount()
    before = requests(m)
    assert names(m) == keys
    assert not (m.path / "set/d001/nothing").exists()
    assert requests(m) == before


def test_second_sync_applies_the_difference(make_mount, store):
    keys = make_lake(store)
    m = make_mount(metadata_ttl="1h", hold="held-*", hold_delay="1h")
    sync(m)
    assert names(m) == keys
    same = (m.path / keys[0]).stat().st_ino
    (m.path / "set/d002/held-1").write_bytes(b"only here")
    (m.path / "set/new-here").mkdir()
    (m.path / "set/new-here/held-2").write_bytes(b"only here")
    store.put("set/d001/added", b"x")
    store.put(keys[1], b"changed")
    store.delete(keys[2])
    store.put("other/deep/one", b"x")
    (line,) = sync(m)
    assert line["state"] == "done"
    gone = set(names(m)) ^ (set(keys) - {keys[2]} | {"set/d001/added", "set/d002/held-1", "set/new-here/held-2", "other/deep/one"})
    assert not gone
    assert (m.path / keys[1]).read_bytes() == b"changed"
    assert (m.path / keys[0]).stat().st_ino == same
    assert (m.path / "set/d002/held-1").read_bytes() == b"only here"
    (line,) = sync(m)
    assert (line["state"], line["changed"]) == ("done", 0)
    (line,) = sync(m, "--incremental")
    assert line["directories"] == 0 and line["left_out"] > DIRS


def test_directory_that_cannot_be_listed_is_named(make_mount, store):
    make_lake(store, 2, 3)
    m = make_mount(metadata_ttl="1h")
    assert sorted(os.listdir(m.path)) == ["set"]
    m.remount(fault="op=list,nth=1,count=1000000,action=error:-EIO")
    done = run("sync", m.path / "set", check=False)
    assert done.returncode == 1 and "set" in done.stderr
    status = m.status()
    assert status["unlisted_directories"] == 1
    assert status["unlisted"][0]["path"] == "set"
    for path in ("set/d000", "set/nothing"):
        with pytest.raises(OSError) as failure:
            (m.path / path).stat()
        assert failure.value.errno == 5
    with pytest.raises(OSError):
        os.listdir(m.path / "set")
    assert "set" in run("status", m.path).stdout
    m.remount(fault="op=get,nth=1000000,action=error:-EIO")
    assert sorted(os.listdir(m.path / "set")) == ["d000", "d001"]
    assert m.status()["unlisted_directories"] == 0


def test_sync_goes_on_in_the_next_worker(make_mount, store):
    keys = make_lake(store, 40, 3)
    m = make_mount(metadata_ttl="1h", settle="0s", fault="op=list,action=delay:500ms")
    run("sync", "-b", "-p", "1", m.path)  # the first page one by one: the kill comes long before its end

    def lines():
        return [json.loads(x) for x in run("sync", "--status", "--json", m.path).stdout.splitlines()]

    assert eventually(lambda: lines()[0]["directories"] >= 3)
    assert m.kill_worker()
    assert eventually(lambda: [x for x in lines() if x["state"] != "running"], 60)
    (line,) = lines()
    assert line["state"] == "done" and line["left_out"] >= 3
    assert line["left_out"] + line["directories"] == 42
    before = requests(m)
    assert names(m) == keys
    assert requests(m) == before


def test_option_syncs_at_mount_and_again(make_mount, store):
    keys = make_lake(store, 3, 3)
    m = make_mount(metadata_ttl="1h", sync="full")
    assert eventually(lambda: m.status()["synced_at"])
    before = requests(m)
    assert names(m) == keys
    assert requests(m) == before
    m.umount()
    m.mount(sync="1s")
    store.put("set/d000/later", b"x")
    assert eventually(lambda: (m.path / "set/d000/later").exists())


def test_command_says_what_is_wrong(mount, base):
    assert run("sync", "--full", "--incremental", mount.path, check=False).returncode == 2
    assert run("sync", "-p", "65", mount.path, check=False).returncode == 2
    outside = run("sync", base, check=False)
    assert outside.returncode == 1 and "not in a sluice mount" in outside.stderr
    nowhere = run("sync", mount.path / "nowhere", check=False)
    assert nowhere.returncode == 1 and "nowhere" in nowhere.stderr
    (mount.path / "file").write_bytes(b"x")
    assert run("sync", mount.path / "file", check=False).returncode == 1
    wrong = run("mount", mount.source, base / "m2", "--sync", "sometimes", check=False)
    assert wrong.returncode == 2 and "sync 'sometimes'" in wrong.stderr


@pytest.mark.slow  # and what memory a build with sanitizers takes says nothing
@pytest.mark.directory  # objects are made past the store
def test_memory_stays_bounded(make_mount, store):
    (store.root / "flat").mkdir()
    for i in range(100_000):
        path = store.root / f"flat/name-of-an-object-{i:07}"
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.ftruncate(fd, 1)
        os.close(fd)
    m = make_mount(metadata_ttl="1h")
    for changed in (2, 0):
        (line,) = sync(m)
        assert (line["state"], line["changed"]) == ("done", changed)
    text = pathlib.Path(f"/proc/{m.status()['pid']}/status").read_text()
    most = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))
    assert most < 200 * 1024, f"{most} KiB"


def test_a_name_that_others_made_is_opened_by_who_creates_it(make_mount, store):
    """The kernel trusts that there is none, and asks for a new file."""
    m = make_mount(metadata_ttl="1h", negative_ttl="1h")
    (m.path / "d").mkdir()
    (m.path / "d/mine").write_bytes(b"1")
    m.wait()
    assert not (m.path / "d/theirs").exists()
    store.put("d/theirs", b"old")
    run("sync", m.path / "d")
    with pytest.raises(FileExistsError):
        os.open(m.path / "d/theirs", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    store.put("d/other", b"old")
    assert not (m.path / "d/other").exists()
    run("sync", m.path / "d")
    with open(m.path / "d/other", "ab") as f:
        f.write(b"new")
    assert (m.path / "d/other").read_bytes() == b"oldnew"


@pytest.mark.parametrize("how", ["write", "cut", "truncate", "chmod"])
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_change_by_a_name_that_others_replaced_is_one_of_theirs(make_mount, store, how, passthrough):
    """Though somebody reads the old file, and the kernel was not told yet."""
    store.put("d/f", b"old")
    m = make_mount(metadata_ttl="1h", passthrough=passthrough)
    path, notifier = m.path / "d/f", m.notifier()
    with open(path, "rb", buffering=0) as reader:
        assert reader.read() == b"old"  # all of it is here
        os.kill(notifier, signal.SIGSTOP)
        try:
            store.put("d/f", b"theirs")
            run("sync", m.path / "d", check=False)
            if how == "write":
                with open(path, "r+b") as f:
                    f.write(b"X")
            elif how == "cut":
                with open(path, "wb") as f:
                    f.write(b"X")
            elif how == "truncate":
                os.truncate(path, 2)
            else:
                os.chmod(path, 0o600)
            want = {"write": b"Xheirs", "cut": b"X", "truncate": b"th", "chmod": b"theirs"}[how]
            assert path.read_bytes() == want and os.pread(reader.fileno(), 9, 0) == b"old"
            assert how != "chmod" or path.stat().st_mode & 0o777 == 0o600
        finally:
            os.kill(notifier, signal.SIGCONT)
        m.wait()
        assert store.get("d/f") == want
    assert path.read_bytes() == want
