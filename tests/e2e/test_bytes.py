"""Bytes in are bytes out: through the mount, in the store, after a restart, into and out of other programs."""
import concurrent.futures
import errno
import hashlib
import mmap
import os
import random
import struct
import threading
import time
import json as jsonlib

import pytest
import mounts
from mounts import MIB, NIGHT, QUICK, eventually, in_thread, sh


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 20 * MIB + 7])
def test_file_of_every_size_is_published_as_written(mount, store, size):
    data = noise(size, size)
    (mount.path / "f").write_bytes(data)
    mount.wait()
    assert store.get("f") == data
    assert (mount.path / "f").read_bytes() == data
    mount.remount()
    assert (mount.path / "f").read_bytes() == data


def test_objects_of_other_tools_are_read_whole_and_in_parts(mount, store):
    data = noise(12 * MIB + 5)
    store.put("d/e/big", data)
    with open(mount.path / "d/e/big", "rb") as f:
        assert os.fstat(f.fileno()).st_size == len(data)
        rng = random.Random(2)
        for _ in range(50):
            off, n = rng.randrange(len(data)), rng.randrange(1, 300000)
            assert os.pread(f.fileno(), n, off) == data[off:off + n]
    assert (mount.path / "d/e/big").read_bytes() == data


def content_or_stale(path):
    """None: another object stands there than its reader opened."""
    try:
        return path.read_bytes()
    except OSError as e:
        assert e.errno == errno.ESTALE
        return None


@pytest.mark.parametrize("size", [100, 12 * MIB])
def test_what_replaced_an_object_is_read_by_who_opens_it_again(make_mount, store, size):
    m = make_mount(metadata_ttl="1h")
    new = noise(size, 2)
    store.put("d/f", noise(size, 1))
    store.put("d/gone", noise(size, 1))
    assert sorted(os.listdir(m.path / "d")) == ["f", "gone"]
    assert (m.path / "d/f").stat().st_size == (m.path / "d/gone").stat().st_size == size
    store.put("d/f", new)
    store.delete("d/gone")
    assert eventually(lambda: content_or_stale(m.path / "d/f") == new)
    with pytest.raises(OSError):
        (m.path / "d/gone").read_bytes()
    assert eventually(lambda: not (m.path / "d/gone").exists())
    assert os.listdir(m.path / "d") == ["f"]


def test_edit_in_the_middle_of_a_cold_object(mount, store):
    data = bytearray(noise(20 * MIB))
    store.put("big", bytes(data))
    with open(mount.path / "big", "r+b") as f:
        f.seek(9 * MIB + 3)
        f.write(b"changed here")
    data[9 * MIB + 3:9 * MIB + 3 + 12] = b"changed here"
    mount.wait()
    assert store.get("big") == bytes(data)
    assert (mount.path / "big").read_bytes() == bytes(data)


@pytest.mark.parametrize("state", ["just published", "after a restart", "cold"])
def test_edit_sends_what_changed_and_copies_the_rest(make_mount, store, state):
    size = (1024 if NIGHT else 128 if QUICK else 256) * MIB
    m = make_mount()
    block = noise(4 * MIB + 17)
    with open(m.path / "big", "wb") as f:
        for off in range(0, size, len(block)):
            f.write(block[:size - off])
    m.wait()
    if state != "just published":
        m.remount()
    if state == "cold":
        assert eventually(lambda: mounts.run("evict", m.path / "big", check=False).returncode == 0)
    before = m.status()
    with open(m.path / "big", "r+b") as f:
        f.seek(size // 2 + 5)
        f.write(block[:MIB])
    m.wait()
    after = m.status()
    assert after["uploaded_bytes"] - before["uploaded_bytes"] <= 2 * 8 * MIB
    assert after["downloaded_bytes"] - before["downloaded_bytes"] <= 2 * 8 * MIB
    want = (block * (size // len(block) + 1))[:size]
    want = hashlib.md5(want[:size // 2 + 5] + block[:MIB] + want[size // 2 + 5 + MIB:]).digest()
    with open(m.path / "big", "rb") as f:
        assert hashlib.file_digest(f, "md5").digest() == want
    assert hashlib.md5(store.get("big")).digest() == want


def test_append_and_truncate_of_a_cold_object(mount, store):
    store.put("a", b"0123456789" * 1000)
    store.put("t", b"0123456789" * 1000)
    with open(mount.path / "a", "ab") as f:
        f.write(b"tail")
    os.truncate(mount.path / "t", 15)
    mount.wait()
    assert store.get("a") == b"0123456789" * 1000 + b"tail"
    assert store.get("t") == b"012345678901234"


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_who_opens_for_reading_can_empty_a_file(make_mount, store, passthrough):
    store.put("cold", noise(100000))
    store.put("warm", noise(100000))
    m = make_mount(passthrough=passthrough)
    assert (m.path / "warm").read_bytes() == noise(100000)
    (m.path / "new").write_bytes(noise(100000))
    for name in ("cold", "warm", "new"):
        fd = os.open(m.path / name, os.O_RDONLY | os.O_TRUNC)
        assert os.fstat(fd).st_size == 0 and os.read(fd, 10) == b""
        os.close(fd)
        assert (m.path / name).read_bytes() == b""
        m.wait()
        assert store.get(name) == b""


def test_safetensors_like_file_is_mapped(mount, store):
    tensors = {f"layer{i}": noise(1 * MIB + i * 64, i) for i in range(8)}
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = jsonlib.dumps(header).encode()
    store.put("model.safetensors", struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    with open(mount.path / "model.safetensors", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        n = struct.unpack("<Q", m[:8])[0]
        index = jsonlib.loads(m[8:8 + n])
        for name in reversed(list(tensors)):
            a, b = index[name]["data_offsets"]
            assert m[8 + n + a:8 + n + b] == tensors[name]


def test_sparse_copies_of_a_half_cached_file_are_true(mount, store, base):
    data = noise(24 * MIB)
    store.put("big", data)
    with open(mount.path / "big", "rb") as f:
        assert os.pread(f.fileno(), 4096, 12 * MIB) == data[12 * MIB:12 * MIB + 4096]
    sh(f"cp --sparse=auto {mount.path}/big {base}/copy1 && cmp {mount.path}/big {base}/copy1")
    assert hashlib.md5((base / "copy1").read_bytes()).digest() == hashlib.md5(data).digest()


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_no_hole_is_told_where_a_map_has_written(make_mount, passthrough):
    m = make_mount(passthrough=passthrough)
    with open(m.path / "f", "wb") as f:
        f.truncate(MIB)
    m.wait()
    with open(m.path / "f", "r+b", buffering=0) as f, mmap.mmap(f.fileno(), MIB) as view:
        view[MIB // 2:MIB // 2 + 5] = b"bytes"
        with open(m.path / "f", "rb", buffering=0) as r:
            assert os.lseek(r.fileno(), 0, os.SEEK_DATA) <= MIB // 2
            assert os.lseek(r.fileno(), MIB // 2, os.SEEK_HOLE) >= MIB // 2 + 5


def test_tar_with_holes_of_a_half_cached_file_is_true(mount, store, base):
    data = noise(24 * MIB)
    store.put("big", data)
    with open(mount.path / "big", "rb") as f:
        assert os.pread(f.fileno(), 4096, 12 * MIB) == data[12 * MIB:12 * MIB + 4096]
    sh(f"tar -C {mount.path} -S -cf {base}/t.tar big && mkdir {base}/out && tar -C {base}/out -xf {base}/t.tar")
    assert (base / "out/big").read_bytes() == data


def test_redirection_duplicates_and_inheritance(mount, store):
    p = mount.path
    sh(f"echo one > {p}/f; echo two >> {p}/f; (echo three; echo four) >> {p}/f; exec 5>{p}/g; echo a >&5; (echo b >&5); "
       f"exec 6>&5 5>&-; echo c >&6")
    mount.wait()
    assert store.get("f") == b"one\ntwo\nthree\nfour\n"
    assert store.get("g") == b"a\nb\nc\n"


def test_deep_names_and_odd_keys_round_trip(mount, store):
    names = ["a b", "per%20cent", "a+b&c", "#?*", "ü", "日本語", "quote\"s'", "back\\slash", "-rf", "x" * 200]
    for i, name in enumerate(names):
        (mount.path / f"d{i}").mkdir()
        (mount.path / f"d{i}" / name).write_bytes(name.encode())
    mount.wait()
    assert store.list() == {f"d{i}/{n}": len(n.encode()) for i, n in enumerate(names)}
    for i, name in enumerate(names):
        store.put(f"up{i}/{name}", b"from elsewhere " + name.encode())
    assert eventually(lambda: (mount.path / f"up{len(names) - 1}").exists(), 10)
    for i, name in enumerate(names):
        assert (mount.path / f"up{i}" / name).read_bytes() == b"from elsewhere " + name.encode()


@pytest.mark.ceph
def test_keys_that_are_no_names_harm_nobody(mount, store):
    for key in ["ok", "a//b", "/leading", "dir/../up", "dir/./dot", "x" * 300, "clash", "clash/below"]:
        store.put(key, b"data of " + key.encode())
    names = set(os.listdir(mount.path))
    assert "ok" in names
    assert (mount.path / "ok").read_bytes() == b"data of ok"
    assert not [n for n in names if "/" in n or n in (".", "..", "")]
    assert mount.status()["hidden_keys"] >= 1
    mount.wait()
    assert store.get("a//b") == b"data of a//b"


def test_opening_while_it_is_published(mount):
    def churn(worker):
        for i in range(150):
            path = mount.path / f"w{worker}-{i % 5}"
            path.write_bytes(b"%d-%d" % (worker, i))
            for _ in range(4):
                assert path.read_bytes() == b"%d-%d" % (worker, i)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(churn, w) for w in range(8)]:
            done.result(timeout=100)
    mount.wait()


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_log_that_is_emptied_while_it_is_written(make_mount, store, passthrough):
    """As `: > log` beside its writer: whoever comes last, the size is that of what is there, and it is published."""
    store.put("log", b"x" * 100000)
    m = make_mount(passthrough=passthrough)
    fd = os.open(m.path / "log", os.O_RDWR | os.O_APPEND)
    line, wrong = b"a line of the log\n" * 50, []
    try:
        for i in range(100):
            join = in_thread(lambda: [os.write(fd, line) for _ in range(3)])
            os.close(os.open(m.path / "log", os.O_WRONLY | os.O_TRUNC))
            join()
            here = max((m.cache / "data").glob("*/*"), key=lambda path: path.stat().st_mtime_ns).stat().st_size
            size = m.info("log")["size"]
            if here != size:
                wrong.append((i, here, size))
    finally:
        os.close(fd)
    m.wait()
    assert m.status()["quarantined"] == 0, m.log()[-2000:]
    assert store.get("log") == (m.path / "log").read_bytes()
    assert not wrong
