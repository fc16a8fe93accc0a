"""The database of a cache with several disks is lost: what lies unpublished on the further ones comes back as well, whatever is broken off, and is named while its disk is not there."""
import os
import re
import shutil

import pytest
from crash_file import CrashFile
from mounts import POINTS, run, sh

NO_WRITES = "op=put,action=error:-EIO;op=create,action=error:-EIO;op=part,action=error:-EIO;op=complete,action=error:-EIO"
STEPS = ["disk_noted", "disk_marked", "disk_known", "disk_looked_through"]


@pytest.fixture
def m(make_mount, base):
    return make_mount(start=False, cache_dir=f"{base}/a:{base}/b", order="none")


def write_files(m, names, mark="first"):
    data = {}
    for name in names:
        (m.path / name).parent.mkdir(parents=True, exist_ok=True)
        data[name] = mark.encode() + os.urandom(100_000)
        (m.path / name).write_bytes(data[name])
    return data


def unpublished(disk):
    return [f for f in disk.glob("data/*/*") if "user.sluice.intent" in os.listxattr(f)]


def leave(m, base, *further, names=12):
    """Unpublished files on all disks of a cache that nobody uses."""
    m.mount(fault=NO_WRITES, op_timeout="2s")
    data = write_files(m, [f"d{i % 3}/f{i:02}" for i in range(names)])
    m.kill9()
    for disk in further or ("b",):
        assert len(unpublished(base / disk)) >= 2
    return data


def lose(disk, how="gone"):
    """Its database."""
    if how == "gone":
        shutil.rmtree(disk / "meta")
    else:
        for file in [*(disk / "meta").glob("MANIFEST-*"), *(disk / "meta").glob("*.log"), *(disk / "meta").glob("*.sst")]:
            file.write_bytes(os.urandom(file.stat().st_size))


def fsck(m, base, *options, code, env=None, program=POINTS):
    done = run("fsck", *options, base / "a", check=False, timeout=120, env={**m.env, **(env or {})}, program=program)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def all_is_there(m, store, data):
    for name, text in data.items():
        assert (m.path / name).read_bytes() == text, name
    m.wait()
    for name, text in data.items():
        assert store.get(name) == text, name
    status = m.status()
    assert status["quarantined"] == 0 and status["unreachable"] == []


def points():
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")


@pytest.mark.parametrize("by, how", [("mount", "gone"), ("fsck", "gone"), ("fsck", "damaged")])
def test_files_of_all_disks_come_back(m, store, base, by, how):
    m.options["cache_dir"] = f"{base}/a:{base}/b:{base}/c d"
    data = leave(m, base, "b", "c d")
    lose(base / "a", how)
    if by == "fsck":
        said = fsck(m, base, code=1)
        assert f"{base}/b: a cache disk of this cache that the database does not know" in said, said
        fsck(m, base, "--repair", code=0)
        fsck(m, base, code=0)
    m.mount()
    all_is_there(m, store, data)
    assert [t["path"] for t in m.status()["tiers"]] == [f"{base}/a", f"{base}/b", f"{base}/c d"]
    m.umount()
    fsck(m, base, code=0)


def test_first_folder_is_recognised_without_a_database(m, store, base):
    data = leave(m, base)
    lose(base / "a")
    m.mount(cache_dir=f"{base}/b:{base}/a")
    assert m.status()["cache_dir"] == f"{base}/a"
    all_is_there(m, store, data)


@pytest.mark.parametrize("by", ["mount", "fsck"])
@pytest.mark.parametrize("meanwhile", ["nothing", "work", "work in its place"])
def test_disk_that_is_not_there_is_named_until_it_is(m, store, base, by, meanwhile):
    data = leave(m, base)
    lose(base / "a")
    (base / "b").rename(base / "away")
    for _ in range(2):
        said = fsck(m, base, "--repair", code=1)
        assert f"{base}/b: this cache disk is not there" in said and "bring it back" in said, said
        assert "all repaired" not in said
    later = {}
    if meanwhile != "nothing":
        m.mount(fault=NO_WRITES, op_timeout="2s", **({"cache_dir": base / "a"} if meanwhile == "work" else {}))
        assert "this cache disk is not there" in m.log() and f"path='{base}/b'" in m.log()
        assert (f"{base}/b", "missing") in [(t["path"], t["state"]) for t in m.status()["tiers"]]
        later = write_files(m, [f"later/f{i:02}" for i in range(30)], "later")  # their numbers are the disk's as well
        m.umount()
        fsck(m, base, code=1)
    if meanwhile == "work in its place":
        assert unpublished(base / "b")
        (base / "b").rename(base / "c")
        m.options["cache_dir"] = f"{base}/c:{base}/b:{base}/a"
    (base / "away").rename(base / "b")
    if by == "fsck":
        assert f"{base}/b: a cache disk of this cache" in fsck(m, base, code=1)
        fsck(m, base, "--repair", code=int(meanwhile == "work in its place"))  # where the other one is now, only a mount is told
    m.mount()
    all_is_there(m, store, data | later)
    m.umount()
    fsck(m, base, code=0)


@pytest.mark.parametrize("again", [False, True], ids=["once", "lost again"])
@pytest.mark.parametrize("point", STEPS)
def test_repair_killed_between_its_steps(m, store, base, point, again):
    points()
    data = leave(m, base)
    lose(base / "a")
    fsck(m, base, "--repair", code=-9, env={"SLUICE_CRASH": point})
    if again:
        lose(base / "a")
        fsck(m, base, "--repair", code=-9, env={"SLUICE_CRASH": point})
    fsck(m, base, "--repair", code=0)
    fsck(m, base, code=0)
    m.mount()
    all_is_there(m, store, data)


@pytest.mark.parametrize("point", STEPS)
def test_mount_killed_between_its_steps(m, store, base, point):
    points()
    data = leave(m, base)
    lose(base / "a")
    crash = CrashFile(base / "crash")
    crash.arm(point, parent=True)
    run(*m.arguments(), env={**m.env, "SLUICE_CRASH_FILE": str(crash.path)}, program=POINTS, check=False)
    assert crash.fired() == point
    m.detach()
    m.mount()
    all_is_there(m, store, data)
    m.umount()
    fsck(m, base, code=0)


@pytest.mark.parametrize("lost", ["database", "folder"])
def test_disk_that_was_never_written_down_is_refused_with_what_to_do(m, store, base, lost):
    """As in a cache that only older versions used; or the whole first disk is lost."""
    data = leave(m, base)
    on_b = {re.search(r'"path":"([^"]+)"', os.getxattr(f, "user.sluice.intent").decode())[1] for f in unpublished(base / "b")}
    if lost == "database":
        (base / "a/disks").unlink()
        lose(base / "a")
        assert "mount with all of them" in fsck(m, base, "--repair", code=0)
    else:
        shutil.rmtree(base / "a")
    refused = run(*m.arguments(), env=m.env, check=False)
    assert refused.returncode != 0 and f"'{base}/b' belongs to another cache" in refused.stderr
    sh(re.search(r"`(echo .* >> .*)`", refused.stderr)[1])
    m.mount()
    all_is_there(m, store, data if lost == "database" else {name: data[name] for name in on_b})


def test_database_that_cannot_be_read_to_its_end_tells_its_disks_first(m, store, base):
    """A cache of before: the repair writes down what the database still says."""
    data = leave(m, base)
    (base / "a/disks").unlink()
    fsck(m, base, "--repair", code=0)
    lose(base / "a")
    fsck(m, base, "--repair", code=0)
    m.mount()
    all_is_there(m, store, data)


def test_disk_in_use_or_with_a_database_of_its_own_is_left_alone(m, make_mount, store, base):
    data = leave(m, base)
    lose(base / "a")
    alone = make_mount("alone", cache_dir=base / "b", start=False)
    alone.mount()
    assert f"{base}/b: this cache disk is one that a lost database knew, and cannot be taken over" in fsck(m, base, "--repair", code=1)
    alone.wait()
    alone.umount()
    m.mount(cache_dir=base / "a")
    m.wait()
    assert all(store.get(name) == text for name, text in data.items())
    m.umount()
    line = next(line for line in (base / "a/disks").read_text().splitlines() if line.endswith("/b"))
    assert line
    (base / "a/disks").write_text("")
    fsck(m, base, code=0)
