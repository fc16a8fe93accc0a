"""`sluice bench DIR`: rows for any directory, what it says of a mount, nothing left behind, and its exit codes."""
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from mounts import MIB, SLUICE, eventually, run
from stores import PROBE

TINY = ["--size", "3000K", "--small-files", "5", "--threads", "1,3"]
BIG = ["read", "read-again", "mmap", "random-128k", "random-4k"]
SMALL = ["small-write", "small-stat", "small-read", "readdir"]


def bench(where, *more):
    """The first line, and the rows by (item, threads)."""
    lines = [json.loads(line) for line in run("bench", "--json", *TINY, *more, where, timeout=120).stdout.splitlines()]
    rows = [line for line in lines if line["event"] == "result"]
    return lines[0], {(row["item"], row["threads"]): row for row in rows}, [row["item"] for row in rows]


def start(where, *more):
    return subprocess.Popen([SLUICE, "bench", "--size", "2G", *more, str(where)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(where):
    """Has the big file been begun below where?"""
    return [f for f in where.glob(".sluice-bench-*/big") if f.stat().st_size > 0]


def children(pid):
    return [int(n) for n in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_plain_directory(base):
    head, rows, names = bench(base)
    assert names == ["write", *BIG, *SMALL, *SMALL]
    assert head["event"] == "start" and head["dir"] == str(base) and head["mount"] is None
    assert rows["write", 1]["bytes"] == 3000 * 1024 and rows["write", 1]["calls"] == 3
    assert rows["small-read", 3]["calls"] == 15 and rows["small-read", 3]["bytes"] == 15 * 100 * 1024
    for row in rows.values():
        assert row["value"] > 0 and row["seconds"] > 0 and row["ms_each"] > 0
        assert row["io"] is None
    assert rows["read", 1]["pages"] == "warm"
    assert rows["read-again", 1]["pages"] in ("dropped", "kept")  # kept where the directory is in memory
    assert os.listdir(base) == []


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_mount(make_mount, store, passthrough):
    m = make_mount(passthrough=passthrough)
    works = m.status()["passthrough"]
    sub = m.path / "sub"
    sub.mkdir()
    before = m.status()["uploaded_bytes"]
    head, rows, names = bench(sub)
    assert names == ["write", "write-published", *BIG, *SMALL, *SMALL]
    assert head["mount"] == str(m.path) and head["dir"] == str(sub)
    assert rows["write-published", 1]["seconds"] >= rows["write", 1]["seconds"]
    assert m.status()["uploaded_bytes"] - before >= 3000 * 1024
    for item in ["write", *BIG]:
        assert rows[item, 1]["io"] == ("passthrough" if works else "cached"), item
    assert rows["read-again", 1]["pages"] == "dropped"
    assert os.listdir(sub) == []
    m.wait()
    assert set(store.list()) <= {"sub/"}


def test_table_and_no_small_files(base):
    lines = run("bench", "--size", "1M", "--small-files", "0", base).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("item"))
    assert [line.split()[0] for line in lines[at + 1:]] == ["write", *BIG]
    assert all(len(line.split()) >= 7 for line in lines[at + 1:])
    assert lines[at + 1].split()[3] == "MB/s"


def test_progress_as_json(base):
    done = run("bench", "--quick", "--small-files", "0", "--progress", "json", base, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["item"] for line in lines if line["event"] == "result"] == ["write", *BIG]
    some = [line for line in lines if line["event"] == "progress"]
    assert some and all(line["bytes_done"] <= line["bytes_total"] for line in some)
    assert some[0]["item"] == "write" and some[0]["bytes_total"] == 128 * MIB


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_signal_removes_what_was_written(base, sig):
    p = start(base)
    assert eventually(lambda: written(base))
    p.send_signal(sig)
    _, errors = p.communicate(timeout=60)
    assert p.returncode == 1 and "interrupted" in errors
    assert os.listdir(base) == []


def test_interrupt_that_comes_twice_at_once_is_one(base):
    """As timeout(1) sends it: to the process and to its group."""
    p = start(base)
    assert eventually(lambda: written(base))
    until = time.monotonic() + 0.05  # what comes later than 0.2 s is meant
    while p.poll() is None and time.monotonic() < until:
        p.send_signal(signal.SIGINT)
        time.sleep(0.0005)
    _, errors = p.communicate(timeout=60)
    assert p.returncode == 1 and "interrupted" in errors
    assert os.listdir(base) == []


def test_second_interrupt_gives_up_a_mount_that_hangs(make_mount):
    m = make_mount(passthrough="off")
    p = start(m.path)
    pids = [pid for name in ("supervisor_pid", "pid") if (pid := m.status()[name])]
    assert eventually(lambda: written(m.path))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: p.poll() is not None or p.send_signal(signal.SIGINT))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    p.communicate(timeout=60)
    assert p.returncode == -signal.SIGINT


def test_signal_in_a_mount(mount, store):
    p = start(mount.path)
    assert eventually(lambda: written(mount.path))
    p.terminate()
    p.communicate(timeout=60)
    assert p.returncode == 1
    assert os.listdir(mount.path) == []
    mount.wait()
    assert eventually(lambda: store.list() == store.list(PROBE) == {}), "a probe of the store may still be running"


def test_measuring_that_dies_leaves_nothing(base):
    p = start(base)
    assert eventually(lambda: written(base))
    for child in children(p.pid):
        os.kill(child, signal.SIGKILL)
    _, errors = p.communicate(timeout=60)
    assert p.returncode == 1 and "signal 9" in errors
    assert os.listdir(base) == []


def test_wrong_bytes_are_told(base):
    p = start(base)
    assert eventually(lambda: [f for f in written(base) if f.stat().st_size > MIB])
    with open(written(base)[0], "r+b") as f:
        f.write(b"not what was written")
    _, errors = p.communicate(timeout=120)
    assert p.returncode == 1 and "something else came back" in errors
    assert os.listdir(base) == []


@pytest.mark.parametrize("args,word", [(["--size", "0"], "--size"), (["--size", "12Q"], "--size"), (["--size", "2T"], "--size"),
                                       (["--threads", "0"], "--threads"), (["--threads", "1,,2"], "--threads"),
                                       (["--threads", "257"], "--threads"), (["--small-files", "many"], "--small-files"),
                                       (["--progress", "loud"], "--progress"), (["--no-such"], "--no-such")])
def test_bad_usage(base, args, word):
    done = run("bench", *args, base, check=False)
    assert done.returncode == 2 and word in done.stderr
    assert os.listdir(base) == []


def test_wrong_number_of_directories(base):
    assert run("bench", check=False).returncode == 2
    assert run("bench", base, base, check=False).returncode == 2


def refused(where, word, *args):
    done = run("bench", *TINY, *args, where, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert word in done.stderr and str(where) in done.stderr


def test_directories_that_cannot_be_measured(base, make_mount):
    (base / "file").write_text("x")
    refused(base / "file", "not a directory")
    refused(base / "none", "No such file")
    refused(make_mount(read_only=True).path, "cannot write")
    refused(base, "free", "--size", "1T", "--small-files", "100000", "--threads", "256,256,256,256,256,256")


def test_disk_that_gets_full(base):
    disk = base / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M,nr_inodes=8", "tmpfs", disk], check=True, timeout=20)
    try:
        done = run("bench", *TINY, disk, check=False)
        assert done.returncode == 1 and done.stderr == "sluice: small-write: No space left on device\n"
        assert os.listdir(disk) == []
        refused(disk, "16.0 MiB free", "--size", "16M", "--small-files", "0")
    finally:
        subprocess.run(["umount", disk], check=True, timeout=20)
