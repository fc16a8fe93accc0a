"""What happens between us and the store: connections that break, hang, crawl, or lead elsewhere."""
import errno
import os
import socket
import subprocess
import time

import proxy as p
import pytest
from conftest import BIG, PARTS, SIZES, blob, cold
from mounts import MIB, NIGHT, ROOT, eventually, in_thread

pytestmark = pytest.mark.ceph
SOAK_SECONDS = int(os.environ.get("SLUICE_SOAK_SECONDS") or (1800 if NIGHT else 180))

# ---- resets ----

READS = {"before": p.reset_before, "head": p.reset_head(), "body": p.reset_body(3000), "at once": None}
WRITES = {"before": p.reset_before, "body": p.reset_upload(100000), "reply": p.lost, "reply's head": p.reset_head()}


@pytest.mark.parametrize("size", [0, 5 * MIB])
@pytest.mark.parametrize("when", READS)
def test_reset_of_a_read(lake, when, size):
    cold(lake, "there", blob(when, size))
    if READS[when]:
        rule = lake.proxy.rule(("get", "head"), READS[when], key="there")
    else:
        lake.proxy.cut()
        lake.proxy.refuse(2)
    lake.check("there")
    assert READS[when] is None or rule.n_used == (1 if size else 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("when", WRITES)
def test_reset_of_a_write(parts, when, size):
    rules = [parts.proxy.rule(kind, WRITES[when], key="f", times=2) for kind in ("put", "part", "complete")]
    parts.write("f", blob(when, size))
    parts.wait()
    n = 1 if "reply" in when else 2  # what got through is found, and not sent again
    assert [rule.n_used for rule in rules] == ([0, 2, n] if size == PARTS else [n, 0, 0])
    assert len(parts.upstream("f")) == 1


def test_all_connections_break_at_once_again_and_again(parts):
    for i in range(5):
        cold(parts, f"there{i}", blob(i, 12 * MIB))

    def breaker():
        for _ in range(50):
            time.sleep(0.15)
            parts.proxy.cut()
    resets = parts.proxy.n_resets
    join = in_thread(breaker)
    for i in range(5):
        parts.write(f"f{i}", blob(f"f{i}", 12 * MIB))
        parts.check(f"there{i}")
    join(60)
    parts.wait()
    assert parts.proxy.n_resets >= resets + 5


# ---- silence ----

@pytest.mark.parametrize("size", SIZES)
def test_silence_for_a_moment(make_lake, size):
    """Shorter than the operation timeout: nobody notices but by the time."""
    lake = make_lake(op_timeout="20s", part_size="5M")
    cold(lake, "there", blob("there", MIB))
    rule = lake.proxy.rule("any", p.silence, times=None)
    reader = in_thread(lambda: lake.read("there"))
    lake.write("f", blob("f", size))
    time.sleep(5)
    assert rule.n_used >= 2, "the reader's request, and the writer's"
    lake.proxy.heal()
    assert reader(40) == lake.files["there"]
    lake.wait()


def test_silence_beyond_the_timeout(make_lake):
    """Reads that need the store end with an error; what is here is served; what is written is kept. `df` and `ls` do not wait."""
    lake = make_lake(op_timeout="3s", part_size="5M")
    cold(lake, "there", blob("there", MIB))
    lake.write("ready", b"1")
    lake.wait()
    lake.proxy.rule("any", p.silence, times=None)
    lake.write("f", blob("f", PARTS))
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno in (errno.EIO, errno.ETIMEDOUT)
    in_thread(lambda: os.statvfs(lake.path))(1)
    assert {"there", "f", "ready"} <= set(in_thread(lambda: os.listdir(lake.path))(1))
    lake.check("ready", "f")
    assert eventually(lambda: lake.status("offline_since") > 0, 20)
    lake.proxy.heal()
    lake.check("there")
    lake.wait()
    assert lake.status("offline_since") == 0


class Blackhole:
    """A port where a SYN is never answered: nobody accepts and the queue is full."""

    def __init__(self, address, port):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(0)
        self.fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((address, port))
            self.fillers.append(filler)

    def close(self):
        for sock in [*self.fillers, self.listener]:
            sock.close()


@pytest.mark.timeout(480)
@pytest.mark.parametrize("minutes", [1, 10])
def test_packets_are_dropped_for_minutes(make_lake, minutes):
    """By a fast clock: a minute in 4 s, ten in 10. Of every size: reads fail in time, what is written is kept; an upload that was midway is gone on with."""
    lake = make_lake(start=False).fast(15 if minutes == 1 else 60, patience=3).mount()
    there = {"there0": 0, "there5": 5 * MIB, "there300": BIG}
    for name, size in there.items():
        cold(lake, name, blob(name, size))
    lake.write("ready", b"1")
    lake.wait()
    midway = lake.proxy.rule("part", p.silence, key="midway", times=None, after=3)
    lake.write("midway", blob("midway", BIG))
    assert eventually(lambda: midway.n_used, 30)
    port = lake.proxy.port
    lake.proxy.close()
    hole = Blackhole("127.0.0.1", port)
    try:
        began = time.monotonic()
        for i in range(20):
            lake.write(f"d/f{i}", blob(i, (0, 5 * MIB)[i] if i < 2 else 1000))
        joins = {name: in_thread(lambda name=name: lake.in_time(lambda: lake.read(name))) for name in there}
        assert ends(joins["there0"]) in (None, errno.EIO, errno.ETIMEDOUT)  # it has no byte to be asked for
        assert {ends(joins[name]) for name in ("there5", "there300")} <= {errno.EIO, errno.ETIMEDOUT}
        lake.check("ready", "d/f0", "d/f1")
        time.sleep(max(0, began + (4 if minutes == 1 else 10) - time.monotonic()))
        assert lake.status("dirty_files") == 21
    finally:
        hole.close()
    lake.proxy.open(port)
    lake.wait()
    lake.check(*there)
    assert lake.proxy.count("create", "midway") == 1


def ends(join):
    """The error that it ends with."""
    try:
        join(40)
    except OSError as e:
        return e.errno
    return None


def test_a_byte_a_second(make_lake):
    """A connection that crawls is given up for another one."""
    lake = make_lake(op_timeout="6s")
    cold(lake, "there", blob("there", 5 * MIB))
    lake.write("ready", b"1")
    lake.wait()
    rule = lake.proxy.rule("get", p.trickle(1, burst=70000), key="there", times=2)
    answers = [lake.proxy.rule("put", p.trickle(1), key=name) for name in ("f", "empty")]
    lake.write("f", blob("f", 1000))
    lake.write("empty", b"")
    assert in_thread(lambda: lake.read("there"))(60) == lake.files["there"]
    lake.wait()
    assert rule.n_used == 2 and [answer.n_used for answer in answers] == [1, 1]


# ---- names and addresses ----

@pytest.fixture
def named(make_lake, proxy, base):
    """A mount of an endpoint by name, and what the name stands for: a file with an address, or nothing."""
    shim, names = base / "resolve.so", base / "names"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", shim, ROOT / "tests/fault/resolve.c"], check=True, timeout=60)
    names.write_text("127.0.0.1")
    proxy.sign_as(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    lake = make_lake(start=False, endpoint_url=f"http://lake.test:{proxy.port}", allow_plain_http=True, op_timeout="6s", max_downloads=40)
    lake.m.env.update(LD_PRELOAD=str(shim), SLUICE_TEST_NAMES=str(names))
    return lake.mount(), names


def test_name_that_does_not_resolve_for_a_while(named):
    lake, names = named
    cold(lake, "there", blob("there", MIB))
    port = lake.proxy.port
    lake.proxy.close()
    names.write_text("")
    lake.write("f", b"written meanwhile")
    reader = in_thread(lambda: lake.read("there"))
    time.sleep(3)
    assert lake.status("dirty_files") == 1
    lake.proxy.open(port)
    time.sleep(1)
    assert lake.status("dirty_files") == 1, "the name is still unknown"
    names.write_text("127.0.0.1")
    assert reader(40) == lake.files["there"]
    lake.wait()


def test_endpoint_moves_to_another_address(named):
    """Also for connections that stood unused, each of which knows the old address."""
    lake, names = named
    for i in range(40):
        lake.put(f"there{i}", blob(i, 1000))
    assert eventually(lambda: "there39" in os.listdir(lake.path), 10)
    slow = lake.proxy.rule("get", p.late(0.7), times=None)
    joins = [in_thread(lambda i=i: lake.read(f"there{i}")) for i in range(40)]
    assert [join(30) for join in joins] == [lake.files[f"there{i}"] for i in range(40)]
    assert slow.n_used == 40
    lake.proxy.heal()
    cold(lake, "more", blob("more", MIB))
    port = lake.proxy.port
    lake.proxy.close()
    lake.proxy.open(port, "127.0.0.2")
    names.write_text("127.0.0.2")
    lake.write("f", b"written after the move")
    assert in_thread(lambda: lake.read("more"))(40) == lake.files["more"]
    lake.wait()


@pytest.mark.parametrize("status,code", [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (302, "Found"), (308, "Moved")])
def test_redirect_to_another_host_is_not_followed(make_lake, status, code):
    lake = make_lake(op_timeout="3s")
    cold(lake, "there", blob("there", MIB))
    with p.FaultProxy(lake.proxy.upstream) as elsewhere:
        body = f"<Error><Code>{code}</Code><Endpoint>127.0.0.1:{elsewhere.port}</Endpoint></Error>".encode()
        lake.proxy.rule("any", p.answer(status, body, Location=f"{elsewhere.url}/bucket/there"), times=None)
        with pytest.raises(OSError) as e:
            lake.in_time(lambda: lake.read("there"))
        assert e.value.errno in (errno.EIO, errno.EACCES, errno.ETIMEDOUT)
        lake.write("f", b"stays here")
        time.sleep(1)
        assert lake.status("dirty_files") == 1
        assert elsewhere.n_connections == 0
    lake.proxy.heal()
    lake.check("there")


# ---- for a long time ----

def spoil(proxy):
    """Of all requests 10 % get a 503, and 2 % a reset: before, within the body, after it was done, within the reply. The rules of each."""
    resets = [p.reset_before, p.reset_upload(50000), p.lost, p.reset_body(50000)]
    return [proxy.rule("any", p.error(503, "SlowDown"), prob=0.1, times=None),
            *(proxy.rule("any", act, prob=0.02 / 0.9 / len(resets), times=None) for act in resets)]


@pytest.mark.slow
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_soak_in_a_bad_network(make_lake):
    """10 % 503, 2 % reset: programs that write, read, rename and remove see no error."""
    lake = make_lake(op_timeout="60s", part_size="5M", log_level="info")
    rules = spoil(lake.proxy)
    end = time.monotonic() + SOAK_SECONDS
    pause = min(SOAK_SECONDS / 1800, 1)  # the gateway keeps every version

    def size(n):
        return PARTS if n % 50 == 5 else 3 * MIB if n % 10 == 7 else (0, 1000, 100000)[n % 3]

    def program(k):
        n = 0
        while time.monotonic() < end:
            data = blob((k, n), size(n + 3 * k))
            name = f"p{k}/f{n % 20}"
            lake.write(name, data)
            assert lake.read(name) == data
            if n % 3 == 1:
                old, new = name, f"p{k}/moved{n % 7}"
                os.rename(lake.path / old, lake.path / new)
                lake.wrote(new, lake.files.pop(old))
            if n % 5 == 4 and f"p{k}/moved1" in lake.files:
                os.unlink(lake.path / f"p{k}/moved1")
                lake.removed(f"p{k}/moved1")
            if n % 10 == 9:
                subprocess.run(["sync", "-f", lake.path], check=True, timeout=60)
                for other in [x for x in list(lake.files) if x.startswith(f"p{k}/")]:
                    assert lake.read(other) == lake.files[other], other
            n += 1
            time.sleep(pause)
        return n
    joins = [in_thread(lambda k=k: program(k)) for k in range(3)]
    counts = [join(end - time.monotonic() + 120) for join in joins]
    lake.wait()
    used = [rule.n_used for rule in rules]
    print(f"{SOAK_SECONDS} s, {sum(counts)} files, {lake.status('retries')} requests repeated, of {rules[0].n_fitting} {used[0]} were busy and {sum(used[1:])} reset")
    assert min(counts) >= 5 + SOAK_SECONDS // 10 and lake.status("retries") > 0
    assert 0 not in used and lake.proxy.n_resets >= sum(used[1:])
