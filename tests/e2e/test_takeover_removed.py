"""A worker dies when files have just been removed: what nobody can use any more goes with the next one, and only that."""
import contextlib
import mmap
import os

import pytest
from crash_file import CrashFile
from mounts import MIB, POINTS, eventually, in_thread

N = 300


@pytest.fixture(name="m")
def _mount(make_mount):
    return make_mount(settle="0s")


@pytest.fixture(name="dying")
def _dying(make_mount, base):
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    m = make_mount(start=False, settle="0s", part_size="5M")
    m.program = POINTS
    m.crash = CrashFile(base / "crash")
    m.env["SLUICE_CRASH_FILE"] = str(m.crash.path)
    return m.mount()


def cached(m):
    """Cache files, and the bytes that they take."""
    blocks = []
    for f in m.cache.glob("data/*/*"):
        with contextlib.suppress(FileNotFoundError):
            blocks.append(os.stat(f).st_blocks)
    return len(blocks), sum(blocks) * 512


def uploads(store):
    return list((store.root / ".sluice-tmp").glob("mpu-*/p*")) if hasattr(store, "root") else store.uploads()


def fill(m, published):
    (m.path / "kept").write_bytes(b"k" * 1000)
    for i in range(N):
        (m.path / f"f{i}").write_bytes(os.urandom(20000))
        if published and i == N // 2:
            m.wait()
    m.wait("kept")


def remove(m):
    for i in range(N):
        os.unlink(m.path / f"f{i}")


def is_emptied(m, but=1):
    """Of all but `kept`, and others, while programs use the mount: what the worker before was asked for last is known to be over by that."""
    assert (m.path / "kept").read_bytes() == b"k" * 1000
    return cached(m)[0] == but


@pytest.mark.parametrize("published", [False, True])
def test_files_removed_just_before_the_death_leave_the_cache(m, published):
    m.kill_worker()
    fill(m, published)
    assert cached(m)[0] == N + 1
    remove(m)
    m.kill_worker()
    assert eventually(lambda: is_emptied(m), 10), cached(m)


@pytest.mark.parametrize("point", ["reap_begun", "reap_content"])
def test_files_of_a_worker_that_dies_while_it_removes_them_leave_the_cache(dying, point):
    """Their FORGETs were read, and do not come again."""
    m = dying
    m.crash.arm(point, nth=3, again=1)
    fill(m, False)
    remove(m)
    assert eventually(lambda: m.crash.fired() and not m.crash.armed()), "nobody died"
    assert eventually(lambda: is_emptied(m), 10), cached(m)


def test_files_renamed_over_just_before_the_death_leave_the_cache(dying):
    """They stay until what came is on the disk, which the next worker sees to."""
    m = dying
    fill(m, False)
    m.crash.arm("replaced_synced", nth=3, again=1)
    for name in sorted(os.listdir(m.path)):
        if name != "kept":
            (m.path / "new.tmp").write_bytes(b"n" * 1000)
            os.rename(m.path / "new.tmp", m.path / name)
    assert eventually(lambda: m.crash.fired() and not m.crash.armed()), "nobody died"
    assert eventually(lambda: is_emptied(m, N + 1), 10), cached(m)


def test_upload_of_a_file_removed_just_before_the_death_is_aborted(dying, store):
    m = dying
    with open(m.path / "f.tmp", "wb", buffering=0) as f:  # held: it is sent, and not published
        f.write(os.urandom(40 * MIB))
        assert eventually(lambda: uploads(store)), "nothing is sent"
    m.crash.arm("reap_begun")
    os.unlink(m.path / "f.tmp")
    assert eventually(m.crash.fired), "nobody died"
    assert eventually(lambda: os.listdir(m.path) == [] and not uploads(store), 10), uploads(store)  # while the mount is used
    assert eventually(lambda: os.listdir(m.path) == [] and cached(m)[0] == 0, 10), cached(m)
    m.wait()
    assert not store.list()


def test_what_the_kernel_still_knows_stays(m):
    """A descriptor without an open file, a mapping, a working directory: no handle tells of them."""
    data = os.urandom(MIB)
    for name in "path", "map", "open":
        (m.path / name).write_bytes(data)
    (m.path / "d").mkdir()
    path, d = os.open(m.path / "path", os.O_PATH), os.open(m.path / "d", os.O_PATH | os.O_DIRECTORY)
    opened = os.open(m.path / "open", os.O_RDWR)
    fd = os.open(m.path / "map", os.O_RDWR)
    with mmap.mmap(fd, MIB) as mapped:
        os.close(fd)
        for name in "path", "map", "open":
            os.unlink(m.path / name)
        os.rmdir(m.path / "d")
        fill(m, False)
        for _ in range(2):
            remove(m)
            m.kill_worker()
            assert eventually(lambda: is_emptied(m, but=4), 10), cached(m)
            assert os.stat(f"/proc/self/fd/{path}").st_nlink == 0
            with open(f"/proc/self/fd/{path}", "rb") as f:
                assert f.read() == data
            assert mapped[:] == data and os.pread(opened, MIB, 0) == data
            assert os.listdir(f"/proc/self/fd/{d}") == []
            fill(m, False)
        remove(m)
        mapped[:4] = b"last"
    os.close(path)
    os.close(d)
    os.close(opened)
    assert eventually(lambda: is_emptied(m), 10), cached(m)


@pytest.mark.parametrize("point", ["create_unopened", "reply_create"])
def test_file_without_a_name_that_a_dead_worker_made_is_there(dying, point):
    """The kernel did not know it yet when the next one asked."""
    m = dying
    fill(m, False)
    remove(m)
    m.crash.arm(point)
    fd = in_thread(lambda: os.open(m.path, os.O_TMPFILE | os.O_RDWR))()
    assert m.crash.fired() == point, "nobody died"
    os.write(fd, b"data")
    assert eventually(lambda: is_emptied(m, but=2), 10), cached(m)
    os.link(f"/proc/self/fd/{fd}", m.path / "named", src_dir_fd=fd, follow_symlinks=True)  # a directory makes it linkat(), which follows
    os.close(fd)
    assert (m.path / "named").read_bytes() == b"data"
