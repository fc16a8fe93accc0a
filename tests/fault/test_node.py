"""What goes wrong on this node: descriptors and threads that run out, programs that are killed."""
import contextlib
import errno
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
import urllib.request

import pytest
from conftest import BIG, blob, cold
from mounts import MIB, ROOT, eventually, in_thread
import proxy as p

pytestmark = pytest.mark.ceph
BOOTS = pathlib.Path(os.environ.get("SLUICE_POWER_RECORD", ROOT / "build/tests/crash/libpower_record.so"))  # gives the daemon POWER_BOOT_ID


def data_file_of(lake, data):
    found = [path for path in pathlib.Path(lake.m.cache).glob("data/??/*") if path.is_file() and path.read_bytes() == data]
    assert len(found) == 1
    return found[0]


HARMS = [(harm, size) for harm in ("deleted", "truncated", "emptied", "flipped") for size in (1000, 5 * MIB)] + [
    ("deleted", 0), ("truncated", BIG), ("flipped", BIG)]


@pytest.mark.parametrize("harm,size", HARMS)
def test_unpublished_file_of_the_cache_is_harmed(ready_lake, harm, size):
    """Behind our back while nobody serves. It is named, and never published; the object of before stays."""
    with p.listen("127.0.0.1") as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    lake = ready_lake(http=http)
    lake.write("f", b"the good one before")
    lake.write("beside", b"or the whole disk would seem to be lost")
    lake.wait()
    lake.proxy.rule(("put", "create", "part"), p.error(403, "AccessDenied"), times=None)
    data = blob("f", size)
    (lake.path / "f").write_bytes(data)
    assert eventually(lambda: lake.m.info("f")["state"] == "retrying", 20)
    if harm == "flipped":
        assert eventually(lambda: b"\nsluice_sealed_sums_total 1\n" in urllib.request.urlopen(f"http://{http}/metrics", timeout=10).read(), 60)
    lake.m.kill9()
    victim = data_file_of(lake, data)
    if harm == "deleted":
        victim.unlink()
    elif harm == "flipped":
        victim.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    else:
        os.truncate(victim, size // 2 if harm == "truncated" else 0)
    lake.proxy.heal()
    lake.mount()
    assert eventually(lambda: lake.status("quarantined") == 1, 90), lake.m.status()  # 300 MiB are read for it
    assert lake.m.info("f")["state"] == "quarantined"
    assert lake.upstream("f") == [b"the good one before"]
    assert "'f'" in lake.m.log()
    os.unlink(lake.path / "f")
    lake.removed("f")


@pytest.mark.parametrize("size", [1000, 5 * MIB, BIG])
def test_clean_file_of_the_cache_is_harmed(make_lake, size):
    """While the machine was down: what was harmed is fetched again, and nothing else."""
    if not BOOTS.exists():
        pytest.skip(f"{BOOTS} is not built")
    lake = make_lake(start=False)
    lake.m.env.update(LD_PRELOAD=str(BOOTS), POWER_BOOT_ID="first")
    lake.mount()
    data = blob("there", size)
    cold(lake, "there", data)
    lake.check("there")
    lake.m.umount()
    with open(data_file_of(lake, data), "r+b") as f:
        for off in {0, size // 2, size - 1}:
            f.seek(off)
            f.write(bytes([data[off] ^ 1]))
    lake.m.env.update(POWER_BOOT_ID="second")
    lake.mount()
    before = lake.status("downloaded_bytes")
    lake.check("there")
    assert 0 < lake.status("downloaded_bytes") - before <= min(size, 32 * MIB)


def worker_files(lake):
    return len(os.listdir(f"/proc/{lake.status('pid')}/fd"))


def test_descriptors_run_out(lake):
    """Calls that need one fail with a clean error; those that do not, and what is open, go on; all works again when there are some."""
    for i in range(60):
        lake.put(f"there{i}", blob(i, 1000))
    assert eventually(lambda: "there59" in os.listdir(lake.path), 10)
    lake.check("there0")
    pid = lake.status("pid")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with open(lake.path / "open", "wb", buffering=0) as f:
        f.write(b"begun, ")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (worker_files(lake) + 5, hard))
        errors, opened = [], []
        for i in range(60):
            try:
                opened.append(open(lake.path / f"there{i}", "rb", buffering=0))
                assert opened[-1].read() == lake.files[f"there{i}"]
            except OSError as e:
                errors.append(e.errno)
        assert errors and set(errors) <= {errno.EMFILE, errno.ENFILE, errno.EIO, errno.ETIMEDOUT, errno.ENOMEM}, set(errors)
        assert len(os.listdir(lake.path)) >= 61
        f.write(b"ended")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for g in opened:
            g.close()
    lake.wrote("open", b"begun, ended")
    lake.write("after", b"works again")


CGROUPS = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroup(controller):
    """A group of its own."""
    top = CGROUPS / controller
    if not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip(f"no {controller} controller of cgroup v1 here")
    group = top / f"sluice-test-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (top / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.fixture
def pids_limit():
    """limit(pid, n): no more threads than n for that process; limit(pid, None) takes it away. How many it was refused until then."""
    with cgroup("pids") as group:
        def limit(pid, n):
            (group / "cgroup.procs").write_text(str(pid))
            (group / "pids.max").write_text("max" if n is None else str(n))
            return int((group / "pids.events").read_text().split()[1])
        yield limit


def test_threads_run_out(lake, pids_limit):
    """No new thread can be made: what needs one waits for another or fails cleanly; nothing hangs for good and nobody dies."""
    for i in range(20):
        lake.put(f"there{i}", blob(i, 1000))
    assert eventually(lambda: "there19" in os.listdir(lake.path), 10)
    pid = lake.status("pid")
    pids_limit(pid, len(os.listdir(f"/proc/{pid}/task")))
    joins = [in_thread(lambda i=i: lake.read(f"there{i}")) for i in range(20)]
    for i, join in enumerate(joins):
        try:
            assert join(60) == lake.files[f"there{i}"]
        except OSError as e:
            assert e.errno in (errno.EAGAIN, errno.ENOMEM, errno.EIO), e
    lake.write("f", blob("f", 5 * MIB))
    assert pids_limit(pid, None) > 0, "there were threads enough"


@pytest.fixture
def no_more_memory():
    """no_more_memory(pid): a process can have a few pages more. A function comes back: how many the kernel killed for it."""
    with cgroup("memory") as group:
        def limit(pid):
            (group / "memory.limit_in_bytes").write_text(str(MIB))
            (group / "cgroup.procs").write_text(str(pid))
            return lambda: int(re.search(r"^oom_kill (\d+)$", (group / "memory.oom_control").read_text(), re.M)[1])
        yield limit


def test_worker_is_killed_for_its_memory(lake, no_more_memory):
    """In the midst of reads and writes, none of which fails."""
    for i in range(200):
        lake.put(f"there{i}", blob(i, 30000))
    assert eventually(lambda: "there199" in os.listdir(lake.path), 10)
    killed = no_more_memory(lake.worker)
    for i in range(200):
        lake.write(f"f{i}", blob(f"f{i}", 5 * MIB if i == 10 else 30000))
        assert lake.read(f"there{i}") == lake.files[f"there{i}"]
        if killed():
            break
    assert killed() == 1
    assert eventually(lambda: lake.status("pid") != lake.worker, 20)
    lake.worker = lake.status("pid")


WRITER = """
import os, sys, time
f = open(sys.argv[1], "wb", buffering=0)
size = int(sys.argv[2])
data = memoryview((b"as far as it came" * (size // 17 + 1))[:size])
while data:
    data = data[f.write(data):]
print("written", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("size", [0, 17, 5 * MIB, BIG])
def test_program_is_killed_with_a_file_open(lake, size):
    """The kernel closes it: it is sealed and published as written."""
    data = (b"as far as it came" * (size // 17 + 1))[:size]
    program = subprocess.Popen(["/usr/bin/python3", "-c", WRITER, lake.path / "f", str(size)], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "written\n"
    assert "f" not in lake.store.list()
    program.send_signal(signal.SIGKILL)
    program.wait(10)
    lake.wrote("f", data)
    lake.wait()


def test_program_is_killed_with_a_file_of_a_held_name_open(lake):
    """The safe pattern: what did not come to its rename is not published under the final name."""
    program = subprocess.Popen(["/usr/bin/python3", "-c", WRITER, lake.path / "f.tmp", "17"], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "written\n"
    program.send_signal(signal.SIGKILL)
    program.wait(10)
    time.sleep(1)
    assert not any(name.startswith("f") for name in lake.store.list())
    assert (lake.path / "f.tmp").read_bytes() == b"as far as it came"
    os.unlink(lake.path / "f.tmp")


def test_program_is_ended_while_it_reads(make_lake):
    """SIGINT and SIGKILL of a program that waits for the store: it ends, at the latest with the operation timeout, and nothing of it is left."""
    lake = make_lake(op_timeout="5s")
    lake.put("there", blob("there", MIB))
    assert eventually(lambda: "there" in os.listdir(lake.path), 10)
    n = worker_files(lake)
    lake.proxy.rule("get", p.silence, key="there", times=None)
    for sig in (signal.SIGINT, signal.SIGKILL):
        asked = lake.proxy.count("get", "there")
        program = subprocess.Popen(["cat", lake.path / "there"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert eventually(lambda: lake.proxy.count("get", "there") > asked, 10)
        time.sleep(0.2)
        program.send_signal(sig)
        assert program.wait(2) == -sig
    lake.proxy.heal()
    lake.check("there")
    assert eventually(lambda: worker_files(lake) <= n + 4, 20)
