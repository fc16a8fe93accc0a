"""A worker that dies under a mount: another one takes over, and programs in the mount notice a pause at most."""
import contextlib
import errno
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
from mounts import MIB, SLUICE, as_nobody, eventually, in_thread, is_gone, run


def test_next_worker_serves_what_is_there(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount()
    supervisor = m.status()["supervisor_pid"]
    assert (m.path / "d/a").read_bytes() == b"1234"
    (m.path / "mine").write_bytes(b"x" * MIB)
    workers = {m.status()["pid"]}
    for i in range(3):
        workers.add(m.kill_worker())
        assert m.status()["supervisor_pid"] == supervisor
        assert (m.path / "d/a").read_bytes() == b"1234"
        assert (m.path / "mine").read_bytes() == b"x" * MIB
        assert sorted(os.listdir(m.path)) == sorted(["d", "mine"] + [f"new{n}" for n in range(i)])
        (m.path / f"new{i}").write_bytes(b"%d" % i)
    assert len(workers) == 4
    m.wait()
    assert store.get("mine") == b"x" * MIB and store.get("new2") == b"2"
    m.umount()
    assert is_gone(supervisor) and all(map(is_gone, workers))


def test_request_that_was_taken_is_answered_by_the_next(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    join = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    m.kill_worker()
    assert join() == 4


def test_requests_that_come_while_nobody_serves_are_answered(make_mount, store):
    store.put("a", b"1234")
    m = make_mount()
    status = m.status()
    os.kill(status["supervisor_pid"], signal.SIGSTOP)
    os.kill(status["pid"], signal.SIGKILL)
    joins = [in_thread(lambda: (m.path / "a").read_bytes()), in_thread(lambda: run("status", "--json", m.path).stdout),
             in_thread(lambda: os.listdir(m.path))]
    time.sleep(0.5)
    os.kill(status["supervisor_pid"], signal.SIGCONT)
    data, text, names = (join() for join in joins)
    assert data == b"1234" and names == ["a"]
    assert str(status["pid"]) not in text


def test_request_that_is_taken_at_the_moment_of_death_is_answered(make_mount):
    """Each worker's threads are new, and so is the memory that the kernel writes a request to."""
    m = make_mount(passthrough="off", settle="0s")
    data = bytes(range(256)) * 4096
    with open(m.path / "f", "wb", buffering=0) as f:
        for _ in range(15):
            os.kill(m.status()["pid"], signal.SIGKILL)
            assert f.write(data) == len(data)
    assert (m.path / "f").stat().st_size == 15 * len(data)


def test_worker_dies_while_the_kernel_is_told_of_a_change(make_mount, store):
    """The kernel makes who tells it wait for the directory, which an rmdir holds that waits for the worker."""
    store.put("d/a", b"1234")
    store.put("d/sub/b", b"1234")
    m = make_mount(fault="op=list,nth=4,action=delay:10s")  # the root, d, d again, d/sub
    fd = os.open(m.path / "d", os.O_RDONLY)
    assert sorted(os.listdir(fd)) == ["a", "sub"] and (m.path / "d/a").exists()
    store.delete("d/a")
    time.sleep(1.5)
    join = in_thread(lambda: os.rmdir("sub", dir_fd=fd))  # d is listed, which tells of a, then what is below sub
    time.sleep(1.5)
    m.kill_worker()
    with pytest.raises(OSError) as e:
        join()
    assert e.value.errno == errno.ENOTEMPTY
    assert eventually(lambda: not (m.path / "d/a").exists())
    os.close(fd)


def test_worker_without_a_supervisor_serves_to_its_end(make_mount, store):
    m = make_mount()
    supervisor, worker = m.pids()
    os.kill(supervisor, signal.SIGKILL)
    assert eventually(lambda: m.status()["supervisor_pid"] == 0)
    (m.path / "f").write_bytes(b"12")
    assert m.status()["pid"] == worker
    m.wait()
    assert store.get("f") == b"12"
    m.umount()
    assert eventually(lambda: is_gone(worker))
    m.mount()
    assert (m.path / "f").read_bytes() == b"12"


@pytest.mark.parametrize("who", [0, 1])
def test_sigterm_to_either_process_unmounts(make_mount, who):
    m = make_mount()
    pids = m.pids()
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_CREAT)  # a mount in use is taken away as well
    os.kill(pids[who], signal.SIGTERM)
    assert eventually(lambda: all(map(is_gone, pids)))
    assert not m.is_mounted()
    with pytest.raises(OSError) as e:
        os.fsync(fd)
    assert e.value.errno == errno.ENOTCONN
    with contextlib.suppress(OSError):
        os.close(fd)
    m.mount()


def test_unmounted_from_outside(make_mount):
    m = make_mount()
    pids = m.pids()
    subprocess.run(["umount", m.path], check=True, timeout=20)
    assert eventually(lambda: all(map(is_gone, pids)))
    m.mount()


def test_worker_that_dies_again_and_again_is_given_up(make_mount, store):
    m = make_mount()
    (m.path / "f").write_bytes(b"12")
    supervisor = m.status()["supervisor_pid"]
    for _ in range(5):
        m.kill_worker()
    os.kill(m.status()["pid"], signal.SIGKILL)
    assert eventually(lambda: is_gone(supervisor))
    with pytest.raises(OSError) as e:
        os.listdir(m.path)
    assert e.value.errno == errno.ENOTCONN
    said = run("status", m.path, check=False).stderr
    assert "is not running" in said and "signal 9" in said and "given up" in said
    cleared = run("umount", m.path)
    assert "given up" in cleared.stderr and not m.is_mounted()
    m.mount()
    assert (m.path / "f").read_bytes() == b"12"
    assert "given up" not in run("status", m.path).stderr


def test_worker_that_hangs_is_replaced(make_mount, store):
    store.put("a", b"1234")
    m = make_mount(watchdog="3s")
    (m.path / "a").read_bytes()
    pid = m.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert in_thread(lambda: os.listdir(m.path))() == ["a"]
    assert is_gone(pid) and m.status()["pid"] != pid
    assert "no sign of life" in m.log()


def test_worker_that_waits_for_the_store_is_left_alone(make_mount, store):
    store.put("a", b"1234")
    m = make_mount(watchdog="3s", fault="op=get,action=delay:6s")
    pid = m.status()["pid"]
    assert (m.path / "a").read_bytes() == b"1234"
    assert m.status()["pid"] == pid


def test_start_that_fails_leaves_nothing(make_mount):
    m = make_mount(start=False, http="999.1.1.1:80")
    done = run(*m.arguments(), check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "999.1.1.1" in done.stderr
    assert not m.is_mounted()
    m.options = {}
    m.mount()


def test_foreground_is_the_supervisor(make_mount):
    m = make_mount(start=False)
    with subprocess.Popen([SLUICE, *map(str, m.arguments()), "-f"], stdin=subprocess.DEVNULL) as p:
        assert eventually(m.is_mounted)
        assert m.status()["supervisor_pid"] == p.pid
        m.kill_worker()
        (m.path / "f").write_text("x", encoding="ascii")
        p.send_signal(signal.SIGINT)
        assert p.wait(30) == 0
    assert not m.is_mounted()


def test_worker_holds_nothing_of_the_supervisors(mount):
    """What is handed down is named; whatever else would be inherited by each worker in turn."""
    pid = mount.status()["pid"]
    links = [os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    assert sum("/dev/fuse" in link for link in links) == 1
    assert sum("memfd:" in link for link in links) == 2
    assert not any("pidfd" in link for link in links)


def test_what_is_closed_is_published_by_the_next(make_mount, store):
    m = make_mount(fault="op=put,action=delay:1s;op=part,action=delay:1s", part_size="5M", settle="0s")
    data = random.Random(3).randbytes(12 * MIB)
    (m.path / "small").write_bytes(b"1")
    (m.path / "large").write_bytes(data)
    m.kill_worker()
    m.kill_worker()
    m.wait()
    assert store.get("small") == b"1" and store.get("large") == data


AS_NOBODY = """
cd /
worker() { "$2" status --json "$1/mnt" | sed 's/.*"pid":\\([0-9]*\\).*/\\1/'; }
"$2" mount "file://$1/lake" "$1/mnt" --cache-dir "$1/cache" --log-file "$1/log" || exit 70
exec 9>"$1/mnt/f"
old=$(worker "$@")
kill -9 $old
echo "still open" >&9
exec 9>&-
cat "$1/mnt/f"
[ $(worker "$@") != $old ] && echo "another one"
"$2" umount "$1/mnt"; echo "free: $?"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_mount_of_a_user_is_taken_over(base):
    done = as_nobody(base, AS_NOBODY)
    if done.returncode == 77:
        pytest.skip("no device can be made here")
    assert done.stdout.splitlines() == ["still open", "another one", "free: 0"], done.stdout + done.stderr


# ---- upgrade ----

SPOILT = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--worker-formats") == 0)
        return puts(FORMATS) < 0;
    return ENDING;
}
"""


def spoilt_program(base, ending):
    """Says that it could take over, and then does not."""
    formats = run("--worker-formats").stdout.strip()
    program = base / "spoilt"
    subprocess.run(["cc", "-x", "c", "-", "-o", program, f'-DFORMATS="{formats}"', f"-DENDING={ending}"], input=SPOILT, text=True,
                   check=True, timeout=60)
    return program


def copy_program(to):
    to.write_bytes(pathlib.Path(SLUICE).read_bytes())
    to.chmod(0o755)
    return to


def test_upgrade_puts_another_program_in_place(make_mount, store, base):
    store.put("a", b"1234")
    m = make_mount()
    other = copy_program(base / "other")
    before = m.status()
    done = run("upgrade", "--program", other, m.path)
    after = m.status()
    assert str(other) in done.stdout and after["program"] == str(other)
    assert after["supervisor_pid"] == before["supervisor_pid"] and after["pid"] != before["pid"] and is_gone(before["pid"])
    assert (m.path / "a").read_bytes() == b"1234"
    m.kill_worker()
    assert m.status()["program"] == str(other)
    run("upgrade", m.path)  # to the program of this command
    assert m.status()["program"] == SLUICE


def test_program_that_is_replaced_on_the_disk_serves_on(make_mount, store, base):
    store.put("a", b"1234")
    m = make_mount(start=False)
    m.program = str(copy_program(base / "mine"))
    m.mount()
    (base / "new").write_bytes(b"not a program")
    (base / "new").replace(m.program)
    m.kill_worker()
    assert (m.path / "a").read_bytes() == b"1234"


def test_unfit_program_is_refused(mount):
    before = mount.status()["pid"]
    for program, why in (("/bin/true", "cannot take over"), ("/none/there", "No such file"), ("/etc/passwd", "cannot take over")):
        done = run("upgrade", "--program", program, mount.path, check=False)
        assert done.returncode != 0 and why in done.stderr and done.stderr.count("\n") == 1
    assert mount.status()["pid"] == before


@pytest.mark.parametrize("ending", ["3", "pause()"])
def test_program_that_does_not_come_to_serve_is_given_up(make_mount, store, base, ending):
    store.put("a", b"1234")
    m = make_mount()
    before = m.status()
    done = run("upgrade", "--program", spoilt_program(base, ending), m.path, check=False)
    assert done.returncode == 1 and "did not come to serve" in done.stderr
    after = m.status()
    assert after["program"] == before["program"] and after["supervisor_pid"] == before["supervisor_pid"]
    assert (m.path / "a").read_bytes() == b"1234"


def test_upgrade_lets_requests_come_to_their_end(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    join = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    run("upgrade", m.path)
    assert join() == 4
    assert "signal 9" not in m.log()
