"""What goes wrong on this node: descriptors and threads that run out, programs that are killed."""
import errno
import os
import pathlib
import resource
import signal
import subprocess
import time
import urllib.request

import cgroups
import proxy as p
import pytest
from conftest import BIG, blob, cold
from mounts import MIB, ROOT, eventually, in_thread, run

pytestmark = pytest.mark.ceph
BOOTS = pathlib.Path(os.environ.get("SLUICE_POWER_RECORD", ROOT / "build/tests/crash/libpower_record.so"))  # gives the daemon POWER_BOOT_ID


def data_file_of(lake, data):
    found = [path for path in pathlib.Path(lake.m.cache).glob("data/??/*") if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data]
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


@pytest.fixture
def threads():
    """A group whose threads are counted together."""
    with cgroups.group("pids") as made:
        yield made


def test_threads_run_out(lake, threads):
    """No new thread can be made: what needs one waits for another or fails cleanly; nothing hangs for good and nobody dies."""
    for i in range(20):
        lake.put(f"there{i}", blob(i, 1000))
    assert eventually(lambda: "there19" in os.listdir(lake.path), 10)
    pid = lake.status("pid")
    threads.limit(len(os.listdir(f"/proc/{pid}/task")), [pid])
    joins = [in_thread(lambda i=i: lake.read(f"there{i}")) for i in range(20)]
    for i, join in enumerate(joins):
        try:
            assert join(60) == lake.files[f"there{i}"]
        except OSError as e:
            assert e.errno in (errno.EAGAIN, errno.ENOMEM, errno.EIO), e
    lake.write("f", blob("f", 5 * MIB))
    threads.limit(None)
    assert threads.count("max") > 0, "there were threads enough"


@pytest.fixture
def memory():
    """A group whose memory is counted together."""
    with cgroups.group("memory") as made:
        yield made


def another_worker(lake):
    assert eventually(lambda: lake.status("pid") != lake.worker, 20)
    lake.worker = lake.status("pid")


@pytest.mark.parametrize("size", [0, 30000, 5 * MIB])
def test_worker_is_killed_for_its_memory(lake, memory, size):
    """A few pages more are all that it gets. In the midst of reads and writes, none of which fails."""
    for i in range(200):
        lake.put(f"there{i}", blob(i, 30000))
    assert eventually(lambda: "there199" in os.listdir(lake.path), 10)
    memory.limit(MIB, [lake.worker])
    for i in range(200):
        lake.write(f"f{i}", blob(f"f{i}", size if size < MIB or i % 10 == 0 else 30000))
        assert lake.read(f"there{i}") == lake.files[f"there{i}"]
        if memory.killed():
            break
    assert memory.killed() == 1
    another_worker(lake)


def test_worker_is_killed_for_its_memory_in_a_large_file(lake, memory):
    """Once while 300 MiB are being sent, once while they are fetched: neither writer nor reader sees an error."""
    slow = lake.proxy.rule("part", p.late(0.2), key="big", times=None)
    writer = in_thread(lambda: lake.write("big", blob("big", BIG)))
    assert eventually(lambda: slow.n_used > 3, 30)
    memory.limit(MIB, [lake.worker])
    assert eventually(lambda: memory.killed() == 1, 60)
    another_worker(lake)
    writer(120)
    lake.wait()
    assert len(lake.upstream("big")) == 1
    run("evict", lake.path / "big")
    n = lake.proxy.count("get", "big")
    lake.proxy.rule("get", p.late(0.2), key="big", times=None)
    reader = in_thread(lambda: lake.read("big") == lake.files["big"])
    assert eventually(lambda: lake.proxy.count("get", "big") > n + 3, 30)
    memory.limit(MIB, [lake.worker])
    assert eventually(lambda: memory.killed() == 2, 60)
    another_worker(lake)
    assert reader(120)


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
