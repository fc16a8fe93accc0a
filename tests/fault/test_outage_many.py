"""Hours without the store, by a fast clock, while many files are closed: a restart serves at once, all is published in order."""
import os
import threading
import time

import pytest
from haproxy import Haproxy
from mounts import NIGHT

pytestmark = [pytest.mark.ceph, pytest.mark.slow]
N_FILES = 100000 if NIGHT else 5000
PER_DIR = 100


class Markers:
    """Looks past the mount: where a directory's DONE is, all its files must be."""

    def __init__(self, store, n_dirs):
        self.store, self.left, self.early, self.n_looks = store, set(range(n_dirs)), [], 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def look(self):
        there = self.store.list("run/")
        complete = [k for k in self.left if f"run/{k:04}/DONE" in there]
        self.early += [k for k in complete if any(f"run/{k:04}/f{i:03}" not in there for i in range(PER_DIR))]
        self.left -= set(complete)
        self.n_looks += 1

    def poll(self):
        while not self.stop.wait(0.3):
            self.look()

    def end(self):
        self.stop.set()
        self.thread.join(60)
        self.look()


@pytest.fixture
def front(proxy, base):
    made = Haproxy(base, proxy.upstream).start()
    yield made
    made.stop()


def test_many_files_closed_in_an_outage(front, make_lake):
    lake = make_lake(start=False, endpoint_url=front.url, op_timeout="60s", log_level="info").fast(300).mount()
    lake.write("ready", b"1")
    lake.wait()
    front.stop()
    began = time.monotonic()
    n_dirs = N_FILES // PER_DIR
    for k in range(n_dirs):
        for i in range(PER_DIR):
            lake.write(f"run/{k:04}/f{i:03}", b"%d %d" % (k, i))
        lake.write(f"run/{k:04}/DONE", b"")
    time.sleep(max(0, began + 24 - time.monotonic()))  # two hours
    lake.m.kill9()
    restarted = time.monotonic()
    lake.mount()
    assert lake.read("run/0000/f000") == b"0 0"
    served = time.monotonic() - restarted
    print(f"serves {served:.2f} s after the restart with {N_FILES + n_dirs} unpublished files")
    assert served < 60, "a restart in an outage waits for something"
    assert lake.status("dirty_files") == N_FILES + n_dirs
    assert len(os.listdir(lake.path / "run")) == n_dirs
    watch = Markers(lake.store, n_dirs)
    front.start()
    back = time.monotonic()
    lake.wait()
    print(f"published {(time.monotonic() - back):.1f} s after the store was back")
    watch.end()
    assert not watch.early and not watch.left and watch.n_looks > 2
