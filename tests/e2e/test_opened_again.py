"""Files that were closed, opened again before they were published, and are kept open: what was closed later does not wait until they are closed."""
import os

import pytest
from mounts import eventually, in_thread, run

SLOW = "op=put,key=run/first,action=delay:3s"
MODES = ["on", "off"]


def begin_run(mount):
    """What is closed next waits until this is published."""
    path = mount.path / "run"
    path.mkdir()
    (path / "first").write_bytes(b"1")
    return path


def reopened_log(path):
    """Closed while something else is being published, opened again at once and kept open, as where one job takes over from another."""
    path.write_bytes(b"one\n")
    log = open(path, "ab", buffering=0)
    log.write(b"two\n")
    return log


@pytest.mark.parametrize("passthrough", MODES)
def test_checkpoint_beside_a_log_that_is_opened_again_and_kept_open(make_mount, store, passthrough):
    mount = make_mount(fault=SLOW, passthrough=passthrough)
    path = begin_run(mount)
    with reopened_log(path / "train.log") as log:
        (path / "ckpt.pt").write_bytes(b"2")
        mount.wait("run/ckpt.pt", timeout=60)
        assert store.get("run/ckpt.pt") == b"2"
        assert store.get("run/train.log") == b"one\ntwo\n"
        log.write(b"three\n")
        (path / "ckpt2.pt").write_bytes(b"3")
        mount.wait("run/ckpt2.pt", timeout=60)
    mount.wait()
    assert store.get("run/train.log") == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("passthrough", MODES)
def test_checkpoint_beside_a_log_that_the_worker_before_had_opened_again(make_mount, store, passthrough):
    mount = make_mount(fault=SLOW, passthrough=passthrough)
    path = begin_run(mount)
    with reopened_log(path / "train.log") as log:
        mount.kill_worker()
        (path / "ckpt.pt").write_bytes(b"2")
        mount.wait("run/ckpt.pt", timeout=60)
        assert store.get("run/train.log") == b"one\ntwo\n"
        log.write(b"three\n")
    mount.wait()
    assert store.get("run/train.log") == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("passthrough", MODES)
def test_checkpoint_beside_a_log_of_which_one_descriptor_was_closed(make_mount, store, passthrough):
    mount = make_mount(passthrough=passthrough)
    path = begin_run(mount)
    with open(path / "idle.log", "ab", buffering=0) as log:
        log.write(b"one\n")
        os.close(os.dup(log.fileno()))
        (path / "ckpt.pt").write_bytes(b"2")
        mount.wait("run/ckpt.pt", timeout=60)
        assert store.get("run/ckpt.pt") == b"2"
        assert "run/idle.log" not in store.list()
    mount.wait()
    assert store.get("run/idle.log") == b"one\n"


@pytest.mark.parametrize("mode", ["r+b", "ab"])
def test_file_opened_again_and_not_written(make_mount, store, mode):
    mount = make_mount(fault=SLOW)
    path = begin_run(mount)
    (path / "a").write_bytes(b"1")
    with open(path / "a", mode):
        (path / "ckpt.pt").write_bytes(b"2")
        mount.wait("run/ckpt.pt", timeout=60)
        assert store.get("run/a") == b"1"
    mount.wait()


def test_programs_that_wait_for_the_store_beside_each_others_open_logs(make_mount, store):
    mount = make_mount(fault=SLOW, rule="run/ckpt*=close=remote")
    path = begin_run(mount)
    with reopened_log(path / "a.log"), reopened_log(path / "b.log"):
        writers = [in_thread(lambda n=n: (path / f"ckpt{n}").write_bytes(b"2")) for n in range(2)]
        for join in writers:
            join(60)
        assert store.get("run/ckpt0") == store.get("run/ckpt1") == b"2"
    mount.wait()


@pytest.mark.parametrize("passthrough", MODES)
def test_marker_waits_for_what_is_overwritten_until_its_close_or_a_decision(make_mount, store, passthrough):
    """What was closed exists no more, and half of what comes instead is nothing to show."""
    mount = make_mount(fault=SLOW, passthrough=passthrough)
    path = begin_run(mount)
    for name in ["a", "b"]:
        (path / name).write_bytes(b"11")
    with open(path / "a", "r+b", buffering=0) as a:
        a.write(b"2")
        with open(path / "b", "wb", buffering=0) as b:
            b.write(b"2")
            (path / "latest").write_bytes(b"a b")
            assert eventually(lambda: "overwritten before it was published" in mount.log(), 60)
            assert mount.info("run/latest")["blocked_by"] == "run/a"
            assert not {"run/a", "run/b", "run/latest"} & set(store.list())
            run("publish", "--skip", path / "a")
            assert eventually(lambda: mount.info("run/latest")["blocked_by"] == "run/b")
        mount.wait("run/latest", timeout=60)
        assert "run/a" not in store.list()
    mount.wait()
    assert store.get("run/a") == b"21"
    assert store.get("run/b") == b"2"
