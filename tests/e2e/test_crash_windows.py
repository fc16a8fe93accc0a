"""A kill at one named point, and what is left of it for programs, for the bucket and for `sluice fsck`. Needs a build with test points."""
import contextlib
import ctypes
import errno
import os
import random
import shutil

import pytest
from crash_file import CrashFile
from mounts import MIB, POINTS, eventually, is_gone, run
from test_passthrough import Mapping

EXCHANGE = 2
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(name="m")
def _mount(make_mount, base):
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    m = make_mount(start=False, settle="0s", free_space="1M")
    m.program = POINTS
    m.crash = CrashFile(base / "crash")
    m.env["SLUICE_CRASH_FILE"] = str(m.crash.path)
    m.mount()
    return m


@pytest.mark.parametrize("point", ["cache_recorded", "cache_made", "vid_recorded", "absent_recorded"])
def test_record_of_a_file_that_was_never_made_goes(m, store, point):
    """The program's call is answered by the next worker, which makes another cache file."""
    store.put("d/there", b"data")
    m.crash.arm(point)
    if point == "absent_recorded":
        assert (m.path / "d/there").read_bytes() == b"data"
    else:
        (m.path / "new").write_bytes(b"new")
    assert m.crash.fired() == point, "nobody died"
    m.wait()
    m.kill_worker()  # that which came then had the record of before until it was used
    m.wait()
    m.umount()
    done = run("fsck", m.cache, check=False, env=m.env, program=POINTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([f for f in m.cache.glob("data/*/*") if f.is_file()]) == 1


@pytest.mark.directory
@pytest.mark.parametrize("key", ["d/e/f", "d/e/"])
def test_directory_appears_with_what_is_in_it(m, store, key):
    """In a store that is a directory: else a kill leaves an empty one, which would be a marker that nobody put, and come back after it was removed."""
    pids = m.pids()
    m.crash.arm("store_built", parent=True)
    os.makedirs(m.path / "d/e")
    if not key.endswith("/"):
        (m.path / key).write_bytes(b"data")
    assert eventually(lambda: all(map(is_gone, pids)), 30), "nobody died"
    assert m.crash.fired() == "store_built"
    assert not (store.root / "d").exists()
    m.detach()
    m.mount()
    m.wait()
    assert eventually((store.root / key).exists, 30)


@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
@pytest.mark.parametrize("point", ["detach_recorded", "rename_committed", "rename_intents", "put_visible", "upload_verified", "publish_recorded"])
def test_exchanged_files_keep_their_own_bytes(m, store, point, both):
    """Here, in the bucket, and for a mount that knows only the bucket: both as they were or both exchanged."""
    a, b, data = m.path / "a", m.path / "b", {"a": b"A" * 5000, "b": b"B" * 300}
    for name, text in data.items():
        (m.path / name).write_bytes(text)
    m.wait()
    pids = m.pids()
    m.crash.arm(point, parent=both)
    done = libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), EXCHANGE) == 0
    assert eventually(m.crash.fired, 30) == point, "nobody died"
    if both:
        assert eventually(lambda: all(map(is_gone, pids)), 30)
        m.detach()
        m.mount()
    seen = {name: (m.path / name).read_bytes() for name in data}
    assert seen in ([{"a": data["b"], "b": data["a"]}] if done else [data, {"a": data["b"], "b": data["a"]}])
    m.wait()
    assert {name: store.get(name) for name in data} == seen
    m.umount()
    shutil.rmtree(m.cache)
    m.mount()
    assert {name: (m.path / name).read_bytes() for name in data} == seen


def test_store_through_a_mapping_behind_a_published_snapshot_is_published(m, store):
    """The worker dies when the mapping has ended, before the record says that the file is sealed."""
    m.remount(close="remote")
    if not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    view = Mapping(m.path / "f", 4096, writable=True, create=True)  # its descriptor's close waits until it is published
    assert store.get("f") == bytes(4096)
    m.crash.arm("seal_begun")
    view.write(0, b"new!")
    view.close()
    assert eventually(m.crash.fired, 30) == "seal_begun", "nobody died"
    m.wait()
    assert store.get("f") == b"new!" + bytes(4092)


def die(m, pids, both):
    """Until those that were to die have; there is a mount afterwards."""
    if both:
        assert eventually(lambda: all(map(is_gone, pids)), 30), "they did not die"
        m.detach()
        m.mount()
    else:
        assert eventually(lambda: is_gone(pids[-1]), 30), "nobody died"


@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
@pytest.mark.parametrize("point", ["conflict_found", "conflict_parked", "conflict_aside"])
def test_conflict_is_kept_and_listed_once(m, store, point, both):
    """Whoever came first stays in the bucket, and is what the path shows; ours is there to be decided about."""
    store.put("d/f", b"base")
    assert (m.path / "d/f").read_bytes() == b"base"
    pids = m.pids()
    m.crash.arm(point, parent=both)
    with open(m.path / "d/f", "r+b", buffering=0) as f:
        f.write(b"ours")
        store.put("d/f", b"theirs")
    assert eventually(m.crash.fired, 30) == point
    die(m, pids, both)
    assert eventually(lambda: run("conflicts", m.path, program=POINTS).stdout.count("d/f") == 1 and (m.path / "d/f").read_bytes() == b"theirs")
    assert m.status()["conflicts"] == 1
    assert store.get("d/f") == b"theirs"
    run("conflicts", "save-as", m.path / "d/f", m.path / "d/mine", program=POINTS)
    m.wait()
    assert {name: store.get(name) for name in ("d/f", "d/mine")} == {"d/f": b"theirs", "d/mine": b"ours"}
    assert m.status()["conflicts"] == 0


@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
def test_decision_that_was_cut_off_is_still_to_be_taken(m, store, both):
    store.put("f", b"base")
    assert (m.path / "f").read_bytes() == b"base"
    with open(m.path / "f", "r+b", buffering=0) as f:
        f.write(b"ours")
        store.put("f", b"theirs")
    assert eventually(lambda: (m.path / "f").read_bytes() == b"theirs")
    assert m.status()["conflicts"] == 1
    pids = m.pids()
    m.crash.arm("conflict_brought", parent=both)
    assert run("conflicts", "keep-mine", m.path / "f", check=False, program=POINTS).returncode == 1
    assert m.crash.fired() == "conflict_brought"
    die(m, pids, both)
    assert m.status()["conflicts"] == 1
    assert store.get("f") == b"theirs" == (m.path / "f").read_bytes()
    run("conflicts", "keep-mine", m.path / "f", program=POINTS)
    m.wait()
    assert store.get("f") == b"ours" == (m.path / "f").read_bytes()
    assert m.status()["conflicts"] == 0


@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
@pytest.mark.parametrize("point", ["punch_recorded", "punch_done"])
def test_what_was_given_back_of_a_file_is_fetched_again(m, store, point, both):
    """Of one that is too large for the cache, while it is read."""
    data = random.Random(point).randbytes(40 * MIB)
    store.put("f", data)
    m.remount(cache_size="64M")
    pids = m.pids()
    m.crash.arm(point, parent=both)
    f = os.open(m.path / "f", os.O_RDONLY)
    try:
        for off in range(0, len(data), MIB):
            got = os.pread(f, MIB, off)
            assert got == data[off:off + len(got)]  # less where it died in between
            assert both or len(got) == MIB
    except OSError as e:
        assert both and e.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert eventually(m.crash.fired, 30) == point
    die(m, pids, both)
    with contextlib.suppress(OSError):
        os.close(f)
    for _ in range(2):
        assert (m.path / "f").read_bytes() == data
    m.umount()
    done = run("fsck", m.cache, check=False, env=m.env, program=POINTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernel_learns_of_what_a_killed_worker_had_not_told_it(m, store):
    """Of a name that it was to trust for an hour."""
    m.umount()
    m.options.update(metadata_ttl="1h", negative_ttl="1h")
    store.put("d/f", b"1")
    m.mount()
    assert (m.path / "d/f").stat().st_size == 1
    pids = m.pids()
    store.put("d/f", b"22")
    m.crash.arm("note_unsent")
    run("sync", m.path / "d", check=False, program=POINTS)
    assert eventually(m.crash.fired, 30) == "note_unsent", "nobody died"
    die(m, pids, False)
    assert eventually(lambda: (m.path / "d/f").stat().st_size == 2)


@pytest.mark.parametrize("name", ["f", "sub"], ids=["file", "directory"])
def test_name_that_is_gone_is_not_trusted_after_a_killed_worker(m, store, name):
    """Though it was to be for an hour, and nothing here has that name any more. Who is in a directory beside it notices nothing."""
    m.umount()
    m.options.update(metadata_ttl="1h", negative_ttl="1h")
    for key in ("d/f", "d/sub/f", "d/stays/f"):
        store.put(key, b"1")
    m.mount()
    for key in ("d/f", "d/sub/f", "d/stays/f"):
        assert (m.path / key).stat().st_size == 1
    pids = m.pids()
    store.delete("d/f" if name == "f" else "d/sub/f")
    if name == "sub" and hasattr(store, "root"):
        (store.root / "d/sub").rmdir()
    here = os.open(m.path / "d/stays", os.O_RDONLY | os.O_DIRECTORY)
    try:
        m.crash.arm("note_unsent")
        run("sync", m.path / "d", check=False, program=POINTS)
        assert eventually(m.crash.fired, 30) == "note_unsent", "nobody died"
        die(m, pids, False)
        assert eventually(lambda: not (m.path / "d" / name).exists())
        assert os.readlink(f"/proc/self/fd/{here}") == str(m.path / "d/stays")
    finally:
        os.close(here)


@pytest.mark.parametrize("hides", [False, True], ids=["nothing", "hides"])
@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
def test_a_link_whose_end_the_kernel_was_not_told_is_gone(m, store, base, both, hides):
    """At once: also when there is something of the mount's own bucket below it."""
    one = type(store)(base / "one")
    try:
        one.put("f", b"1")
        endpoint = ["--endpoint-url", one.endpoint] if one.endpoint else []
        run("link", "add", *endpoint, one.source, m.path / "sub", program=POINTS)
        assert (m.path / "sub/f").read_bytes() == b"1" and os.listdir(m.path) == ["sub"]
        if hides:
            store.put("sub/x", b"own")
        pids = m.pids()
        m.crash.arm("link_gone", parent=both)
        run("link", "rm", m.path / "sub", check=False, program=POINTS)
        assert eventually(m.crash.fired, 30) == "link_gone", "nobody died"
        die(m, pids, both)
        assert (os.listdir(m.path / "sub") == ["x"]) if hides else not (m.path / "sub").exists()
        assert not m.status()["links"] and os.listdir(m.path) == (["sub"] if hides else [])
    finally:
        one.remove()


@pytest.mark.parametrize("both", [False, True], ids=["worker", "both"])
def test_removal_of_a_link_goes_on_while_the_mount_is_served(m, store, base, both):
    """More names than go at once; the next worker dies in it, too."""
    one = type(store)(base / "one")
    try:
        for i in range(1200):
            one.put(f"d/{i}", b"1")
        store.put("own/f", b"own")
        endpoint = ["--endpoint-url", one.endpoint] if one.endpoint else []
        run("link", "add", *endpoint, one.source, m.path / "sub", program=POINTS)
        assert len(os.listdir(m.path / "sub/d")) == 1200
        pids = m.pids()
        m.crash.arm("link_names_gone", parent=both, again=0 if both else 1)
        run("link", "rm", m.path / "sub", check=False, program=POINTS)
        assert eventually(m.crash.fired, 30) == "link_names_gone", "nobody died"
        die(m, pids, both)
        assert (m.path / "own/f").stat().st_size == 3
        assert eventually(lambda: not m.status()["links"], 60)
        assert not (m.path / "sub").exists() and len(one.list()) == 1200
    finally:
        one.remove()
