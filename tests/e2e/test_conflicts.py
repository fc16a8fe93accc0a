"""A file changed here and elsewhere at once: both versions are kept, and each decision about them does what it says."""
import json
import os
import subprocess

import lake
import pytest
from mounts import MIB, SLUICE, eventually, run


def conflicts(mount, *args):
    lines = run("conflicts", "--json", *args or ("list", mount.path)).stdout.splitlines()
    return [json.loads(line) for line in lines]


def lose(mount, path, change_elsewhere, ours=b"ours"):
    """Writes `ours` through the mount while somebody else changes the object."""
    with open(mount.path / path, "r+b", buffering=0) as f:
        f.truncate(0)
        f.write(ours)
        change_elsewhere()
    lost = eventually(lambda: [c for c in conflicts(mount) if c["path"] == path and c["state"] == "conflict"])
    assert len(lost) == 1
    return lost[0]


def shows(mount, path):
    try:
        return (mount.path / path).read_bytes()
    except FileNotFoundError:
        return None


@pytest.fixture
def lost(mount, store):
    """A mount with one conflict at d/f: base, ours, theirs."""
    store.put("d/f", b"base")
    assert shows(mount, "d/f") == b"base"
    conflict = lose(mount, "d/f", lambda: store.put("d/f", b"theirs"))
    return mount, conflict


def test_two_mounts_of_one_bucket(make_mount, store):
    store.put("f", b"base")
    a, b = make_mount("a"), make_mount("b")
    assert shows(a, "f") == shows(b, "f") == b"base"

    def by_b():
        (b.path / "f").write_bytes(b"theirs, through the other mount")
        b.wait()

    conflict = lose(a, "f", by_b)
    assert shows(a, "f") == b"theirs, through the other mount"
    assert conflict["size"] == 4
    assert conflict["base_etag"] != conflict["winner_etag"]
    assert a.status()["conflicts"] == 1 and b.status()["conflicts"] == 0
    run("conflicts", "keep-mine", a.path / "f")
    a.wait()
    assert store.get("f") == b"ours"
    assert shows(a, "f") == b"ours"
    assert eventually(lambda: shows(b, "f") == b"ours")


@pytest.mark.parametrize("size", [4, 12 * MIB])
def test_store_without_conditions_is_looked_at_right_before(make_mount, size):
    """And status says of which requests that is so."""
    store = lake.Lake(has_conditions=False)
    try:
        m = make_mount(source=store.source, endpoint_url=store.endpoint, start=False, part_size="5M", order="none")
        m.env = store.env()
        m.mount()
        (m.path / "first").write_bytes(b"the store is probed at the first write")
        m.wait()
        told = m.status()["conditions_by_head"]
        assert {"put-if-match", "put-if-none-match", "complete-conditions"} <= set(told), told
        assert not set(told) & set(m.status()["capabilities"])
        for name in "lost", "won":
            store.put(name, b"base")
        for name in "lost", "won":
            assert eventually(lambda name=name: shows(m, name) == b"base")
        ours = os.urandom(size)
        lose(m, "lost", lambda: store.put("lost", b"theirs"), ours)
        assert store.get("lost") == b"theirs"
        (m.path / "won").write_bytes(ours)
        (m.path / "new").write_bytes(ours)
        m.wait("won")
        m.wait("new")
        assert store.get("won") == store.get("new") == ours
        for name in "won", "new":
            calls = [verb for verb, key, query in store.calls if key == name and "partNumber" not in query]
            last = max(i for i, verb in enumerate(calls) if verb == ("PUT" if size < MIB else "POST"))
            assert calls[last - 1] == "HEAD", calls
        m.umount()
    finally:
        store.remove()


def test_list_show_and_info_tell_of_it(lost):
    mount, conflict = lost
    by_path = conflicts(mount, "show", mount.path / "d/f")
    by_id = json.loads(subprocess.run([SLUICE, "conflicts", "show", "--json", str(conflict["id"])], cwd=mount.path, check=True,
                                      capture_output=True, text=True, timeout=60).stdout)
    assert by_path == [by_id]
    assert by_id["local_bytes"] == 4 and by_id["complete"]
    assert mount.info("d/f")["conflict"] == conflict["id"]
    assert mount.info("d")["conflicts"] == 1
    assert "d/f" in run("conflicts", mount.path).stdout
    assert conflicts(mount, "list", mount.path / "elsewhere") == []
    assert run("wait", "--timeout", "5s", mount.path, check=False).returncode == 1


def test_keep_theirs_drops_ours(lost, store):
    mount, _ = lost
    said = run("conflicts", "keep-theirs", mount.path / "d/f").stdout
    assert "d/f" in said and "4 B" in said
    mount.wait()
    assert shows(mount, "d/f") == store.get("d/f") == b"theirs"
    assert mount.status()["conflicts"] == 0
    assert run("conflicts", "keep-theirs", mount.path / "d/f", check=False).returncode == 1
    assert eventually(lambda: not [p for p in (mount.cache / "data").rglob("*") if p.is_file() and p.read_bytes() == b"ours"])


def test_what_was_decided_is_seen_at_once(lost):
    mount, _ = lost
    assert shows(mount, "d/f") == b"theirs"
    mount.tells_late(lambda: run("conflicts", "keep-mine", mount.path / "d/f"), lambda: shows(mount, "d/f") == b"ours")


def test_save_as_gives_ours_a_name(lost, store):
    mount, _ = lost
    assert run("conflicts", "save-as", mount.path / "d/f", mount.path / "d/f", check=False).returncode == 1
    run("conflicts", "save-as", mount.path / "d/f", mount.path / "d/f.ours")
    assert shows(mount, "d/f.ours") == b"ours"
    mount.wait()
    assert store.get("d/f.ours") == b"ours" and store.get("d/f") == b"theirs"
    assert sorted(os.listdir(mount.path / "d")) == ["f", "f.ours"]
    assert os.stat(mount.path / "d/f.ours").st_nlink == 1
    assert mount.status()["conflicts"] == 0


def test_retry_is_keep_mine(lost, store):
    mount, _ = lost
    store.put("d/f", b"a third version")
    run("publish", "--retry", mount.path / "d")
    mount.wait()
    assert store.get("d/f") == shows(mount, "d/f") == b"ours"
    assert mount.status()["conflicts"] == 0


def test_new_content_at_the_path_is_not_overwritten(lost, store):
    mount, _ = lost
    (mount.path / "d/f").write_bytes(b"newer")
    done = run("conflicts", "keep-mine", mount.path / "d/f", check=False)
    assert done.returncode == 1 and "another file" in done.stderr
    assert shows(mount, "d/f") == b"newer"
    run("conflicts", "keep-theirs", mount.path / "d/f")
    mount.wait()
    assert store.get("d/f") == b"newer"


@pytest.mark.parametrize("how", ["umount", "kill"])
def test_conflict_outlives_the_daemon(lost, store, how):
    mount, conflict = lost
    if how == "kill":
        mount.kill9()
        mount.mount()
    else:
        mount.remount()
    assert [c["id"] for c in conflicts(mount)] == [conflict["id"]]
    assert shows(mount, "d/f") == b"theirs"
    run("conflicts", "keep-mine", mount.path / "d/f")
    mount.wait()
    assert store.get("d/f") == b"ours"


def test_object_removed_elsewhere(mount, store):
    store.put("f", b"base")
    assert shows(mount, "f") == b"base"
    lose(mount, "f", lambda: store.delete("f"))
    assert shows(mount, "f") is None and "f" not in os.listdir(mount.path)
    assert mount.info("f")["state"] == "conflict"
    run("conflicts", "keep-mine", mount.path / "f")
    mount.wait()
    assert store.get("f") == shows(mount, "f") == b"ours"


@pytest.mark.parametrize("theirs", [b"theirs", None])
def test_what_is_written_after_the_object_changed_is_kept(mount, store, theirs):
    store.put("d/f", b"base")
    store.put("d/other", b"1")
    assert shows(mount, "d/f") == b"base"
    with open(mount.path / "d/f", "r+b", buffering=0) as f:
        store.put("d/f", theirs) if theirs else store.delete("d/f")
        store.put("d/seen", b"1")
        assert eventually(lambda: "seen" in os.listdir(mount.path / "d"))
        assert os.path.samestat(os.fstat(f.fileno()), os.stat(mount.path / "d/f"))
        f.write(b"ours")
        os.fsync(f.fileno())
    assert eventually(lambda: [c for c in conflicts(mount) if c["path"] == "d/f" and c["state"] == "conflict"])
    assert shows(mount, "d/f") == theirs
    run("conflicts", "keep-mine", mount.path / "d/f")
    mount.wait()
    assert store.get("d/f") == shows(mount, "d/f") == b"ours"


def test_path_shows_theirs_once_a_writer_has_written_nothing(make_mount, store):
    store.put("d/f", b"base")
    m = make_mount(metadata_ttl="3s")
    assert shows(m, "d/f") == b"base"
    with open(m.path / "d/f", "r+b", buffering=0):
        store.put("d/f", b"theirs")
        store.put("d/seen", b"1")
        assert eventually(lambda: "seen" in os.listdir(m.path / "d"))
        assert shows(m, "d/f") == b"base"
    assert eventually(lambda: shows(m, "d/f") == b"theirs")
    assert conflicts(m) == [] and store.get("d/f") == b"theirs"


def test_path_shows_ours_until_its_writers_close(make_mount, store):
    store.put("f", b"base")
    m = make_mount(fsync="remote")
    assert shows(m, "f") == b"base"
    with open(m.path / "f", "r+b", buffering=0) as f:
        f.write(b"ours")
        store.put("f", b"theirs")
        with pytest.raises(OSError):
            os.fsync(f.fileno())
        assert shows(m, "f") == b"ours"
        assert [c["state"] for c in conflicts(m)] == ["open"]
        assert m.status()["conflicts"] == 1
        refused = run("conflicts", "keep-theirs", m.path / "f", check=False)
        assert refused.returncode == 1 and "open" in refused.stderr
    with open(m.path / "f", "rb") as reader:
        assert eventually(lambda: shows(m, "f") == b"theirs")
        assert reader.read() in (b"ours", b"theirs")
    assert m.status()["conflicts"] == 1


def test_open_reader_of_ours_goes_on(mount, store):
    ours = os.urandom(8 * MIB)
    store.put("f", b"base")
    assert shows(mount, "f") == b"base"
    with open(mount.path / "f", "r+b", buffering=0) as writer:
        writer.truncate(0)
        writer.write(ours)
        reader = os.open(mount.path / "f", os.O_RDONLY)
        store.put("f", b"theirs")
    try:
        assert eventually(lambda: shows(mount, "f") == b"theirs")
        assert b"".join(os.pread(reader, MIB, i * MIB) for i in range(8)) == ours
    finally:
        os.close(reader)


@pytest.mark.parametrize("release", ["skip", "keep-mine"])
def test_marker_behind_a_lost_shard_waits(mount, store, release):
    store.put("step/shard0", b"base")
    assert shows(mount, "step/shard0") == b"base"
    lose(mount, "step/shard0", lambda: store.put("step/shard0", b"theirs"))
    (mount.path / "step/shard1").write_bytes(b"1")
    (mount.path / "latest").write_bytes(b"step")
    assert run("wait", "--timeout", "2s", mount.path / "latest", check=False).returncode == 1
    assert mount.info("latest")["blocked_by"] == "step/shard0"
    mount.remount()
    assert run("wait", "--timeout", "2s", mount.path / "latest", check=False).returncode == 1
    assert sorted(store.list()) == ["step/shard0"]
    if release == "skip":
        run("publish", "--skip", mount.path / "step")
        mount.wait()
        assert store.get("step/shard0") == b"theirs"
        assert mount.status()["conflicts"] == 1
        assert conflicts(mount)[0]["holds_back_others"] is False
    else:
        run("conflicts", "keep-mine", mount.path / "step/shard0")
        mount.wait()
        assert store.get("step/shard0") == b"ours"
        assert mount.status()["conflicts"] == 0
    assert store.get("latest") == b"step"


def test_bad_requests_are_refused(lost, make_mount):
    mount, _ = lost
    for words, code in ((["show"], 2), (["save-as", "1"], 2), (["keep-mine", "/"], 1), (["show", mount.path / "nothing"], 1)):
        done = run("conflicts", *words, check=False)
        assert done.returncode == code and done.stderr.strip(), (words, done.stdout, done.stderr)
    make_mount("other")
    done = run("conflicts", "show", "1", check=False)
    assert done.returncode == 1 and "several mounts" in done.stderr


def test_a_number_that_is_a_file_too_is_not_guessed_at(lost, store):
    mount, conflict = lost
    number = str(conflict["id"])
    (mount.path / number).write_bytes(b"a step")

    def drop(word):
        return subprocess.run([SLUICE, "conflicts", "keep-theirs", word], cwd=mount.path, check=False, capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)

    done = drop(number)
    assert done.returncode != 0 and f"'#{number}'" in done.stderr, done.stderr
    assert mount.status()["conflicts"] == 1
    done = drop("#" + number)
    assert done.returncode == 0, done.stderr
    mount.wait()
    assert mount.status()["conflicts"] == 0 and (mount.path / number).read_bytes() == store.get(number) == b"a step"


def test_who_waits_for_two_paths_waits_for_the_second_whatever_the_first_says(make_mount, store):
    m = make_mount(fault="op=put,key=e/slow,action=delay:3s")
    store.put("d/f", b"base")
    assert shows(m, "d/f") == b"base"
    lose(m, "d/f", lambda: store.put("d/f", b"theirs"))
    (m.path / "e").mkdir()
    (m.path / "e/slow").write_bytes(b"1")
    done = run("wait", "--timeout", "60s", m.path / "d", m.path / "e", check=False, timeout=90)
    assert done.returncode == 1, done.stderr
    assert store.get("e/slow") == b"1"


def test_what_lost_is_not_saved_where_nothing_may_be_written(lost, base):
    mount, _ = lost
    (base / "other").mkdir()
    run("link", "add", "--read-only", f"file://{base}/other", mount.path / "linked")
    done = run("conflicts", "save-as", mount.path / "d/f", mount.path / "linked/f", check=False)
    assert done.returncode == 1 and "read-only" in done.stderr, done.stderr
    assert conflicts(mount) and not (base / "other/f").exists()
    run("conflicts", "save-as", mount.path / "d/f", mount.path / "d/f.ours")
    mount.wait()
