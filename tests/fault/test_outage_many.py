"""Hours without the store, by a fast clock, while many files are closed: a restart serves without the store, all is published in the order of closing."""
import os
import time

import pytest
from haproxy import Haproxy
from mounts import NIGHT, in_thread

pytestmark = [pytest.mark.ceph, pytest.mark.slow]
N_FILES = int(os.environ.get("SLUICE_OUTAGE_FILES") or (100000 if NIGHT else 20000))
PER_DIR = 100
SPEED = 300


@pytest.fixture
def front(proxy, base):
    made = Haproxy(base, proxy.upstream).start()
    yield made
    made.stop()


NAMES = [*(f"f{i:03}" for i in range(PER_DIR)), "DONE"]  # of a directory, in the order in which they are closed


def close_files(lake, first, end):
    for k in range(first, end):
        top = f"run/{k:04}"
        (lake.path / top).mkdir(parents=True)
        for name in NAMES:
            data = f"{k} {name}".encode()
            (lake.path / top / name).write_bytes(data)
            lake.wrote(f"{top}/{name}", data)


def out_of_order(upstream, n_dirs):
    """Directories where the store had a file before one that was closed earlier."""
    since = [[upstream[f"run/{k:04}/{name}"][0]["LastModified"] for name in NAMES] for k in range(n_dirs)]
    return [k for k, times in enumerate(since) if times != sorted(times)]


@pytest.mark.timeout(240 + N_FILES // 20)
def test_many_files_closed_in_an_outage(front, make_lake):
    lake = make_lake(start=False, endpoint_url=front.url, log_level="info").fast(SPEED).mount()
    lake.write("ready", b"1")
    lake.wait()
    front.stop()
    began = time.monotonic()
    n_dirs = N_FILES // PER_DIR
    writers = [in_thread(lambda k=k: close_files(lake, n_dirs * k // 4, n_dirs * (k + 1) // 4)) for k in range(4)]
    for join in writers:
        join(240 + N_FILES // 20)
    print(f"{N_FILES + n_dirs} files closed in {time.monotonic() - began:.1f} s")
    time.sleep(max(0, began + 7200 / SPEED - time.monotonic()))  # two hours
    lake.m.kill9()
    restarted = time.monotonic()
    lake.mount()
    lake.check("run/0000/f000")
    served = time.monotonic() - restarted
    print(f"serves {served:.2f} s after the restart with {N_FILES + n_dirs} unpublished files")
    assert served <= 10, "which are promised"
    assert lake.status("dirty_files") == N_FILES + n_dirs
    assert len(os.listdir(lake.path / "run")) == n_dirs
    front.start()
    back = time.monotonic()
    lake.wait(240 + N_FILES // 20)
    print(f"published {(time.monotonic() - back):.1f} s after the store was back")
    assert out_of_order(lake.everything_upstream(), n_dirs) == []
