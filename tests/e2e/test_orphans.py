"""Programs that end while they have files open: the kernel closes those, and --orphan says what that means."""
import os
import signal
import subprocess
import sys
import time

import pytest
from mounts import MIB, eventually, run

WRITER = """
import os, sys, threading, time
for _ in range(3):  # the end of one thread ends the others by a signal, of which the program knows nothing
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
f = open(sys.argv[1], sys.argv[3], buffering=0)
f.write(b"half" * int(sys.argv[2]))
print("written", flush=True)
if sys.stdin.readline() == "end\\n":
    sys.exit(3)
"""


def writer(path, n=1, mode="wb"):
    """A program that wrote 4 bytes n times, and has the file open."""
    p = subprocess.Popen([sys.executable, "-c", WRITER, path, str(n), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "written\n"
    return p


def end(p, how):
    if how == "exit":
        p.stdin.write("end\n")
        p.stdin.flush()
        assert p.wait(20) == 3
    else:
        p.send_signal(how)
        assert p.wait(20) == -how


def is_held(m, name):
    """Not published, and who waits for it is told."""
    done = run("wait", "--timeout", "20s", m.path, check=False)
    return done.returncode == 1 and name in done.stderr


@pytest.mark.parametrize("passthrough", ["on", "off"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_what_a_killed_program_had_open_is_held_until_the_next_close(make_mount, store, how, passthrough):
    m = make_mount(orphan="hold", passthrough=passthrough)
    end(writer(m.path / "half"), how)
    (m.path / "other").write_bytes(b"closed")
    assert eventually(lambda: "other" in store.list())
    assert is_held(m, "half") and "half" not in store.list()
    assert (m.path / "half").read_bytes() == b"half"
    assert eventually(lambda: "a signal ended the program that wrote a file" in m.log())
    m.kill_worker()
    assert is_held(m, "half") and (m.path / "half").read_bytes() == b"half"
    m.remount()
    assert is_held(m, "half") and (m.path / "half").read_bytes() == b"half"
    with open(m.path / "half", "ab") as f:
        f.write(b" and whole")
    m.wait()
    assert store.get("half") == b"half and whole"


@pytest.mark.parametrize("orphan,how", [("hold", "exit"), ("publish", signal.SIGKILL), ("publish", "exit")])
def test_what_ends_otherwise_is_published_as_written(make_mount, store, orphan, how):
    m = make_mount(orphan=orphan)
    end(writer(m.path / "half"), how)
    m.wait()
    assert store.get("half") == b"half"


def test_what_was_closed_before_is_not_changed_in_the_store_by_who_is_killed(make_mount, store):
    m = make_mount(orphan="hold")
    (m.path / "half").write_bytes(b"whole, ")
    m.wait()
    p = writer(m.path / "half", mode="ab")
    end(p, signal.SIGKILL)
    assert is_held(m, "half") and store.get("half") == b"whole, "
    assert (m.path / "half").read_bytes() == b"whole, half"
    os.close(os.open(m.path / "half", os.O_WRONLY))
    m.wait()
    assert store.get("half") == b"whole, half"


def test_another_program_that_closes_the_file_decides(make_mount, store):
    m = make_mount(orphan="hold")
    first, second = writer(m.path / "half"), writer(m.path / "half", mode="ab")
    end(first, signal.SIGKILL)
    end(second, "exit")
    m.wait()
    assert store.get("half") == b"halfhalf"


def test_removed_before_its_next_close_leaves_nothing(make_mount, store):
    m = make_mount(orphan="hold", part_size="5M")
    end(writer(m.path / "half", 4 * MIB), signal.SIGKILL)
    time.sleep(1)
    assert is_held(m, "half")
    (m.path / "half").unlink()
    m.wait()
    assert store.list() == {} and eventually(lambda: store.uploads() == [], 20)
    assert eventually(lambda: m.status()["dirty_bytes"] == 0)


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_closed_by_another_program_before_is_published(make_mount, store, passthrough):
    m = make_mount(orphan="hold", passthrough=passthrough)
    first, second = writer(m.path / "half"), writer(m.path / "half", mode="ab")
    end(second, "exit")
    end(first, signal.SIGKILL)
    m.wait()
    assert store.get("half") == b"halfhalf"
