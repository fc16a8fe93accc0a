"""What the store answers: too busy, failing, wrong, late, or not at all. Whatever it is, files arrive whole, once, and are read as they are."""
import errno
import os
import time

import proxy as p
import pytest
from conftest import BIG, PARTS, SIZES, blob, cold
from mounts import MIB, eventually, in_thread, run

pytestmark = pytest.mark.ceph

# ---- too busy ----

@pytest.mark.timeout(480)
@pytest.mark.parametrize("percent,sizes", [(10, [0, 5 * MIB, BIG, *[20000] * 8]), (50, [0, 5 * MIB, 20000, 20000])])
def test_slow_down_now_and_then(make_lake, percent, sizes):
    """No error comes of it, not even where many in a row are refused. By a clock that runs 15 times as fast: the longest waits are a second."""
    lake = make_lake(start=False).fast(15, patience=30).mount()
    for i, size in enumerate(sizes):
        cold(lake, f"there{i}", blob(i, size))
    rule = lake.proxy.rule("any", p.error(503, "SlowDown"), prob=percent / 100, times=None)
    for i, size in enumerate(sizes):
        lake.write(f"d/{i}", blob(f"w{i}", size))
        lake.check(f"there{i}")
    lake.wait()
    assert rule.n_used > 0


def test_slow_down_for_a_minute(make_lake):
    """By a clock that runs 15 times as fast: a reader waits, a writer does not."""
    lake = make_lake(start=False).fast(15).mount()
    lake.put("there", blob("there", 5 * MIB))
    lake.write("before", b"1")
    lake.wait()
    assert eventually(lambda: "there" in os.listdir(lake.path), 10)
    lake.proxy.rule("any", p.error(503, "SlowDown"), times=None)
    reader = in_thread(lambda: lake.read("there"))
    until = time.monotonic() + 4
    for i in range(10):
        lake.write(f"during{i}", blob(i, 1000))
    assert time.monotonic() < until, "writers waited"
    time.sleep(until - time.monotonic())
    lake.proxy.heal()
    assert reader(60) == lake.files["there"]
    lake.wait()


@pytest.mark.parametrize("kind", ["head", "get", "put", "delete", "list", "copy", "create", "part", "part_copy", "complete", "abort", "parts"])
def test_internal_error_of_every_verb_once(parts, kind):
    lake = parts
    cold(lake, "there", blob("there", MIB))
    rule = lake.proxy.rule(kind, p.error(500, "InternalError"), times=1)
    if kind == "parts":  # asked for only where it is not known whether a Complete was carried out
        lake.proxy.rule("complete", p.reset_before)
    exercise(lake)
    assert eventually(lambda: os.listdir(lake.path) and rule.n_used == 1, 10)


def exercise(lake):
    """Every request that a mount makes: lists, heads, reads, writes, renames, removes, and one upload that is given up."""
    lake.check("there")
    lake.write("new", blob("new", 1000))
    lake.write("empty", b"")
    lake.write("parts", blob("parts", PARTS))
    lake.write("gone", b"gone")
    lake.wait()
    os.rename(lake.path / "there", lake.path / "moved")
    lake.wrote("moved", lake.files.pop("there"))
    os.unlink(lake.path / "gone")
    lake.removed("gone")
    with open(lake.path / "short", "wb") as f:
        f.write(blob("long", PARTS))
        eventually(lambda: lake.proxy.count("part", "short"), 10)
        f.truncate(3)
    lake.wrote("short", blob("long", PARTS)[:3])
    with open(lake.path / "parts", "r+b", buffering=0) as f:  # the other parts are copied from the object of before
        f.write(b"edited")
    lake.wrote("parts", b"edited" + blob("parts", PARTS)[6:])
    lake.wait()


@pytest.mark.parametrize("size", SIZES)
def test_too_many_requests_with_a_wish(parts, size):
    rule = parts.proxy.rule(("put", "complete"), p.answer(429, b"", Retry_After="2"), times=2)
    began = time.monotonic()
    parts.write("f", blob("f", size))
    parts.wait()
    assert rule.n_used == 2
    assert time.monotonic() - began >= 4, "the store asked for two seconds, twice"


# ---- uploads ----

@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("end", [p.lost, p.lost_quietly])
def test_an_upload_whose_reply_is_lost_makes_one_version(parts, size, end):
    rule = parts.proxy.rule(("put", "complete"), end)
    parts.write("f", blob("f", size))
    parts.wait()
    assert rule.n_used == 1
    assert len(parts.upstream("f")) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("end", [p.lost, p.lost_quietly])
def test_a_rename_whose_reply_is_lost_makes_one_version(parts, size, end):
    parts.write("f", blob("f", size))
    parts.wait()
    rule = parts.proxy.rule("copy", end)
    os.rename(parts.path / "f", parts.path / "g")
    parts.wrote("g", parts.files.pop("f"))
    parts.wait()
    assert rule.n_used == 1
    assert parts.status("conflicts") == 0
    assert len(parts.upstream("g")) == 1


def test_complete_whose_reply_is_lost_and_then_unknown(parts):
    """Neither the object nor the upload is shown at first, so it is sent again."""
    rules = [parts.proxy.rule("complete", p.lost),
             parts.proxy.rule("head", p.error(404, "NoSuchKey"), key="f", after=1, times=2),  # also before it is sent again
             parts.proxy.rule("parts", p.error(500, "InternalError")),
             parts.proxy.rule("complete", p.error(404, "NoSuchUpload"))]
    parts.write("f", blob("f", PARTS))
    parts.wait()
    assert [rule.n_used for rule in rules] == [1, 2, 1, 1]
    assert len(parts.upstream("f")) == 1


def test_complete_that_was_lost_before_an_older_object_is_not_taken_for_done(parts):
    parts.write("f", b"an older one")
    parts.wait()
    rule = parts.proxy.rule("complete", p.reset_before)
    parts.write("f", blob("f", PARTS))
    parts.wait()
    assert rule.n_used == 1
    assert parts.upstream("f") == [b"an older one", parts.files["f"]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
def test_error_inside_a_200_of_complete(parts, size, code):
    rule = parts.proxy.rule("complete", p.answer(200, p.error_xml(code)), times=2)
    parts.write("f", blob("f", size))
    parts.wait()
    assert rule.n_used == (2 if size == PARTS else 0)


def test_invalid_part_inside_a_200_of_complete(parts):
    """The upload is made anew; 50 GB backups were lost by this in comparable programs."""
    rule = parts.proxy.rule("complete", p.answer(200, p.error_xml("InvalidPart")))
    parts.write("f", blob("f", PARTS))
    parts.wait()
    assert rule.n_used == 1
    assert parts.proxy.count("create", "f") == 2
    assert parts.upstream("f") == [parts.files["f"]]


@pytest.mark.parametrize("seconds", [3, 7])
def test_white_space_before_the_reply_of_complete(make_lake, seconds):
    """Three minutes of it at an operation timeout of one, in small: within the patience for Complete, and beyond it."""
    lake = make_lake(part_size="5M", op_timeout="2s")
    lake.write("ready", b"1")
    lake.wait()
    rule = lake.proxy.rule("complete", p.keep_alive(seconds))
    lake.write("f", blob("f", PARTS))
    lake.wait()
    assert rule.n_used == 1
    assert len(lake.upstream("f")) == 1


def test_part_that_fails_five_times(parts):
    rule = parts.proxy.rule("part", p.error(500, "InternalError"), key=p.part_number(2), times=5)
    parts.write("f", blob("f", PARTS))
    parts.wait()
    assert rule.n_used == 5
    assert len(parts.upstream("f")) == 1


def test_upload_that_is_gone_midway(parts):
    rule = parts.proxy.rule("part", p.first(parts.store.abort), key=p.part_number(3))
    parts.write("f", blob("f", PARTS))
    parts.wait()
    assert rule.n_used == 1
    assert parts.proxy.count("create", "f") == 2
    assert len(parts.upstream("f")) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("etag", ['"00000000000000000000000000000000"', None])
def test_wrong_or_missing_etag_of_an_upload(parts, size, etag):
    """What the store names is not what was sent: sent again, nothing of it is visible beside."""
    rule = parts.proxy.rule(("put", "part"), p.set_header("ETag", etag))
    parts.write("f", blob("f", size))
    parts.wait()
    assert rule.n_used == 1


# ---- reads ----

@pytest.mark.parametrize("size", [1, 5 * MIB])
@pytest.mark.parametrize("what", p.WRONG_BODIES)
def test_wrong_body_of_a_read_once(lake, what, size):
    cold(lake, "there", blob(what, size))
    rule = lake.proxy.rule("get", p.WRONG_BODIES[what], key="there")
    lake.check("there")
    assert rule.n_used == 1


@pytest.mark.parametrize("what", ["longer than it said", "wrong range", "range of nothing"])
def test_wrong_body_of_every_read_is_an_error(make_lake, what):
    lake = make_lake(op_timeout="3s")
    cold(lake, "there", blob(what, MIB))
    lake.proxy.rule("get", p.WRONG_BODIES[what], key="there", times=None)
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno in (errno.EIO, errno.EBADMSG, errno.ETIMEDOUT)
    lake.proxy.heal()
    lake.check("there")


def flip(reply, _):
    reply.body = reply.body[:7] + bytes([reply.body[7] ^ 1]) + reply.body[8:]


@pytest.mark.parametrize("size", [1000, 100000, MIB, 5 * MIB])
def test_flipped_byte_of_a_small_object(make_lake, size):
    """Of what is compared as a whole, over plain http too: once nobody notices, always is an error."""
    lake = make_lake(op_timeout="5s")
    lake.write("there", blob("there", size))
    lake.wait()
    run("evict", lake.path / "there")
    once = lake.proxy.rule("get", p.edit(flip), key="there")
    lake.check("there")
    assert once.n_used == 1
    run("evict", lake.path / "there")
    lake.proxy.rule("get", p.edit(flip), key="there", times=None)
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno in (errno.EIO, errno.EBADMSG)
    lake.proxy.heal()
    lake.check("there")


def test_kernel_does_not_keep_a_flipped_byte(make_lake):
    """Of an object that is compared when all of it is here: who read it before that gets the right one afterwards, though the kernel had it in its pages. Also who opens it only then."""
    lake = make_lake(passthrough="off", open_fill=0)
    data = blob("there", 20 * MIB)
    lake.write("there", data)
    lake.wait()
    run("evict", lake.path / "there")
    once = lake.proxy.rule("get", p.edit(flip), key="there")
    with open(lake.path / "there", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 4096, 0) != data[:4096] and once.n_used == 1, "not the one that was flipped"
        for off in range(0, len(data), MIB):
            os.pread(f.fileno(), MIB, off)
        assert eventually(lambda: os.pread(f.fileno(), 4096, 0) == data[:4096])
        assert (lake.path / "there").read_bytes() == data
    assert (lake.path / "there").read_bytes() == data


def test_flipped_byte_of_a_piece_of_a_small_object(make_lake):
    """No range of it is taken either, which no sum could tell of: not by who reads a little, not beside what was changed here."""
    lake = make_lake(op_timeout="5s", open_fill=0)
    lake.write("there", blob("there", MIB))
    lake.wait()
    run("evict", lake.path / "there")
    flipped = lake.proxy.rule("get", p.edit(flip), key="there", times=None)

    def refused():
        with open(lake.path / "there", "rb", buffering=0) as f, pytest.raises(OSError) as e:
            os.pread(f.fileno(), 4096, 3 * 65536)
        assert e.value.errno in (errno.EIO, errno.EBADMSG)
    refused()
    with open(lake.path / "there", "r+b", buffering=0) as f:
        os.pwrite(f.fileno(), blob("new", 65536), 65536)
        refused()
    assert flipped.n_used >= 6, "tried three times each"
    lake.proxy.heal()
    data = lake.files["there"]
    lake.wrote("there", data[:65536] + blob("new", 65536) + data[2 * 65536:])
    lake.check("there")


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_object_replaced_between_look_and_read(lake, size):
    cold(lake, "there", blob("old", size))
    os.stat(lake.path / "there")
    rule = lake.proxy.rule("get", p.first(lambda _: lake.put("there", blob("new", size))), key="there")
    try:
        assert lake.read("there") == lake.files["there"]
    except OSError as e:
        assert e.errno == errno.ESTALE
    assert rule.n_used == 1
    assert eventually(lambda: read_or_none(lake, "there") == blob("new", size), 20)


def read_or_none(lake, name):
    try:
        return lake.read(name)
    except OSError as e:
        assert e.errno == errno.ESTALE
        return None


def test_object_that_changes_between_two_ranges(lake):
    """A reader in the middle gets the version that it began with, or ESTALE, never the other's bytes."""
    old, new = blob("old", 40 * MIB), blob("new", 40 * MIB)
    cold(lake, "there", old)
    with open(lake.path / "there", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 4096, 0) == old[:4096]
        lake.put("there", new)
        stale = 0
        for off in range(0, 40 * MIB, MIB):
            try:
                assert os.pread(f.fileno(), 4096, off) == old[off:off + 4096], off
            except OSError as e:
                assert e.errno == errno.ESTALE
                stale += 1
        assert stale, "the whole object came before it was replaced"
    assert eventually(lambda: read_or_none(lake, "there") == new, 20)


def test_object_deleted_while_it_is_read(lake):
    data = blob("there", 40 * MIB)
    cold(lake, "there", data)
    with open(lake.path / "there", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 4096, 0) == data[:4096]
        lake.store.delete("there")
        failed = 0
        for off in range(0, 40 * MIB, MIB):
            try:
                assert os.pread(f.fileno(), 4096, off) == data[off:off + 4096], off
            except OSError as e:
                assert e.errno in (errno.ENOENT, errno.ESTALE, errno.EIO), e
                failed += 1
        assert failed
    lake.removed("there")
    assert eventually(lambda: "there" not in os.listdir(lake.path), 10)


# ---- refusals ----

@pytest.mark.parametrize("size,status,code,told", [
    *[(size, 403, "AccessDenied", "ermission|allow") for size in SIZES],
    (PARTS, 400, "XMinioAdminBucketQuotaExceeded", "quota"),
    (PARTS, 423, "SomethingOfTheirOwn", "refuses"),
])
def test_writing_is_not_allowed_for_a_while(parts, size, status, code, told):
    parts.proxy.rule(("put", "create", "part"), p.error(status, code), times=None)
    parts.write("f", blob("f", size))
    parts.until_told("f", told)
    assert "f" not in parts.store.list()
    parts.check("ready")
    parts.proxy.heal()
    parts.wait()


@pytest.mark.parametrize("size", SIZES)
def test_bucket_that_is_gone_for_a_while(parts, size):
    """Kept, told, and published when it is there again. Reads are errors, and nothing looks removed."""
    lake = parts
    cold(lake, "there", blob("there", MIB))
    lake.proxy.rule("any", p.error(404, "NoSuchBucket"), times=None)
    lake.write("f", blob("f", size))
    time.sleep(1.5)
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno != errno.ENOENT, "a bucket that is gone says nothing of the file"
    lake.check("ready", "f")
    assert {"f", "ready", "there"} <= set(os.listdir(lake.path))
    lake.until_told("f", "bucket")
    lake.proxy.heal()
    assert eventually(lambda: read_or_none(lake, "there") == lake.files["there"], 10)


@pytest.mark.parametrize("code,status", [("PreconditionFailed", 412), ("ConditionalRequestConflict", 409)])
@pytest.mark.parametrize("size", SIZES)
def test_somebody_else_was_first(parts, size, code, status):
    """Ours is kept and listed, the store keeps its own."""
    parts.loses_to_somebody("f", blob("f", size), p.error(status, code))
