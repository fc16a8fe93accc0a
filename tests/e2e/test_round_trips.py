"""What the kernel asks the daemon for around reads and writes that it does by itself. Proven by counts of requests, never by time."""
import os
import re

import pytest
from mounts import eventually, run

N = 200
SLACK = 40  # looks at names whose time ran out, and the like


@pytest.fixture(params=["on", "off"])
def both(make_mount, request):
    m = make_mount(passthrough=request.param, metadata_ttl="60s")
    if request.param == "on" and not m.status()["passthrough"]:
        pytest.skip(f"no passthrough here: {m.status().get('passthrough_off_because')}")
    return m


def requests(m):
    return m.status()["fuse_requests"]


def test_an_open_that_reads_costs_two_messages(both, store):
    """OPEN and RELEASE, but no FLUSH: there is nothing to say at the close of what nobody wrote to."""
    store.put("f", b"x" * 1000)
    assert (both.path / "f").read_bytes() == b"x" * 1000
    before = requests(both)
    for _ in range(N):
        fd = os.open(both.path / "f", os.O_RDONLY)
        os.read(fd, 1)
        os.close(fd)
    assert eventually(lambda: both.info("f")["io"] == "closed")
    assert 2 * N <= requests(both) - before <= 2 * N + SLACK


def test_a_write_asks_for_no_attribute(both):
    """Who may write by whose right is told with each write (FUSE_HANDLE_KILLPRIV_V2), or the kernel would ask for security.capability before each."""
    assert "handle-killpriv-v2" in both.status()["kernel_features"]
    with open(both.path / "f", "wb", buffering=0) as f:
        f.write(b"first")
        passed = both.info("f")["io"] == "passthrough"
        before = requests(both)
        for _ in range(N):
            f.write(b"x" * 1000)
        sent = requests(both) - before
    assert sent <= (0 if passed else N) + SLACK, "a message a write, and none where the kernel writes by itself"


def test_the_kernel_reads_ahead_by_large_pieces(both):
    """Of what does not go past the daemon; 128 KiB is the kernel's own idea. It holds for the next worker too."""
    def ahead_kb():
        dev = os.stat(both.path).st_dev
        with open(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb") as f:
            return int(f.read())

    assert ahead_kb() == 1024
    both.kill_worker()
    assert ahead_kb() == 1024


def ids(m):
    """How many files the kernel was given, and told to let go."""
    text = (m.path / ".stats").read_text()
    return tuple(int(re.search(rf"^\S*backing_ids_{word}\S* (\d+)$", text, re.M)[1]) for word in ("made", "closed"))


def test_the_kernel_keeps_a_file_over_its_opens_until_others_were_used(make_mount, store):
    names = [f"f{i}" for i in range(12)]
    for name in names:
        store.put(name, name.encode())
    m = make_mount(passthrough="on", backing_ids="8", metadata_ttl="60s")
    if not m.status()["passthrough"]:
        pytest.skip(f"no passthrough here: {m.status().get('passthrough_off_because')}")

    def read(which):
        for name in which:
            assert (m.path / name).read_text() == name
            assert eventually(lambda: m.info(name)["io"] == "closed")

    read(names[:8])
    assert ids(m) == (8, 0)
    read(names[:8])
    assert ids(m) == (8, 0), "opened again without another system call"
    read(names[8:])
    assert ids(m) == (12, 4), "those used least lately go"
    read(names[4:])
    assert ids(m) == (12, 4)
    read(names[:1])
    assert ids(m) == (13, 5)


def test_the_kernel_keeps_the_names_of_directories_that_did_not_change(make_mount, store):
    """Read once, though all others were listed after them; the next reading costs an open and its release each. A name that others add is seen all the same."""
    n = 60
    for d in range(n):
        for i in range(3):
            store.put(f"d{d:02}/f{i}", b"x")
    m = make_mount(metadata_ttl="60s")
    dirs = sorted(m.path.iterdir())
    assert [len(os.listdir(d)) for d in dirs] == [3] * n
    assert all(d.is_dir() for d in dirs)  # their attributes are new since they were listed
    before = requests(m)
    assert [len(os.listdir(d)) for d in dirs] == [3] * n
    assert 2 * n <= requests(m) - before <= 2 * n + SLACK, "no name is asked for again"
    store.put("d07/new", b"x")
    run("sync", dirs[7])
    assert [len(os.listdir(d)) for d in dirs] == [4 if i == 7 else 3 for i in range(n)]
