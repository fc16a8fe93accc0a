"""Bucket links: other buckets at directories of a mount, added, changed and removed while it is mounted."""
import errno
import json
import os
import pathlib
import shutil
import signal
import threading
import time

import pytest
import stores
from mounts import eventually, run


@pytest.fixture
def other(base, store):
    """Makes further stores of the same kind."""
    made = []

    def make(name):
        made.append(type(store)(base / name))
        return made[-1]

    yield make
    for s in made:
        s.remove()


def add(m, store, path, *options, check=True):
    endpoint = ["--endpoint-url", store.endpoint] if store.endpoint else []
    return run("link", "add", *endpoint, *options, store.source, m.path / path, check=check)


def links(m):
    rows = [json.loads(line) for line in run("link", "list", "--json", m.path).stdout.splitlines()]
    return {row["path"]: row for row in rows}


def refused(code, what, *args):
    done = run(*args, check=False)
    assert done.returncode == code and what in done.stderr, (done.returncode, done.stderr)


def fails(number, work):
    with pytest.raises(OSError) as e:
        work()
    assert e.value.errno == number


def test_a_command_ends_when_programs_see_what_it_did(make_mount, other):
    """Though they were told to trust what they knew for an hour. The kernel is told by a process of its own, which may be late; one that does not come at all holds up nobody for long."""
    mount, one = make_mount(metadata_ttl="1h", negative_ttl="1h"), other("one")
    mount.store.put("own", b"1")
    one.put("f", b"1")
    assert (mount.path / "own").exists() and not (mount.path / "sub").exists()
    mount.tells_late(lambda: add(mount, one, "sub"), lambda: (mount.path / "sub/f").exists())
    mount.store.delete("own")
    mount.tells_late(lambda: run("sync", mount.path), lambda: not (mount.path / "own").exists())
    mount.tells_late(lambda: run("link", "rm", mount.path / "sub"), lambda: not (mount.path / "sub").exists())
    notifier = mount.notifier()
    os.kill(notifier, signal.SIGSTOP)
    try:
        add(mount, one, "sub")
        assert "sub" in links(mount)
    finally:
        os.kill(notifier, signal.SIGCONT)
    assert eventually(lambda: (mount.path / "sub/f").exists())


def test_links_show_and_take_objects_of_other_buckets(mount, other):
    one, two = other("one"), other("two")
    one.put("d/x", b"of one")
    two.put("y", b"of two")
    assert "no links" in run("link", "list", mount.path).stdout
    add(mount, one, "sub")
    add(mount, two, "deep/er", "--metadata-ttl", "1s")
    assert (mount.path / "sub/d/x").read_bytes() == b"of one"
    assert os.listdir(mount.path / "deep/er") == ["y"]
    assert sorted(os.listdir(mount.path)) == ["deep", "sub"]
    (mount.path / "sub/new").write_bytes(b"n" * 300000)
    (mount.path / "deep/er/made").mkdir()
    (mount.path / "deep/er/made/z").write_bytes(b"z")
    (mount.path / "own").write_bytes(b"own")
    mount.wait()
    assert one.get("new") == b"n" * 300000 and two.get("made/z") == b"z" and mount.store.get("own") == b"own"
    assert set(mount.store.list()) == {"own"}
    two.put("made/late", b"late")
    assert eventually(lambda: "late" in os.listdir(mount.path / "deep/er/made"))
    rows = links(mount)
    assert set(rows) == {"sub", "deep/er"} and all(row["state"] == "ok" for row in rows.values())
    assert {row["path"] for row in mount.status()["links"]} == {"sub", "deep/er"}
    shown = json.loads(run("link", "show", "--json", mount.path / "deep/er").stdout)
    assert shown["options"]["metadata-ttl"] == "1s" and shown["source"] == two.source


def test_links_survive_a_restart_and_a_kill(mount, other):
    one = other("one")
    add(mount, one, "sub")
    (mount.path / "sub/a").write_bytes(b"a")
    mount.wait()
    mount.kill9()
    mount.mount()
    assert (mount.path / "sub/a").read_bytes() == b"a"
    with open(mount.path / "sub/open", "wb") as f:
        f.write(b"before")
        f.flush()
        assert mount.kill_worker()
        f.write(b" and after")
    (mount.path / "sub/b").write_bytes(b"b")
    mount.wait()
    assert one.get("b") == b"b" and one.get("open") == b"before and after" and not mount.store.list()
    one.put("late/er", b"1")
    run("link", "sync", mount.path / "sub")
    mount.umount()
    done = run("fsck", "--json", mount.cache, env=mount.env)
    assert "is gone" not in done.stdout, done.stdout
    shutil.rmtree(mount.cache / "meta")  # what is brought back goes where it belongs
    mount.mount()
    assert (mount.path / "sub/late/er").read_bytes() == b"1" and links(mount)["sub"]["state"] == "ok"


def test_a_sync_of_a_link_says_what_it_found(mount, other):
    one = other("one")
    add(mount, one, "sub")
    for i in range(3):
        one.put(f"d/{i}", b"1")
    done = run("link", "sync", mount.path / "sub")
    (line,) = done.stdout.splitlines()
    assert line.startswith("/sub: ") and "2 directories" in line, done.stdout
    assert len(run("link", "sync", "--json", mount.path / "sub").stdout.splitlines()) == 1


def test_links_of_a_file_are_there_before_their_buckets(make_mount, other, base):
    """Nothing is written to the mount's own bucket meanwhile; no line makes the mount wait."""
    listed = base / "links.conf"
    listed.write_text(f"file://{base}/late a\ns3://nobody/x b endpoint-url=http://127.0.0.1:1 no-sign-request\n")
    m = make_mount(links=listed)
    assert sorted(os.listdir(m.path)) == ["a", "b"] and links(m)["a"]["state"] == "degraded"
    fails(errno.EIO, lambda: (m.path / "a/x").write_bytes(b"x"))
    m.remount()
    fails(errno.EIO, lambda: (m.path / "a/x").write_bytes(b"x"))
    (base / "late").mkdir()
    assert eventually(lambda: links(m)["a"]["state"] == "ok")
    (m.path / "a/x").write_bytes(b"x")
    run("wait", "--timeout", "60s", m.path / "a", timeout=90)
    assert (base / "late/x").read_bytes() == b"x" and not m.store.list()
    m.umount()
    listed.unlink()
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode == 1 and "links.conf" in done.stderr and not m.is_mounted()


def test_nothing_moves_from_bucket_to_bucket_by_name(mount, other):
    add(mount, other("one"), "a")
    add(mount, other("two"), "b")
    (mount.path / "a/x").write_bytes(b"x" * 100)
    fails(errno.EXDEV, lambda: os.rename(mount.path / "a/x", mount.path / "b/x"))
    fails(errno.EXDEV, lambda: os.rename(mount.path / "a/x", mount.path / "x"))
    fails(errno.EXDEV, lambda: os.link(mount.path / "a/x", mount.path / "b/x"))
    shutil.move(mount.path / "a/x", mount.path / "b/x")  # copies, as between file systems
    assert (mount.path / "b/x").read_bytes() == b"x" * 100 and not (mount.path / "a/x").exists()
    fails(errno.EBUSY, lambda: os.rename(mount.path / "a", mount.path / "c"))
    fails(errno.EBUSY, lambda: os.rmdir(mount.path / "a"))


def test_bad_links_are_refused(mount, other, base):
    one, two = other("one"), other("two")
    (mount.path / "full").mkdir()
    (mount.path / "full/x").write_bytes(b"x")
    (mount.path / "file").write_bytes(b"x")
    (mount.path / "sub").mkdir()
    mount.wait()
    endpoint = ["--endpoint-url", one.endpoint] if one.endpoint else []
    refused(1, "not empty", "link", "add", *endpoint, one.source, mount.path / "full")
    refused(1, "there is a file", "link", "add", *endpoint, one.source, mount.path / "file")
    refused(1, "sync", "link", "add", *endpoint, "--sync", "sometimes", one.source, mount.path / "sub")
    refused(1, "conflict", "link", "add", *endpoint, "--conflict", "maybe", one.source, mount.path / "sub")
    refused(2, "no option", "link", "add", "--policy", "best", one.source, mount.path / "sub")
    refused(2, "none of add", "link", "make", mount.path / "sub")
    refused(2, "number of words", "link", "add", one.source)
    refused(1, "", "link", "add", *endpoint, one.source + "-missing", mount.path / "sub")
    refused(1, "s3://", "link", "add", "ftp://host/x", mount.path / "sub")
    assert eventually(lambda: add(mount, one, "sub", check=False).returncode == 0)
    refused(1, "link to", "link", "add", *endpoint, two.source, mount.path / "sub")
    refused(1, "in one another", "link", "add", *endpoint, two.source, mount.path / "sub/below")
    refused(1, "no link", "link", "rm", mount.path / "full")
    done = add(mount, one, "again")
    assert "warning" in done.stderr and "'sub'" in done.stderr
    assert (mount.path / "full/x").read_bytes() == b"x" and set(links(mount)) == {"sub", "again"}


def test_a_link_is_removed_when_all_is_in_its_bucket(mount, other):
    one = other("one")
    one.put("there", b"1")
    add(mount, one, "sub")
    (mount.path / "sub/slow.tmp").write_bytes(b"held back")
    refused(1, "--drain", "link", "rm", mount.path / "sub")
    done = run("link", "rm", "--drain=1s", mount.path / "sub", check=False)
    assert done.returncode == 3, done.stderr
    os.rename(mount.path / "sub/slow.tmp", mount.path / "sub/done")
    with open(mount.path / "sub/writing", "wb") as f:
        f.write(b"x")
        refused(1, "open for writing", "link", "rm", "--drain=60s", mount.path / "sub")
    reader = open(mount.path / "sub/done", "rb")
    run("link", "rm", "--drain=60s", mount.path / "sub", timeout=90)
    assert reader.read() == b"held back"
    reader.close()
    assert not (mount.path / "sub").exists() and links(mount) == {}
    assert set(one.list()) == {"there", "done", "writing"}
    add(mount, one, "sub", "--read-only")
    assert (mount.path / "sub/done").read_bytes() == b"held back"
    fails(errno.EROFS, lambda: (mount.path / "sub/x").write_bytes(b"x"))
    fails(errno.EROFS, lambda: (mount.path / "sub/x").mkdir())
    fails(errno.EROFS, lambda: os.unlink(mount.path / "sub/done"))
    fails(errno.EROFS, lambda: os.chmod(mount.path / "sub/done", 0o600))
    (mount.path / "x").write_bytes(b"x")
    run("link", "set", "--read-only=false", mount.path / "sub")
    (mount.path / "sub/x").write_bytes(b"x")


def test_names_that_were_trusted_for_long_are_asked_for_again(mount, other):
    """What the kernel knows of an immutable link it may keep for a year; who works in a directory of it stays there."""
    one, two = other("one"), other("two")
    for s in (one, two):
        s.put("d/f", b"old")
        s.put("d/gone", b"x")
    add(mount, one, "one", "--immutable")
    add(mount, two, "two", "--metadata-ttl", "1h")
    tops = [mount.path / "one", mount.path / "two"]
    for top in tops:
        assert sorted(os.listdir(top / "d")) == ["f", "gone"]
        assert os.stat(top / "d/f").st_size == 3 and os.stat(top / "d/gone").st_size == 1
    opened = [os.open(top / "d/f", os.O_RDONLY) for top in tops]
    dirs = [os.open(top / "d", os.O_RDONLY) for top in tops]
    for fd in opened:
        assert os.pread(fd, 10, 0) == b"old"  # without passthrough no bytes came with the open
    for s in (one, two):
        s.put("d/f", b"longer")
        s.delete("d/gone")
    run("link", "set", "--unset", "immutable", "--metadata-ttl", "1s", tops[0])
    run("link", "set", "--metadata-ttl", "1s", tops[1])
    for top, fd in zip(tops, dirs):
        assert eventually(lambda: os.stat(top / "d/f").st_size == 6)
        assert eventually(lambda: not (top / "d/gone").exists())
        assert os.readlink(f"/proc/self/fd/{fd}") == str(top / "d")
        assert os.stat("f", dir_fd=fd).st_size == 6
    for fd in opened:
        assert os.pread(fd, 10, 0) == b"old"
    for fd in opened + dirs:
        os.close(fd)


def test_what_globs_leave_out(mount, other):
    one = other("one")
    for key in ("a.bin", "a.txt", "tmp/b.bin", "d/c.bin"):
        one.put(key, b"1")
    add(mount, one, "sub", "--include", "*.bin", "--exclude", "tmp/**")
    assert sorted(os.listdir(mount.path / "sub")) == ["a.bin", "d"]
    assert not (mount.path / "sub/a.txt").exists()
    fails(errno.EACCES, lambda: (mount.path / "sub/new.txt").write_bytes(b"1"))
    run("link", "set", "--unset", "include,exclude", mount.path / "sub")
    assert eventually(lambda: sorted(os.listdir(mount.path / "sub")) == ["a.bin", "a.txt", "d", "tmp"])


def test_a_mount_of_links_only(make_mount, other, base):
    one, two = other("one"), other("two")
    one.put("x", b"one")
    words = f" endpoint-url={one.endpoint}" if one.endpoint else ""
    listed = base / "links.conf"
    listed.write_text(f"# what is there from the start\n{one.source} data/one read-only{words}\n")
    m = make_mount(start=False)
    args = [a for a in m.arguments({"endpoint_url": None}) if a != m.source]
    run(*args, "--links", listed, env=m.env)
    assert os.listdir(m.path) == ["data"]
    assert (m.path / "data/one/x").read_bytes() == b"one"
    fails(errno.EROFS, lambda: (m.path / "y").mkdir())
    fails(errno.EROFS, lambda: (m.path / "data/y").write_bytes(b"y"))
    fails(errno.EROFS, lambda: (m.path / "data/one/y").write_bytes(b"y"))
    add(m, two, "two")
    (m.path / "two/y").write_bytes(b"y")
    m.wait()
    assert two.get("y") == b"y"
    m.umount()
    run(*args, env=m.env)
    assert sorted(links(m)) == ["data/one", "two"] and (m.path / "two/y").read_bytes() == b"y"
    run("link", "rm", m.path / "data/one")
    assert sorted(os.listdir(m.path)) == ["two"]


def test_files_without_a_name_on_a_mount_of_links_only(make_mount, other):
    m, one = make_mount(start=False), other("one")
    run(*[a for a in m.arguments({"endpoint_url": None}) if a != m.source], env=m.env)
    add(m, one, "one")
    add(m, other("two"), "two")
    made = os.open(m.path / "one", os.O_TMPFILE | os.O_RDWR, 0o600)
    with open(made, "r+b") as nameless, open(m.path / "one/removed", "w+b") as removed:
        os.unlink(m.path / "one/removed")
        for f in nameless, removed:
            f.truncate(10)
            os.fchmod(f.fileno(), 0o640)
        m.kill_worker()
        for f in nameless, removed:
            f.truncate(20)
            os.fchmod(f.fileno(), 0o644)
        fails(errno.EXDEV, lambda: os.link(f"/proc/self/fd/{made}", m.path / "two/named", src_dir_fd=made))
        os.link(f"/proc/self/fd/{made}", m.path / "one/named", src_dir_fd=made)
    m.wait()
    assert one.get("named") == bytes(20)


@pytest.mark.directory  # which can be taken away and come back
def test_a_bucket_that_vanishes(mount, other):
    one, two = other("one"), other("two")
    one.put("x", b"one")
    one.put("y", b"not cached")
    add(mount, one, "a")
    add(mount, two, "b")
    assert (mount.path / "a/x").read_bytes() == b"one" and (mount.path / "a/y").stat().st_size == 10
    mount.umount()
    away = one.root.with_name("away")
    os.rename(one.root, away)
    mount.mount()
    assert links(mount)["a"]["state"] == "degraded" and links(mount)["b"]["state"] == "ok"
    assert links(mount)["a"]["error"]
    assert (mount.path / "a/x").read_bytes() == b"one"
    fails(errno.EIO, lambda: (mount.path / "a/y").read_bytes())
    assert "y" in os.listdir(mount.path / "a")
    (mount.path / "a/late").write_bytes(b"late")
    (mount.path / "b/z").write_bytes(b"z")
    mount.wait("b")
    assert two.get("z") == b"z"
    os.rename(away, one.root)
    mount.wait()
    assert one.get("late") == b"late" and (mount.path / "a/y").read_bytes() == b"not cached"
    assert links(mount)["a"]["state"] == "ok"


@pytest.mark.ceph
def test_a_bucket_of_a_link_that_is_deleted(make_mount, other):
    """While it is mounted: what is known stays known, nothing counts as removed, and what was written goes there once there is a bucket again."""
    mount = make_mount(metadata_ttl="1s", negative_ttl="1s")
    one, two = other("one"), other("two")
    one.put("x", b"one")
    one.put("d/y", b"not cached")
    add(mount, one, "a")
    add(mount, two, "b")
    assert (mount.path / "a/x").read_bytes() == b"one" and (mount.path / "a/d/y").stat().st_size == 10
    one.delete_bucket()
    time.sleep(1.5)  # what was listed is out of date
    assert sorted(os.listdir(mount.path / "a")) == ["d", "x"] and os.listdir(mount.path / "a/d") == ["y"]
    assert eventually(lambda: links(mount)["a"]["state"] == "degraded") and "bucket" in links(mount)["a"]["error"]
    assert links(mount)["b"]["state"] == "ok" and mount.status()["links"]
    assert (mount.path / "a/x").read_bytes() == b"one"
    fails(errno.EIO, lambda: (mount.path / "a/d/y").read_bytes())
    (mount.path / "a/late").write_bytes(b"late")
    (mount.path / "b/z").write_bytes(b"z")
    mount.wait("b")
    assert two.get("z") == b"z"
    synced = run("sync", mount.path / "a", check=False)
    assert synced.returncode == 1 and "bucket" in synced.stderr, synced.stderr
    one.client.create_bucket(Bucket=one.bucket)
    mount.wait("a")
    assert one.get("late") == b"late"
    assert eventually(lambda: links(mount)["a"]["state"] == "ok")
    assert eventually(lambda: os.listdir(mount.path / "a") == ["late"]), "objects that went with the bucket are shown"


@pytest.mark.ceph
def test_a_store_that_stops_answering(make_mount, other):
    """Hundreds of changed files of a link whose requests get no answer hold up nobody else's for longer than one request."""
    import socket
    mount = make_mount(op_timeout="10s")
    silent = threading.Event()
    one, two = other("one"), other("two")
    target = one.endpoint.split("//")[1].split(":")
    relay = socket.create_server(("127.0.0.1", 0))
    port, open_ = relay.getsockname()[1], []

    def pump(a, b):
        try:
            while data := a.recv(65536):
                if not silent.is_set():
                    b.sendall(data)
        except OSError:
            pass

    def serve():
        while True:
            try:
                client = relay.accept()[0]
            except OSError:
                return
            up = socket.create_connection((target[0], int(target[1])))
            open_.extend((client, up))
            for pair in ((client, up), (up, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    run("link", "add", "--endpoint-url", f"http://127.0.0.1:{port}", one.source, mount.path / "a")
    add(mount, two, "b")
    (mount.path / "a/first").write_bytes(b"1")
    mount.wait()
    silent.set()
    for i in range(300):
        (mount.path / f"a/{i}").write_bytes(b"a")
    (mount.path / "b/y").write_bytes(b"y")
    mount.wait("b")
    assert two.get("y") == b"y" and (mount.path / "a/first").read_bytes() == b"1"
    assert eventually(lambda: links(mount)["a"]["state"] == "degraded") and links(mount)["b"]["state"] == "ok"
    assert mount.status()["dirty_files"] == 300
    mount.kill9()
    relay.shutdown(socket.SHUT_RDWR)
    relay.close()
    for s in open_:
        s.close()


@pytest.mark.ceph
def test_buckets_of_two_owners(make_mount, base, other):
    """The second one by a profile, and while a link with wrong keys, or to nobody, does not work."""
    one = other("one")
    credentials = base / "credentials"
    credentials.write_text("[other]\naws_access_key_id = %s\naws_secret_access_key = %s\n"
                           "[wrong]\naws_access_key_id = AKWRONG\naws_secret_access_key = wrong\n"
                           % (os.environ["OTHER_ACCESS_KEY_ID"], os.environ["OTHER_SECRET_ACCESS_KEY"]))
    credentials.chmod(0o600)
    m = make_mount(start=False)
    m.env["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials)
    m.mount()
    import boto3
    from botocore.config import Config
    theirs = boto3.client("s3", endpoint_url=one.endpoint, config=Config(s3={"addressing_style": "path"}),
                          aws_access_key_id=os.environ["OTHER_ACCESS_KEY_ID"],
                          aws_secret_access_key=os.environ["OTHER_SECRET_ACCESS_KEY"])
    bucket = "theirs-" + one.bucket
    theirs.create_bucket(Bucket=bucket)
    theirs.put_object(Bucket=bucket, Key="p/x", Body=b"theirs")
    refused(1, "", "link", "add", "--endpoint-url", one.endpoint, f"s3://{bucket}", m.path / "b")
    refused(1, "", "link", "add", "--endpoint-url", one.endpoint, "--profile", "wrong", f"s3://{bucket}", m.path / "b")
    refused(1, "", "link", "add", "--endpoint-url", one.endpoint, "s3://not-there-" + bucket, m.path / "b")
    run("link", "add", "--endpoint-url", one.endpoint, "--profile", "other", f"s3://{bucket}/p", m.path / "b")
    add(m, one, "a")
    assert (m.path / "b/x").read_bytes() == b"theirs"
    (m.path / "a/big").write_bytes(os.urandom(20 << 20))
    (m.path / "b/new").write_bytes(b"new")
    m.wait()
    assert theirs.get_object(Bucket=bucket, Key="p/new")["Body"].read() == b"new"
    assert one.get("big") == (m.path / "a/big").read_bytes()
    secret = os.environ["OTHER_SECRET_ACCESS_KEY"]
    assert secret not in run("link", "show", "--json", m.path / "b").stdout and secret not in m.log()
    m.remount()
    assert (m.path / "b/new").read_bytes() == b"new"
    m.umount()
    credentials.write_text("[wrong]\naws_access_key_id = A\naws_secret_access_key = B\n")
    m.mount()
    assert links(m)["b"]["state"] == "degraded" and links(m)["a"]["state"] == "ok"
    assert (m.path / "b/new").read_bytes() == b"new"
    (m.path / "a/after").write_bytes(b"1")
    m.wait("a")
    assert one.get("after") == b"1"
    for key in ("p/x", "p/new"):
        theirs.delete_object(Bucket=bucket, Key=key)


def test_a_link_is_listed_as_its_sync_says(make_mount, other):
    """With names that count for an hour, what comes later is seen by a sync only; the next worker and the next mount go on with it."""
    m = make_mount(metadata_ttl="1h")
    one, two = other("one"), other("two")
    for s in (one, two):
        s.put("deep/x", b"1")
    add(m, one, "again", "--sync", "schedule=1s")
    add(m, two, "once", "--sync", "full")

    def synced():
        return [json.loads(line)["path"] for line in run("sync", "--status", "--json", m.path).stdout.splitlines()]

    assert eventually(lambda: "again" in synced() and "once" in synced())
    for late in ("kill", "mount"):
        assert "x" in os.listdir(m.path / "again/deep")
        one.put(f"deep/{late}", b"1")
        assert eventually(lambda: late in os.listdir(m.path / "again/deep"))
        assert m.kill_worker() if late == "kill" else not m.umount()
        if late == "mount":
            m.mount()
        one.put(f"deep/after-{late}", b"1")
        assert eventually(lambda: f"after-{late}" in os.listdir(m.path / "again/deep"))
    run("link", "set", "--sync", "lazy", m.path / "again")
    run("link", "rm", m.path / "again")
    assert "once" in synced()


def test_an_immutable_link_is_listed_once(make_mount, other):
    """What was looked at stays as it was, over a remount too, and asks neither the store nor, but for opens, the daemon again; until a sync of the link."""
    m, one = make_mount(), other("one")
    one.put("d/f", b"old")
    add(m, one, "still", "--immutable")
    top = m.path / "still/d"

    def look(dir_fd):
        for _ in range(20):
            assert os.stat("f", dir_fd=dir_fd).st_size == 3
        assert os.listdir(top) == ["f"] and not (top / "new").exists() and (top / "f").read_bytes() == b"old"

    dir_fd = os.open(top, os.O_RDONLY)
    look(dir_fd)
    one.put("d/f", b"longer")
    one.put("d/new", b"1")
    time.sleep(1.5)  # elsewhere names, and that there is none, count for a second
    before = m.status()
    look(dir_fd)
    after = m.status()
    os.close(dir_fd)
    for verb in ("get", "head", "list"):
        assert after["requests"][verb] == before["requests"][verb]
    assert after["fuse_requests"] - before["fuse_requests"] < 20, "stat asks the daemon"
    m.remount()
    top.stat()  # the mount's own bucket is listed for it
    before = m.status()["requests"]["list"]
    assert os.listdir(top) == ["f"] and m.status()["requests"]["list"] == before
    run("link", "sync", m.path / "still")
    assert sorted(os.listdir(top)) == ["f", "new"] and (top / "f").read_bytes() == b"longer"
