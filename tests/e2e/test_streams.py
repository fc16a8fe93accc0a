"""Large files that are not here, read from beginning to end: by many at once, and through mappings. Each byte comes once, by large pieces. And large ones that are written at once."""
import contextlib
import mmap
import os
import pathlib
import re

import pytest
from mounts import MIB, QUICK, eventually, in_thread
from test_passthrough import blob

STREAMS, SIZE = 16, (20 if QUICK else 40) * MIB
RSS_MAX = 512 * MIB  # of the daemon, whatever it serves; the streams together are more
PAGE = mmap.PAGESIZE


@pytest.fixture(params=["on", "off"])
def cold(make_mount, request):
    """A mount that waits for no file to be complete."""
    return make_mount(passthrough=request.param, open_fill="1M")


def most_memory(pid):
    """The largest that a process ever had."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10


def stream(path, data, block):
    with open(path, "rb", buffering=0) as f:
        for off in range(0, len(data), block):
            assert f.read(block) == data[off:off + block], (path.name, off)
        assert f.read(1) == b""


def read_at_once(m, of_each):
    """Reads [(name, bytes)] all at once, by blocks of 1 MiB and of 64 KiB in turns. How many bytes were downloaded."""
    before = m.status()
    joins = [in_thread(lambda name=name, data=data, block=(MIB, 64 << 10)[i % 2]: stream(m.path / name, data, block))
             for i, (name, data) in enumerate(of_each)]
    for join in joins:
        join(120)
    after = m.status()
    assert after["pid"] == before["pid"]
    return after["downloaded_bytes"] - before["downloaded_bytes"]


@pytest.fixture
def files(store):
    """As many as there are streams."""
    noise = memoryview(blob("noise", SIZE + STREAMS * 1001))
    made = [(f"s{i:02}.dat", noise[i * 1001:i * 1000 + SIZE]) for i in range(STREAMS)]
    for name, data in made:
        store.put(name, bytes(data))
    return made


def test_sixteen_streams_at_once_bring_each_byte_once(cold, files):
    assert read_at_once(cold, files) == sum(len(data) for _, data in files)


@pytest.mark.slow  # and a build with sanitizers keeps what was freed
def test_sixteen_streams_at_once_take_little_memory(cold, files):
    read_at_once(cold, files)
    assert most_memory(cold.status()["pid"]) <= RSS_MAX


def test_sixteen_streams_of_one_file_bring_each_byte_once(cold, store):
    data = blob("one", SIZE + 1)
    store.put("one.dat", data)
    assert read_at_once(cold, [("one.dat", data)] * STREAMS) == len(data)


def touch(view, data, first, end):
    """One byte of each page, upwards."""
    for off in range(first, end, PAGE):
        assert view[off] == data[off], off


@pytest.mark.parametrize("advice", [None, mmap.MADV_RANDOM], ids=["plain", "page-by-page"])
def test_a_mapping_that_is_walked_upwards_is_read_ahead_by_large_pieces(cold, store, advice):
    """MADV_RANDOM: the kernel asks for single pages, and nobody but the daemon can tell that they follow each other."""
    data = blob("walk", SIZE)
    store.put("walk.dat", data)
    before = cold.status()
    with open(cold.path / "walk.dat", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as view:
        if advice is not None:
            view.madvise(advice)
        touch(view, data, 0, SIZE // 3)
        assert eventually(lambda: cold.info("walk.dat")["cached_bytes"] == SIZE), "a third of it in order: the rest is worth having"
        touch(view, data, SIZE // 3, SIZE)
    after = cold.status()
    assert after["downloaded_bytes"] - before["downloaded_bytes"] == SIZE
    assert after["requests"]["get"] - before["requests"]["get"] <= SIZE // MIB


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_writers_at_once_share_the_uplink(make_mount, store, passthrough):
    """The first has written all of its parts before the last begins."""
    n_parts = 6
    m = make_mount(passthrough=passthrough, part_size="5M", max_uploads=4, fault="op=part,action=delay:1s")
    names = [f"w{i:02}" for i in range(STREAMS)]
    part = os.urandom(5 * MIB)
    with contextlib.ExitStack() as stack:
        for name in names:
            f = stack.enter_context(open(m.path / name, "wb", buffering=0))
            for _ in range(n_parts):
                f.write(part)
        shares = []

        def stored():
            parts = store.parts()
            shares[:] = [parts.get(name, 0) for name in names]
            return sum(shares)
        each = min(stored() + 3 * STREAMS, STREAMS * n_parts)  # so many more that all have had their turn
        assert eventually(lambda: stored() >= each, 120), shares
    assert min(shares) > 0, shares
    m.wait()
    same = all(store.get(name) == part * n_parts for name in names)
    assert same
