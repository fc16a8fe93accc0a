"""What a program does to a file that the kernel writes by itself has the same outcome as when every write goes through the daemon."""
import os
import subprocess
import sys
import time

import pytest
from mounts import MIB, eventually, run, sh
from test_passthrough import Mapping, blob


@pytest.fixture(params=["on", "off"])
def both(make_mount, request):
    return lambda **kw: make_mount(passthrough=request.param, **kw)


def used(m):
    return int(sh(f"du -s --block-size=1 {m.cache}/data").stdout.split()[0])


def test_space_of_an_unlinked_file_comes_back(both):
    m = both()
    before = used(m)
    with open(m.path / "t", "wb", buffering=0) as f:
        f.write(blob(1, 16 * MIB))
        os.unlink(m.path / "t")
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_space_of_a_replaced_open_file_comes_back(both):
    m = both()
    before = used(m)
    with open(m.path / "t", "wb", buffering=0) as f:
        f.write(blob(1, 16 * MIB))
        (m.path / "u").write_bytes(b"small")
        os.rename(m.path / "u", m.path / "t")
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_space_of_a_tmpfile_comes_back(both):
    m = both()
    before = used(m)
    fd = os.open(m.path, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, blob(1, 16 * MIB))
    os.close(fd)
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_close_remote_twice(both, store):
    m = both(close="remote")
    f = open(m.path / "f", "wb", buffering=0)
    for i in range(4):
        data = blob(i, MIB)
        f.seek(0)
        f.write(data)
        os.close(os.dup(f.fileno()))
        assert store.get("f") == data, i
    f.close()


def test_fsync_remote_after_stat(both, store):
    m = both(fsync="remote")
    f = open(m.path / "f", "wb", buffering=0)
    for i in range(4):
        data = blob(i, MIB)
        f.seek(0)
        f.write(data)
        os.fstat(f.fileno())
        os.stat(m.path / "f")
        os.fsync(f.fileno())
        assert store.get("f") == data, i
    f.close()


def test_close_remote_beside_an_heir_that_closes_another_handle(both, store):
    m = both(close="remote")
    code = """import subprocess, sys
f = open(sys.argv[1], "r+b", buffering=0)
sys.stdin.readline()
subprocess.run(["true"], pass_fds=[f.fileno()], stdin=subprocess.DEVNULL)
print("ran", flush=True)
sys.stdin.readline()
"""
    with open(m.path / "f", "wb", buffering=0) as f:
        other = subprocess.Popen([sys.executable, "-c", code, m.path / "f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        f.write(b"x" * 1000)
        other.stdin.write("run\n")
        other.stdin.flush()
        assert other.stdout.readline() == "ran\n"
    got = store.head("f")
    other.communicate("end\n", timeout=20)
    assert got and got["size"] == 1000
