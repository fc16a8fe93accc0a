"""A worker that dies under a mount: another one takes over, and programs in the mount notice a pause at most."""
import contextlib
import errno
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

import lake
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


@pytest.mark.parametrize("queued", [False, True], ids=["told", "queued"])
def test_who_tells_the_kernel_dies(make_mount, store, queued):
    """Another one takes its place, and the kernel hears of what this one had not handed on. Programs notice nothing."""
    store.put("d/f", b"old")
    m = make_mount(metadata_ttl="1h")
    path, notifier, worker = m.path / "d/f", m.notifier(), m.status()["pid"]
    with open(path, "rb", buffering=0) as reader, open(m.path / "d/mine", "wb", buffering=0) as writer:
        assert reader.read() == b"old"
        writer.write(b"be")
        if queued:
            os.kill(notifier, signal.SIGSTOP)
            store.put("d/f", b"newer")
            run("sync", m.path / "d", check=False)
            assert path.stat().st_size == 3  # as the kernel knows it
        os.kill(notifier, signal.SIGKILL)
        assert eventually(lambda: m.status()["pid"] != worker), "nobody noticed"
        if not queued:
            store.put("d/f", b"newer")
            run("sync", m.path / "d")
        assert eventually(lambda: path.read_bytes() == b"newer")
        writer.write(b"fore")
        assert os.pread(reader.fileno(), 9, 0) == b"old"
    assert m.notifier() != notifier
    m.wait()
    assert store.get("d/mine") == b"before"
    assert "who tells the kernel of changes has ended" in m.log()


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
    assert eventually(lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")))
    assert in_thread(lambda: os.listdir(m.path))() == ["a"]
    assert is_gone(pid) and m.status()["pid"] != pid
    assert "no sign of life" in m.log()


def stop_next_worker(m):
    """Kills the one that serves, and stops the next one while it starts. Its pid, if it was caught so early."""
    supervisor, worker = m.pids()
    children = pathlib.Path(f"/proc/{supervisor}/task/{supervisor}/children")
    before, served = set(children.read_text().split()), m.log().count("taken over source=")
    os.kill(worker, signal.SIGKILL)
    new = eventually(lambda: set(children.read_text().split()) - before, step=0)
    pid = int(new.pop())
    os.kill(pid, signal.SIGSTOP)
    if m.log().count("taken over source=") == served:
        return pid
    os.kill(pid, signal.SIGCONT)
    return None


def test_worker_that_hangs_while_it_starts_is_replaced(make_mount, store):
    store.put("a", b"1234")
    m = make_mount(watchdog="1s", settle="0s")
    (m.path / "a").read_bytes()
    pid = eventually(lambda: stop_next_worker(m))
    assert in_thread(lambda: os.listdir(m.path))() == ["a"]
    assert is_gone(pid) and m.status()["pid"] != pid
    assert "no sign of life while it starts" in m.log()


def test_worker_that_hangs_while_it_starts_can_be_stopped(make_mount):
    m = make_mount(watchdog="1s", settle="0s")
    supervisor, _ = m.pids()
    pid = eventually(lambda: stop_next_worker(m))
    os.kill(supervisor, signal.SIGTERM)
    assert eventually(lambda: is_gone(supervisor) and is_gone(pid)) and not m.is_mounted()


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
        assert eventually(lambda: "mounted source=" in m.log()), "one that dies before that is not replaced"
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
        return sleep(DELAY) > 0 || puts(FORMATS) < 0;
    return ENDING;
}
"""


# What fails in it is the first step behind those that look at what programs have open: the one eventfd that may block is the control socket's.
FAILING = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_eventfd2, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EFD_CLOEXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
        return 2;
    return execv(PROGRAM, argv);
}
"""


def test_spoilt_credentials_do_not_end_the_mount(make_mount, base, tmp_path, monkeypatch):
    """The endpoint is in a file too, and the cache folder's name would be another one without it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # those of a gateway that other tests have
        monkeypatch.delenv(name, raising=False)
    store = lake.Lake()
    keys, config = tmp_path / "credentials", tmp_path / "config"
    text = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"

    def write_keys(mode):
        keys.write_text(text)
        keys.chmod(mode)

    write_keys(0o600)
    config.write_text(f"[default]\nregion = us-east-1\nendpoint_url = {store.endpoint}\n")
    store.put("d/cached", b"1234")
    store.put("d/absent", b"5678")
    m = make_mount(source=store.source, start=False, endpoint_url=None, prefetch="off")
    m.env = {"AWS_SHARED_CREDENTIALS_FILE": str(keys), "AWS_CONFIG_FILE": str(config), "AWS_EC2_METADATA_DISABLED": "true",
             "no_proxy": "127.0.0.1"}
    m.mount()
    assert (m.path / "d/cached").read_bytes() == b"1234" and "absent" in os.listdir(m.path / "d")
    write_keys(0o644)
    config.write_text("[default\n")  # and somebody is about to write the other one
    assert m.kill_worker()
    run("upgrade", m.path)
    assert (m.path / "d/cached").read_bytes() == b"1234"
    with pytest.raises(OSError) as e:
        (m.path / "d/absent").read_bytes()
    assert e.value.errno == errno.EIO
    (m.path / "mine").write_bytes(b"12")
    assert "config: line 1" in m.log() or "open to other users" in m.log()
    write_keys(0o600)
    config.write_text("")
    m.wait()
    assert store.get("mine") == b"12" and (m.path / "d/absent").read_bytes() == b"5678"
    m.umount()
    store.remove()


def spoilt_program(base, ending, delay=0):
    """Says that it could take over, after so many seconds, and then does not. The supervisor waits five."""
    formats = run("--worker-formats").stdout.strip()
    program = base / "spoilt"
    subprocess.run(["cc", "-x", "c", "-", "-o", program, f'-DFORMATS="{formats}"', f"-DENDING={ending}", f"-DDELAY={delay}"],
                   input=SPOILT, text=True, check=True, timeout=60)
    return program


def failing_program(base):
    """Takes over what programs have open, and then cannot go on."""
    program = base / "failing"
    subprocess.run(["cc", "-x", "c", "-", "-o", program, f'-DPROGRAM="{SLUICE}"'], input=FAILING, text=True, check=True, timeout=60)
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


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_program_that_fails_leaves_open_files_as_they_were(make_mount, store, base, passthrough):
    m = make_mount(passthrough=passthrough)
    with open(m.path / "f", "w+b", buffering=0) as f:
        f.write(b"one")
        done = run("upgrade", "--program", failing_program(base), m.path, check=False)
        assert done.returncode == 1 and "did not come to serve" in done.stderr
        assert m.log().count("taking over handles=1") == 2, "it did not come so far"
        f.write(b"two")
        with open(m.path / "f", "rb") as again:
            assert again.read() == b"onetwo" and os.fstat(again.fileno()).st_size == 6
        f.write(b"more")
    m.wait()
    assert store.get("f") == b"onetwomore" and (m.path / "f").read_bytes() == b"onetwomore"


def runs_below(pid, program):
    with contextlib.suppress(OSError):
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return any(os.readlink(f"/proc/{child}/exe") == str(program) for child in children)
    return False


@pytest.mark.parametrize("how", ["signal", "umount", "outside"])
def test_unmounted_while_an_upgrade_is_asked_for(make_mount, base, how):
    m = make_mount()
    pids, program = m.pids(), spoilt_program(base, "3", delay=60)
    join = in_thread(lambda: run("upgrade", "--program", program, m.path, check=False))
    assert eventually(lambda: runs_below(pids[0], program))
    if how == "signal":
        os.kill(pids[1], signal.SIGTERM)
    elif how == "umount":
        m.umount()
    else:
        subprocess.run(["umount", m.path], check=True, timeout=20)
    done = join()
    assert done.returncode == 1 and "the mount is being taken away" in done.stderr
    assert eventually(lambda: all(map(is_gone, pids))) and not m.is_mounted()


@pytest.mark.parametrize("who", [0, 1, "outside"])
def test_stop_is_carried_out_by_the_next_of_a_worker_that_makes_room(make_mount, store, who):
    """It ends the mount as any worker does: not without what has to be on the disk by then."""
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    pids = m.pids()
    (m.path / "new").write_bytes(b"1234")
    begun = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    join = in_thread(lambda: run("upgrade", m.path, check=False))
    assert eventually(lambda: "making room" in m.log())
    if who == "outside":  # the connection goes with the program that is in the mount
        m.detach()
    else:
        os.kill(pids[who], signal.SIGTERM)
    assert eventually(lambda: is_gone(pids[0])) and not m.is_mounted()
    join()
    with contextlib.suppress(OSError):
        begun()
    log = m.log().splitlines()
    assert any("taking over" in line for line in log) and log[-1].endswith(": unmounted"), "nobody ended it"


@contextlib.contextmanager
def deaf_client(m):
    """A command that does not read what it asked for: a daemon that ends waits some time for it."""
    name = hashlib.sha256(os.fsencode(m.path)).hexdigest()[:16]
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"/run/sluice/{name}.sock")
        s.sendall(json.dumps({"verb": "info", "paths": [""] * 5000}).encode() + b"\n")
        yield s


def test_end_of_a_mount_is_not_cut_short_by_an_upgrade(make_mount, base):
    """The supervisor finds the program fit when the worker is at its end already."""
    m = make_mount()
    pids, program = m.pids(), spoilt_program(base, "3", delay=2)
    with deaf_client(m) as s:
        join = in_thread(lambda: run("upgrade", "--program", program, m.path, check=False))
        assert eventually(lambda: runs_below(pids[0], program))
        subprocess.run(["umount", m.path], check=True, timeout=20)
        assert join().returncode == 1
        time.sleep(9)  # longer than one who makes room may take
        assert not is_gone(pids[1])
        while s.recv(MIB):
            pass
    assert eventually(lambda: all(map(is_gone, pids)))
    assert "unmounted" in m.log()


def test_upgrade_lets_requests_come_to_their_end(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    join = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    run("upgrade", m.path)
    assert join() == 4
    assert "signal 9" not in m.log()
