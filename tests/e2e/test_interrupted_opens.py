"""Who opens a small file that is not here waits until it is. When he is ended meanwhile nothing of him is left, and the next one is served."""
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import lake
import pytest
from mounts import eventually, in_thread, run
from test_passthrough import blob

HANG_S = 30
N = 20
MANY = 1200  # more than there are threads for
UNSURE_S = 10  # after a takeover; see fs/attach.h


@pytest.fixture
def store():
    made = lake.Lake()
    yield made
    made.remove()


@pytest.fixture
def small(make_mount, store):
    """small(n, **options): a mount that knows of n small files and has none of them; the mount, and the files' bytes."""
    def make(n=N, **options):
        files = {f"d/{i:02}": blob(i, 50_000 + i) for i in range(n)}
        for name, data in files.items():
            store.put(name, data)
        m = make_mount(metadata_ttl="1h", op_timeout="10m", prefetch="off", **options)
        assert len(os.listdir(m.path / "d")) == n
        return m, files
    return make


def opener(m, name):
    return subprocess.Popen(["cat", m.path / name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def got(store):
    return {key for verb, key, _ in store.calls if verb == "GET"}


def end(p, sig):
    p.send_signal(sig)
    p.communicate(timeout=HANG_S)
    return p.returncode


def ids(m):
    """Files that the kernel was given, and has not been told to let go."""
    text = (m.path / ".stats").read_text()
    made, closed = (int(re.search(rf"^\S*backing_ids_{word}\S* (\d+)$", text, re.M)[1]) for word in ("made", "closed"))
    return made - closed


def data_fds(m):
    """Cache files that the daemon has open."""
    links = []
    for fd in pathlib.Path(f"/proc/{m.status()['pid']}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            pass
    return [link for link in links if link.startswith(f"{m.cache}/data/")]


def check_nothing_is_left(m, files):
    """Neither open files nor what stands for them. What the kernel may keep of closed ones goes with their bytes."""
    assert eventually(lambda: {m.info(name)["io"] for name in files} == {"closed"})
    assert eventually(lambda: run("evict", m.path / "d", check=False).returncode == 0)
    assert eventually(lambda: (ids(m), data_fds(m)) == (0, [])), (ids(m), data_fds(m))


def check_served(m, files):
    mode = "passthrough" if m.status()["passthrough"] else "cached"
    for name, data in files.items():
        with open(m.path / name, "rb") as f:
            assert m.info(name)["io"] == mode
            assert f.read() == data


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_openers_that_are_ended_leave_nothing(small, store, sig, passthrough):
    m, files = small(passthrough=passthrough)
    store.black_hole()
    waiting = [opener(m, name) for name in files]
    assert eventually(lambda: got(store) & set(files)), "they have come to the store"
    time.sleep(0.5)
    assert [p.poll() for p in waiting] == [None] * N
    assert [end(p, sig) for p in waiting] == [-sig] * N, "they do not wait for the store any more"
    store.answer_again()
    check_nothing_is_left(m, files)
    check_served(m, files)
    check_nothing_is_left(m, files)


def test_one_of_two_openers_is_ended_and_the_other_is_served(small, store):
    m, files = small()
    store.black_hole()
    pairs = {name: (opener(m, name), opener(m, name)) for name in files}
    time.sleep(0.5)
    assert [end(first, signal.SIGKILL) for first, _ in pairs.values()] == [-signal.SIGKILL] * N
    store.answer_again()
    for name, (_, second) in pairs.items():
        assert second.communicate(timeout=HANG_S)[0] == files[name] and second.returncode == 0
    check_nothing_is_left(m, files)


def test_openers_that_are_ended_about_when_the_answer_comes_leave_nothing(small):
    m, files = small(fault="op=get,action=delay:200ms")
    rnd, codes = random.Random(1), set()
    for _ in range(5):
        waiting = [opener(m, name) for name in files]
        for p in rnd.sample(waiting, N):
            time.sleep(rnd.uniform(0, 0.04))
            p.kill()
        for p, data in zip(waiting, files.values()):
            assert data.startswith(p.communicate(timeout=HANG_S)[0])
            codes.add(p.returncode)
        check_nothing_is_left(m, files)
    assert codes <= {0, -signal.SIGKILL}
    check_served(m, files)


def test_openers_that_wait_for_a_thread_longer_than_a_takeover_leave_nothing(small, store):
    """What the worker before had begun to open is asked for again behind what nobody had begun with."""
    m, files = small(MANY)
    store.black_hole()
    waiting = {name: in_thread((m.path / name).read_bytes) for name in files}
    assert eventually(lambda: got(store) & set(files)), "they have come to the store"
    time.sleep(1)
    m.kill_worker()
    time.sleep(UNSURE_S + 2)
    store.answer_again()
    for name, data in waiting.items():
        assert data() == files[name]
    check_nothing_is_left(m, files)
