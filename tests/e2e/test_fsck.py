"""`sluice fsck` over folders with real damage, against the bucket: what it says, what it repairs, what the next mount does."""
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.request

import pytest
from mounts import MIB, POINTS, SLUICE, eventually, run

NO_WRITES = "op=put,action=error:-EIO;op=create,action=error:-EIO;op=part,action=error:-EIO;op=complete,action=error:-EIO"
NO_COMPLETE = "op=complete,action=error:-EIO"


def fsck(m, *options, code, env=None):
    done = run("fsck", *options, m.cache, check=False, timeout=120, env=m.env if env is None else env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def data_files(m):
    """Data file -> path in the mount, of unpublished files."""
    found = {}
    for file in m.cache.glob("data/*/*"):
        if "user.sluice.intent" in os.listxattr(file):
            found[json.loads(os.getxattr(file, "user.sluice.intent"))["path"]] = file
    return found


def test_damage_is_explained_repaired_and_nothing_else_is_lost(make_mount, store):
    m = make_mount(fault=NO_WRITES, op_timeout="3s", order="none")
    data = {f"f{i}": os.urandom(100_000) for i in range(6)}
    for name, text in data.items():
        (m.path / name).write_bytes(text)
    m.umount()
    files = data_files(m)
    assert sorted(files) == sorted(data)
    os.truncate(files["f0"], 1000)
    files["f1"].unlink()
    os.removexattr(files["f2"], "user.sluice.intent")
    stray = files["f3"].parent / f"00000000000fff{files['f3'].parent.name}"
    stray.write_bytes(b"of nobody")
    said = fsck(m, code=1)
    for part in ("f0: unpublished, 100000 bytes when closed, now 1000", "f1: unpublished, but its bytes are gone",
                 "f2: the intent beside its data is missing", "belongs to nothing", "`sluice fsck --repair`"):
        assert part in said, said
    events = [json.loads(line) for line in fsck(m, "--json", code=1).splitlines()]
    findings = [e for e in events if e["event"] == "finding"]
    assert {e["path"] for e in findings if e["path"] in data} == {"f0", "f1", "f2"}
    assert events[-1]["event"] == "fsck" and events[-1]["left"] == len(findings)
    fsck(m, "--repair", code=0)
    fsck(m, code=0)
    assert (m.cache / "rescued" / stray.name).read_bytes() == b"of nobody"
    m.mount(fault=None)
    assert eventually(lambda: all(store.head(name) for name in ("f2", "f3", "f4", "f5")))
    for name in ("f2", "f3", "f4", "f5"):
        assert store.get(name) == data[name]
    assert store.head("f0") is None and store.head("f1") is None
    assert m.info("f0")["state"] == "quarantined" and m.status()["quarantined"] == 2


def repair_once(m, cache):
    """Of a copy of the folder: how long it takes."""
    subprocess.run(["cp", "-a", "--sparse=always", m.cache, cache], check=True, timeout=60)
    began = time.monotonic()
    run("fsck", "--repair", cache, check=False, timeout=120, env=m.env)
    return time.monotonic() - began


@pytest.mark.parametrize("database", ["here", "lost"])
def test_repair_is_killed_again_and_again(make_mount, store, base, database):
    m = make_mount(fault=NO_WRITES, op_timeout="3s", order="none")
    data = {f"{d}/f{i}": os.urandom(200_000 if i == 0 else 3000) for d in "abcd" for i in range(60)}
    for d in "abcd":
        (m.path / d).mkdir()
    for name, text in data.items():
        (m.path / name).write_bytes(text)
    m.umount()
    files = data_files(m)
    assert sorted(files) == sorted(data)
    strays = {}
    for i, (name, file) in enumerate(files.items()):
        if i % 3 == 0:
            stray = file.parent / f"000000000{i:05x}{file.parent.name}"
            stray.write_bytes(name.encode())
            strays[stray.name] = name.encode()
        elif database == "here":
            os.removexattr(file, "user.sluice.intent")
    if database == "lost":
        shutil.rmtree(m.cache / "meta")
    took, rng, killed = repair_once(m, base / "copy"), random.Random(1), 0
    for _ in range(15):
        repair = subprocess.Popen([SLUICE, "fsck", "--repair", m.cache], env=dict(os.environ, **m.env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, took))
        repair.kill()
        killed += repair.wait(60) == -9
    assert killed >= 3, f"{killed} of 15 met it at work"
    fsck(m, "--repair", code=0)
    fsck(m, code=0)
    for name, text in strays.items():
        assert (m.cache / "rescued" / name).read_bytes() == text
    m.mount(fault=None)
    m.wait(timeout=120)
    for name, text in data.items():
        assert store.get(name) == text and (m.path / name).read_bytes() == text
    assert m.status()["quarantined"] == 0


def test_what_was_changed_elsewhere_is_said_and_no_finding(make_mount, store):
    m = make_mount()
    (m.path / "d").mkdir()
    for name in ("gone", "changed", "same"):
        (m.path / "d" / name).write_bytes(b"ours " * 1000)
    m.wait()
    m.umount()
    assert "elsewhere" not in fsck(m, code=0)
    store.delete("d/gone")
    store.put("d/changed", b"theirs")
    said = fsck(m, code=0)
    assert "d/gone: was published, but its object was removed elsewhere; a copy is still in" in said
    assert "d/changed: was published, but its object was changed elsewhere" in said
    assert "d/same" not in said
    fsck(m, "--offline", code=0)


def test_bucket_that_cannot_be_asked_is_another_exit_code(make_mount, store):
    m = make_mount()
    (m.path / "f").write_bytes(b"1")
    m.wait()
    m.umount()
    if store.kind == "file":
        store.root.rename(store.root.with_suffix(".away"))
        said = fsck(m, code=3)
        store.root.with_suffix(".away").rename(store.root)
    else:
        said = fsck(m, code=3, env={"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"})
    assert "bucket: not asked: " in said and "clean, but the bucket was not asked" in said
    fsck(m, code=0)


def test_upload_that_others_aborted_is_forgotten_and_sent_again(make_mount, store):
    if store.kind != "ceph":
        pytest.skip("uploads of a directory are nobody else's to abort")
    m = make_mount(fault=NO_COMPLETE, op_timeout="3s")
    data = os.urandom(40 * MIB)
    (m.path / "big").write_bytes(data)
    assert eventually(lambda: store.uploads(empty=False) == ["big"])
    m.umount()
    for upload in store.client.list_multipart_uploads(Bucket=store.bucket)["Uploads"]:  # the daemon's probe may have left one as well
        with contextlib.suppress(store.client.exceptions.NoSuchUpload):
            store.client.abort_multipart_upload(Bucket=store.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    assert "big: the bucket does not know its upload" in fsck(m, code=1)
    fsck(m, "--repair", code=0)
    fsck(m, code=0)
    m.mount(fault=None)
    m.wait()
    whole = store.get("big") == data
    assert whole
    assert eventually(lambda: store.uploads(empty=False) == [])


@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_byte_that_the_disk_changes_while_a_file_waits_is_never_published(make_mount, store, size):
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    m = make_mount(start=False, hold="*.tmp", http=http)
    m.program, m.env["SLUICE_CLOCK_SCALE"] = POINTS, "20"
    m.mount()
    data = os.urandom(size)
    (m.path / "x.tmp").write_bytes(data)
    assert eventually(lambda: "\nsluice_sealed_sums_total 1\n" in urllib.request.urlopen(f"http://{http}/metrics", timeout=10).read().decode())
    m.umount()
    file = data_files(m)["x.tmp"]
    with open(file, "r+b") as f:
        f.seek(size // 2)
        byte = f.read(1)[0]
        f.seek(size // 2)
        f.write(bytes([byte ^ 1]))
    assert "x.tmp: unpublished, and the disk changed it after it was closed" in fsck(m, code=1)
    m.mount()
    os.rename(m.path / "x.tmp", m.path / "x")
    assert eventually(lambda: m.info("x")["state"] == "quarantined")
    assert store.head("x") is None and store.head("x.tmp") is None
