"""Very many names, very many bytes: memory stays bounded, and a directory is read while its first listing goes on."""
import contextlib
import os
import pathlib
import subprocess
import threading
import time

import cgroups
import lake
import pytest
from mounts import MIB, NIGHT, eventually, in_thread, run

HANG_S = 30


@pytest.fixture
def store(base):
    made = lake.Lake()
    yield made
    made.remove()


def memory(m, what="VmRSS"):
    """MiB of the worker; VmHWM: the most there ever was."""
    text = pathlib.Path(f"/proc/{m.status()['pid']}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(what)) // 1024


def names(n, where="d"):
    return [f"{where}/{i:07}.jpg" for i in range(n)]


def read_names(m, where="d"):
    with os.scandir(m.path / where) as entries:
        return [f"{where}/{e.name}" for e in entries]


def lists(store):
    return [query for verb, key, query in store.calls if verb == "GET" and not key and query.get("prefix") == "d/"]


def test_a_directory_is_read_while_it_is_listed(make_mount, store):
    there = names(5000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        seen = [f"d/{next(entries).name}" for _ in range(900)]
        assert not store.pages_open.is_set() and seen == there[:900], "the first page is there, in order"
        heads = len([c for c in store.calls if c[0] == "HEAD"])
        assert os.stat(m.path / seen[0]).st_size == 1
        assert len([c for c in store.calls if c[0] == "HEAD"]) == heads, "what was shown is known"
        (m.path / "d/mine").write_bytes(b"made meanwhile")
        os.unlink(m.path / there[950])
        os.rename(m.path / there[10], m.path / "d/renamed")
        late = in_thread(lambda: [f"d/{e.name}" for e in entries])
        store.pages_open.set()
        seen += late(HANG_S)
    assert len(seen) == len(set(seen)), "nothing twice"
    assert set(there) - set(seen) <= {there[950]} and set(seen) - set(there) <= {"d/mine", "d/renamed"}
    again = set(read_names(m))
    assert again == set(there) - {there[950], there[10]} | {"d/mine", "d/renamed"}
    assert len([query for query in lists(store) if "continuation-token" not in query]) == 1, "one listing"


def test_what_was_read_of_a_directory_while_it_was_listed_is_kept_by_the_kernel(make_mount, store):
    """The first reading of many names is kept already, by a count of requests; but not where a name came that it lacks."""
    there = names(5000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        seen = [next(entries).name for _ in range(900)]
        late = in_thread(lambda: [e.name for e in entries])
        store.pages_open.set()
        seen += late(HANG_S)
    before = m.status()["fuse_requests"]
    assert sorted(f"d/{name}" for name in seen) == there == sorted(read_names(m))
    assert m.status()["fuse_requests"] - before < 5, "an open and its release: no name is asked for again"
    store.add_names(["d/other.jpg"])
    run("sync", m.path / "d")
    assert sorted(read_names(m)) == [*there, "d/other.jpg"]


def asked(m, path):
    """Requests of reading the names of path once more."""
    before = m.status()["fuse_requests"]
    os.listdir(path)
    return m.status()["fuse_requests"] - before


def test_two_readers_of_a_directory_that_is_listed_leave_all_of_it_to_the_kernel(make_mount, store):
    there = names(5000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="10m")
    with contextlib.ExitStack() as stack:
        readers = []
        for n in (900, 20, 700):
            readers.append(stack.enter_context(os.scandir(m.path / "d")))
            assert len([next(readers[-1]) for _ in range(n)]) == n
        late = in_thread(lambda: (len(list(readers[0])), len(list(readers[2]))))
        store.pages_open.set()
        assert late(HANG_S) == (4100, 4300)
    assert asked(m, m.path / "d") < 5 and asked(m, m.path / "d") < 5
    assert sorted(read_names(m)) == there


def test_the_late_end_of_a_reader_hides_no_name_from_the_kernel(make_mount, store):
    """He was at the last name when the listing ended, others have read all since, and then one more name comes."""
    there, gone = names(1000), names(1500)[1000:]
    store.add_names([*there, *gone])
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        assert [f"d/{next(entries).name}" for _ in there] == there
        store.delete_names(gone)  # the next page brings none
        store.pages_open.set()
        for _ in range(2):
            assert sorted(read_names(m)) == there
        store.add_names(["d/other.jpg"])
        run("sync", m.path / "d")
        assert [e.name for e in entries] in ([], ["other.jpg"])
    for _ in range(3):
        assert sorted(read_names(m)) == [*there, "d/other.jpg"]


def test_the_end_of_a_reader_that_shows_less_hides_no_name_from_the_kernel(make_mount, store):
    """He began before a name was made; who opened the directory after that did not read all."""
    there = names(3000)
    store.add_names(there)
    m = make_mount(metadata_ttl="1h")
    for _ in range(2):
        assert sorted(read_names(m)) == there
    with os.scandir(m.path / "d") as old:
        next(old)
        (m.path / "d/mine.tmp").mkdir()
        with os.scandir(m.path / "d") as new:
            assert len([next(new) for _ in range(1500)]) == 1500
        assert len(list(old)) in (2999, 3000)
    for _ in range(2):
        assert sorted(read_names(m)) == [*there, "d/mine.tmp"]


def test_what_a_listing_has_shown_is_known_to_the_kernel_before_it_ends(make_mount, store):
    """By a count of requests. What an earlier listing showed that broke off is not: it may be gone since."""
    there = names(3000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="3s")
    eventually((m.path / there[0]).exists, HANG_S)
    before = m.status()["fuse_requests"]
    for _ in range(50):
        os.stat(m.path / there[0])
    assert m.status()["fuse_requests"] - before < 5, "looked up"
    with os.scandir(m.path / "d") as entries:
        first = [f"d/{next(entries).name}" for _ in range(400)]
        before = m.status()["fuse_requests"]
        for name in first * 2:
            os.stat(m.path / name)
        assert m.status()["fuse_requests"] - before < 5, "read with their attributes"
        with pytest.raises(TimeoutError):
            list(entries)
    store.delete_names(there[:1])
    m.remount(op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        assert f"d/{next(entries).name}" == there[0], "shown by the listing before"
        assert not store.pages_open.is_set() and not (m.path / there[0]).exists(), "the store was asked"
        store.pages_open.set()


def test_a_directory_of_an_immutable_mount_is_read_while_it_is_listed(make_mount, store):
    there = names(5000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(immutable=True, metadata_ttl=None, negative_ttl=None, op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        seen = [f"d/{next(entries).name}" for _ in range(900)]
        assert not store.pages_open.is_set() and seen == there[:900], "the first page is there, in order"
        other = in_thread(lambda: read_names(m))
        late = in_thread(lambda: [f"d/{e.name}" for e in entries])
        store.pages_open.set()
        seen += late(HANG_S)
    assert seen == there
    assert other(HANG_S) == there, "who comes meanwhile sees all, too"
    assert read_names(m) == there
    assert len([query for query in lists(store) if "continuation-token" not in query]) == 1, "one listing"


def test_who_reads_a_listing_that_breaks_off_gets_an_error_and_the_next_all(make_mount, store):
    there = names(3000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="3s")
    with os.scandir(m.path / "d") as entries:
        with pytest.raises(TimeoutError):
            list(entries)
    store.pages_open.set()
    assert sorted(eventually(lambda: listed(m), HANG_S)) == there


def listed(m):
    try:
        return read_names(m)
    except TimeoutError:
        return None


def test_another_worker_goes_on_where_the_reader_was(make_mount, store):
    there = names(5000)
    store.add_names(there)
    store.pages_open.clear()
    m = make_mount(metadata_ttl="1h", op_timeout="10m")
    with os.scandir(m.path / "d") as entries:
        seen = [f"d/{next(entries).name}" for _ in range(900)]
        m.kill_worker()
        store.pages_open.set()
        seen += [f"d/{e.name}" for e in entries]
    assert seen == there


@pytest.mark.slow  # and what memory a build with sanitizers takes says nothing
@pytest.mark.timeout(1800)
def test_a_huge_listing_fits_in_memory_and_misses_nothing_while_names_go(make_mount, store):
    n = 1_000_000 if NIGHT else 100_000
    there = names(n)
    store.add_names(there)
    m = make_mount(metadata_ttl="5s")
    gone = there[5::997]

    def take_away():
        for i in range(0, len(gone), 20):
            store.delete_names(gone[i:i + 20])
            time.sleep(0.01)
    taken = threading.Thread(target=take_away)
    began = time.monotonic()
    with os.scandir(m.path / "d") as entries:
        first = next(entries)
        first_s = time.monotonic() - began
        taken.start()
        seen = [f"d/{first.name}"] + [f"d/{e.name}" for e in entries]
    all_s = time.monotonic() - began
    taken.join()
    assert len(seen) == len(set(seen)) and set(seen) <= set(there) and set(there) - set(seen) <= set(gone)
    print(f"\n{n} names: the first after {first_s:.2f} s, all after {all_s:.1f} s; peak {memory(m, 'VmHWM')} MiB", flush=True)
    assert eventually(lambda: not any((m.path / name).exists() for name in gone[:2] + gone[-2:]), 1500 if NIGHT else 200)
    assert set(read_names(m)) == set(there) - set(gone)
    print(f"listed again: peak {memory(m, 'VmHWM')} MiB")
    assert memory(m, "VmHWM") <= 300


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lookups_and_forgets_of_very_many_names_leave_nothing(make_mount, store):
    n = 200_000 if NIGHT else 40_000
    there = names(n)
    store.add_names(there)
    m = make_mount(metadata_ttl="1h", negative_ttl="1h")
    assert len(read_names(m)) == n
    figures = [memory(m)]
    for i in range(3):
        for name in there:
            os.stat(f"{m.path}/{name}")
            assert i > 0 or not os.path.lexists(f"{m.path}/{name}.no")
        figures.append(memory(m))
        subprocess.run(["mount", "-i", "-o", "remount", m.path], check=True, timeout=60)  # the kernel forgets
    print(f"\n{n} names looked up: MiB {figures}")
    assert max(figures) <= 300 and figures[3] <= figures[2] + 24, "caches fill, up to their limits"


@pytest.mark.slow
def test_a_slow_uplink_holds_nothing_in_memory(make_mount, store):
    size, n = 100, 3
    m = make_mount(upload_limit="1M", part_size="8M")
    (m.path / "before").write_bytes(b"1")
    m.wait()
    before = memory(m, "VmHWM")
    block = os.urandom(MIB)
    for i in range(n):
        with open(m.path / f"big{i}", "wb") as f:
            for _ in range(size):
                f.write(block)
    time.sleep(3)
    assert m.status()["dirty_files"] == n
    grown = memory(m, "VmHWM") - before
    print(f"\n{size * n} MiB wait for an uplink of 1 MiB/s: {grown} MiB more than before")
    assert grown <= 96
    for i in range(n):
        run("publish", "--skip", m.path / f"big{i}", check=False)
        os.unlink(m.path / f"big{i}")


@pytest.fixture
def memory_group():
    """What its processes have together counts, page cache included."""
    with cgroups.group("memory") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_a_daemon_with_little_memory_serves_more_than_that(make_mount, store, memory_group, passthrough):
    """Page cache of the cache files counts as the daemon's where it writes them itself."""
    size = (1024 if passthrough == "off" else 2048) if NIGHT else 384
    m = make_mount(passthrough=passthrough)
    limit = 256 if NIGHT else 128
    memory_group.limit(limit * MIB, m.pids())
    pid = m.status()["pid"]
    blocks = [os.urandom(MIB) for _ in range(7)]
    with open(m.path / "big", "wb") as f:
        for i in range(size):
            f.write(blocks[i % 7])
    m.wait(timeout=200)
    run("evict", m.path / "big")
    with open(m.path / "big", "rb") as f:
        for i in range(size):
            assert f.read(MIB) == blocks[i % 7], i
        assert f.read(1) == b""
    print(f"\n{size} MiB with {limit} MiB: peak {memory(m, 'VmHWM')} MiB")
    assert memory_group.killed() == 0 and m.status()["pid"] == pid, "a worker died, and programs did not notice"


def arenas(pid):
    """Heaps of the allocator beside the first: 64 MiB each, of which the front is in use."""
    maps = [line.split() for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()]
    spans = [(*(int(end, 16) for end in words[0].split("-")), words[1]) for words in maps if len(words) == 5]
    return sum(a[0] % (64 * MIB) == 0 and a[2] == "rw-p" and b[2] == "---p" and a[1] == b[0] and b[1] - a[0] == 64 * MIB
               for a, b in zip(spans, spans[1:], strict=False))


def test_threads_share_what_is_free(make_mount, store):
    store.add_names([f"d{i}/{j}.jpg" for i in range(32) for j in range(100)])
    m = make_mount()
    pid = m.status()["pid"]
    readers = [in_thread(lambda i=i: len(os.listdir(m.path / f"d{i}"))) for i in range(32)]
    assert [done(HANG_S) for done in readers] == [100] * 32
    tasks = len(os.listdir(f"/proc/{pid}/task"))
    assert m.status()["pid"] == pid and tasks > 8
    assert arenas(pid) < min(max(os.cpu_count() // 4, 2), 8), f"of {tasks} threads"
