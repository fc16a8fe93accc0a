"""Commands that wait while their worker is replaced: they ask the next one."""
import contextlib
import json
import os
import subprocess

import pytest
from mounts import MIB, SLUICE, eventually, run


@contextlib.contextmanager
def begun(*args):
    """A command that has shown progress once, so a worker is at it."""
    with subprocess.Popen([SLUICE, *map(str, args), "--progress", "json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        try:
            assert json.loads(p.stdout.readline())["event"] == "progress"
            yield p
        finally:
            p.kill()


def end_of(p):
    """Exit code and what it said on standard error."""
    _, err = p.communicate(timeout=60)
    return p.returncode, err


def replace_worker(m, how):
    if how == "upgrade":
        run("upgrade", m.path)
    else:
        m.kill_worker()


@pytest.mark.parametrize("how", ["killed", "upgrade"])
def test_wait_goes_on_with_the_next_worker(make_mount, store, how):
    m = make_mount(fault="op=put,action=delay:2s")
    for name in "abc":
        (m.path / name).write_bytes(name.encode())
    with begun("wait", m.path) as p:
        replace_worker(m, how)
        assert end_of(p) == (0, "")
    assert [store.get(name) for name in "abc"] == [b"a", b"b", b"c"]


def test_wait_goes_on_over_several_workers(make_mount, store):
    m = make_mount(fault="op=put,action=delay:2s", settle="0s")
    (m.path / "f").write_bytes(b"1234")
    with begun("wait", m.path / "f") as p:
        for _ in range(6):
            m.kill_worker()
        assert end_of(p) == (0, "")
    assert store.get("f") == b"1234"


def test_wait_keeps_its_time_limit_over_workers(make_mount):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"1234")
    with begun("wait", "--timeout", "4s", m.path) as p:
        m.kill_worker()
        code, err = end_of(p)
    assert code == 3 and "time ran out" in err


def test_wait_says_that_the_mount_went_away(make_mount):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"1234")
    with begun("wait", m.path) as p:
        m.umount()
        code, err = end_of(p)
    assert code == 1 and err


def test_wait_says_that_the_daemon_was_given_up(make_mount):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"1234")
    with begun("wait", m.path) as p:
        m.kill()
        code, err = end_of(p)
    assert code == 1 and "is not running" in err
    run("umount", m.path)


@pytest.mark.parametrize("how", ["killed", "upgrade"])
def test_warmup_goes_on_with_the_next_worker(make_mount, store, how):
    for i in range(12):
        store.put(f"d/{i}", bytes(MIB))
    m = make_mount(fault="op=get,action=delay:500ms")
    with begun("warmup", "-p", "1", m.path / "d") as p:
        replace_worker(m, how)
        code, err = end_of(p)
    assert (code, err) == (0, "")
    assert all(m.info(f"d/{i}")["cached_bytes"] == MIB for i in range(12))


def test_drain_goes_on_and_ends_the_mount(make_mount, store):
    m = make_mount(fault="op=put,action=delay:2s")
    (m.path / "f").write_bytes(b"1234")
    supervisor = m.status()["supervisor_pid"]
    with begun("umount", "--drain", m.path) as p:
        m.kill_worker()
        assert end_of(p) == (0, "")
    assert not m.is_mounted() and store.get("f") == b"1234"
    assert eventually(lambda: not os.path.exists(f"/proc/{supervisor}"))

