"""An hour without the store, lived through in half a minute by a build whose clock is fast: programs notice nothing, all of it is published."""
import datetime
import os
import re
import socket
import threading
import time
import urllib.request

import pytest
from mounts import MIB, POINTS, eventually, run

SPEED = 120
OUTAGE_S = 3600 / SPEED
DOWN = "op=any,action=error:-EIO"


class Outage:
    """The store away and back: the gateway ended and started, or every call of the file store refused."""

    def __init__(self, m, store):
        self.m, self.store, self.options = m, store, {}

    def begin(self):
        if self.store.kind == "ceph":
            self.store.stop_gateway()
        else:
            self.options = {"fault": DOWN}
            self.m.remount(**self.options)

    def restart_daemon(self):
        self.m.kill9()
        self.m.mount(**self.options)

    def end(self, when_it_answers=lambda: None):
        if self.store.kind == "ceph":
            self.store.start_gateway()
        when_it_answers()
        if self.options:
            self.options = {}
            self.m.remount()


class Programs:
    """What runs on the mount: steps of a training into directories of their own, each followed by its markers. files is what must be there."""

    def __init__(self, path, files):
        self.path, self.files, self.n_steps = path, files, 0

    def write(self, name, data):
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)
        self.files[name] = data

    def rename(self, old, new):
        os.rename(self.path / old, self.path / new)
        self.files[new] = self.files.pop(old)

    def delete(self, name):
        os.unlink(self.path / name)
        del self.files[name]

    def append(self, name, text):
        with open(self.path / name, "ab") as f:
            f.write(text)
        self.files[name] = self.files.get(name, b"") + text

    def mark(self, name, *done):
        """A marker holds the names of what is complete when it is there."""
        self.write(name, "\n".join(done).encode())

    def step(self):
        n, self.n_steps = self.n_steps, self.n_steps + 1
        top = f"run/step_{n:03}"
        for i in range(3):
            self.write(f"{top}/shard_{i}", os.urandom(20000))
        self.write(f"{top}/model.tmp", os.urandom(MIB))
        self.rename(f"{top}/model.tmp", f"{top}/model")
        self.mark(f"{top}/DONE", f"{top}/shard_1", f"{top}/shard_2", f"{top}/model")
        self.mark("run/latest", f"{top}/model", f"{top}/DONE")
        self.append("run/log", b"step %d\n" % n)
        if n % 4 == 3:
            self.delete(f"run/step_{n - 1:03}/DONE")
            self.delete(f"run/step_{n - 1:03}/shard_0")

    def check(self, *names):
        for name in names:
            assert (self.path / name).read_bytes() == self.files[name], name


class MarkerWatch:
    """Looks at the store from outside: whatever a marker names must be there when the marker is."""

    def __init__(self, store):
        self.store, self.n_seen, self.early = store, 0, []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)

    def look(self):
        markers = [key for key in self.store.list("run/") if key.endswith("DONE") or key == "run/latest"]
        named = {name: key for key in markers for name in self.store.get(key).decode().split("\n")}
        listing = self.store.list("run/")
        self.n_seen += len(markers)
        self.early += [(key, name) for name, key in named.items() if name not in listing]

    def poll(self):
        while not self.stop.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001 - a marker went between two calls
                pass
            time.sleep(0.05)

    def end(self):
        self.stop.set()
        self.thread.join(60)
        self.look()


@pytest.fixture
def fast_mount(make_mount):
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    assert "test-points" in run("version", program=POINTS).stdout
    m = make_mount(start=False, op_timeout="10m")
    m.program = POINTS
    m.env["SLUICE_CLOCK_SCALE"] = str(SPEED)
    return m.mount()


def live_through(programs, m, outage):
    """An hour by the daemon's clock: work going on, a big file, the daemon killed in the middle."""
    began, restarted = time.time(), False
    programs.write("run/left.tmp", b"a held name, published under it after ten minutes")
    programs.rename("before/f1", "run/moved")
    programs.delete("before/f2")
    programs.write("run/big", os.urandom(120 * MIB))
    programs.mark("run/big.DONE", "run/big")
    while time.time() - began < OUTAGE_S:
        programs.step()
        programs.check("before/f0", "run/moved", "run/latest", "run/log")
        if not restarted and time.time() - began > OUTAGE_S / 2:
            outage.restart_daemon()
            restarted = True
            programs.check(*programs.files)
        time.sleep(1)
    assert restarted
    return began


@pytest.mark.slow
@pytest.mark.gateway
def test_an_hour_without_the_store_costs_nothing(fast_mount, store):
    m, files = fast_mount, {}
    programs, outage, watch, started = Programs(m.path, files), Outage(m, store), MarkerWatch(store), time.time()
    for i in range(3):
        programs.write(f"before/f{i}", os.urandom(50000))
    m.wait(timeout=7200)
    outage.begin()
    try:
        began = live_through(programs, m, outage)
        status = m.status()
        assert status["dirty_files"] > programs.n_steps * 4
        assert status["parked"] == status["conflicts"] == 0
        if store.kind == "ceph":
            assert began - 5 <= status["offline_since"] <= time.time()
            assert re.search(r"offline since|does not answer", run("status", m.path).stdout, re.I)
        assert sorted(os.listdir(m.path / "before")) == ["f0"]
        outage.end(watch.thread.start)
        run("wait", "--timeout", "4h", m.path, timeout=200)
        watch.end()
    finally:
        outage.end()
    assert watch.n_seen > 0 and not watch.early, watch.early
    assert store.list() == {name: len(data) for name, data in files.items()}
    for name, data in files.items():
        assert store.get(name) == data, name
    assert eventually(lambda: store.uploads(empty=False) == [], 20)
    assert m.status()["offline_since"] == 0
    changed = store.head("run/latest")["metadata"].get("mtime")
    assert changed is None or started - 2 <= float(changed) <= time.time() + 2, "times of files are not the fast clock's"


def said_at(m):
    """When the log said that a closed file is not in the store."""
    lines = [line for line in m.log().splitlines() if "is still not in the store" in line]
    assert all(" warn " in line and "path='d/first'" in line for line in lines), lines
    return [datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp() for line in lines]


def test_closed_file_that_stays_out_of_the_store_raises_an_alarm_once_an_hour(make_mount):
    """--overdue is of the world's clock, the hour of the fast one: 5 s."""
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    m = make_mount(start=False, overdue="4s", op_timeout="10m", http=http, fault="op=put,count=1000000,action=error:-EIO")
    m.program, m.env["SLUICE_CLOCK_SCALE"] = POINTS, str(3600 // 5)
    m.mount()

    def gauge():
        text = urllib.request.urlopen(f"http://{http}/metrics", timeout=10).read().decode()
        return int(re.search(r"^sluice_overdue_seconds (\d+)$", text, re.M)[1])

    (m.path / "d").mkdir()
    (m.path / "d/first").write_bytes(b"only here")
    status = m.status()
    assert status["overdue_seconds"] == 0 and "overdue_path" not in status, "not that late yet"
    time.sleep(0.5)
    (m.path / "d/second").write_bytes(b"only here")
    assert eventually(lambda: len(said_at(m)) >= 2, 30), m.log()
    first, second = said_at(m)[:2]
    assert second - first >= 4.9, "said again within the hour"
    status = m.status()
    assert status["overdue_seconds"] >= 4 and status["overdue_path"] == "d/first", status
    assert gauge() >= 4
    text = run("status", m.path, program=POINTS).stdout
    assert re.search(r"^overdue +\d+ s$", text, re.M) and re.search(r"^overdue path +d/first$", text, re.M), text
    m.remount(fault=None)
    run("wait", "--timeout", "4h", m.path, timeout=100)
    status = m.status()
    assert status["overdue_seconds"] == 0 and "overdue_path" not in status and gauge() == 0
