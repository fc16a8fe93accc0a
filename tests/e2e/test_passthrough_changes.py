"""What a program does to a file that the kernel writes by itself has the same outcome as when every write goes through the daemon."""
import os
import subprocess
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
