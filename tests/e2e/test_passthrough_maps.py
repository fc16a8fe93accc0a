"""A mapping that is all that is left of an open file, of which the kernel tells nobody: what becomes of the name must not show in it, nor it in the name."""
import os
import time

import pytest
from mounts import MIB, eventually, run
from test_passthrough import Mapping, blob


@pytest.fixture
def passed(make_mount):
    m = make_mount(passthrough="on", metadata_ttl="1s")
    if not m.status()["passthrough"]:
        pytest.skip(f"no passthrough here: {m.status().get('passthrough_off_because')}")
    return m


@pytest.fixture
def mapped(passed, store):
    """mapped(): mount, mapping and bytes of a file "f" of the store that nobody has open any more."""
    maps = []

    def make():
        old = blob("old", 2 * MIB)
        store.put("f", old)
        with open(passed.path / "f", "rb"):
            assert passed.info("f")["io"] == "passthrough"
            maps.append(Mapping(passed.path / "f", len(old)))
        assert eventually(lambda: passed.info("f")["io"] == "closed")
        assert maps[-1].read(0, 100) == old[:100]
        return passed, maps[-1], old

    yield make
    for m in maps:
        m.close()


def files(m):
    """How many are in the cache. One without a name stays as long as it is mapped: the kernel keeps its inode."""
    return sum(f.is_file() for f in (m.cache / "data").rglob("*"))


def test_changed_in_place_under_a_mapping(mapped, store):
    m, view, old = mapped()
    with open(m.path / "f", "r+b", buffering=0) as f:
        f.seek(MIB)
        f.write(b"changed")
    want = bytearray(old)
    want[MIB:MIB + 7] = b"changed"
    assert view.read() == bytes(want), "as on a local disk: one file, one page cache"
    m.wait()
    assert store.get("f") == bytes(want)


def test_written_anew_under_a_mapping(mapped, store):
    m, view, old = mapped()
    new = blob("new", len(old) + 12345)
    (m.path / "f").write_bytes(new)
    assert view.read() in (old, new[:len(old)])
    m.wait()
    assert (m.path / "f").read_bytes() == new and store.get("f") == new


def test_renamed_over_under_a_mapping(mapped, store):
    m, view, old = mapped()
    new = blob("new", MIB)
    (m.path / "g").write_bytes(new)
    os.rename(m.path / "g", m.path / "f")
    m.wait()
    assert view.read() == old
    assert (m.path / "f").read_bytes() == new and store.list() == {"f": len(new)}
    view.close()
    assert eventually(lambda: files(m) == 1)


def test_renamed_under_a_mapping(mapped, store):
    m, view, old = mapped()
    os.rename(m.path / "f", m.path / "g")
    m.wait()
    assert eventually(lambda: run("evict", m.path / "g", check=False).returncode == 0)
    assert eventually(lambda: files(m) == 0)
    assert view.read() == old
    assert (m.path / "g").read_bytes() == old and store.list() == {"g": len(old)}


def test_unlinked_under_a_mapping(mapped, store):
    m, view, old = mapped()
    os.unlink(m.path / "f")
    m.wait()
    assert eventually(lambda: store.list() == {})
    new = blob("new", len(old))
    (m.path / "f").write_bytes(new)
    assert view.read() == old
    assert (m.path / "f").read_bytes() == new
    view.close()
    assert eventually(lambda: files(m) == 1)


def test_replaced_elsewhere_under_a_mapping(mapped, store):
    m, view, old = mapped()
    new = blob("new", 3 * MIB)
    time.sleep(1.1)
    store.put("f", new)
    assert eventually(lambda: os.stat(m.path / "f").st_size == len(new))
    assert (m.path / "f").read_bytes() == new
    assert view.read() == old
    view.close()
    assert eventually(lambda: files(m) == 1)


@pytest.fixture
def writing(passed):
    """A mapping that still writes to a file "w" of 1 MiB which was closed."""
    view = Mapping(passed.path / "w", MIB, writable=True, create=True)
    try:
        view.write(0, b"first")
        assert eventually(lambda: passed.status()["mapped_files"] == 1)
        yield passed, view
    finally:
        view.close()


def end(m, view):
    view.write(100, b"last")
    view.close()
    assert eventually(lambda: m.status()["mapped_files"] == 0)


def test_renamed_under_a_writing_mapping(writing, store):
    m, view = writing
    os.rename(m.path / "w", m.path / "v")
    end(m, view)
    m.wait()
    got = store.get("v")
    assert store.list() == {"v": MIB} and got[:5] == b"first" and got[100:104] == b"last"


def test_unlinked_under_a_writing_mapping(writing, store):
    m, view = writing
    os.unlink(m.path / "w")
    view.write(50, b"still there")
    assert view.read(50, 11) == b"still there"
    end(m, view)
    m.wait()
    assert store.list() == {}


def test_renamed_over_under_a_writing_mapping(writing, store):
    m, view = writing
    (m.path / "g").write_bytes(b"new")
    os.rename(m.path / "g", m.path / "w")
    end(m, view)
    m.wait()
    assert (m.path / "w").read_bytes() == b"new" and store.list() == {"w": 3}


def test_written_by_a_mapping_is_not_evicted(writing, store):
    m, view = writing
    assert run("evict", m.path / "w", check=False).returncode == 1
    assert m.info("w")["cached_bytes"] >= MIB
    end(m, view)
    m.wait()
    got = store.get("w")
    assert got[:5] == b"first" and got[100:104] == b"last"


def test_put_elsewhere_under_a_writing_mapping(writing, store):
    """Whoever came second lost; neither's bytes are."""
    m, view = writing
    store.put("w", b"theirs")
    end(m, view)
    assert eventually(lambda: m.status()["conflicts"] == 1)
    assert store.get("w") == b"theirs"
    assert eventually(lambda: (m.path / "w").read_bytes() == b"theirs")
    run("conflicts", "save-as", m.path / "w", m.path / "mine")
    m.wait()
    got = store.get("mine")
    assert got[:5] == b"first" and got[100:104] == b"last"
