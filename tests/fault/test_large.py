"""One file of 300 MiB through every row of the matrix whose outcome could depend on the size: each upload and each read meets several of them."""
import errno
import os

import proxy as p
import pytest
from conftest import BIG, blob, cold
from mounts import MIB, eventually, run

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(480)]


def spoil(lake, rows):
    """The rules of (kind, action, options)."""
    return [lake.proxy.rule(kind, action, **how) for kind, action, how in rows]


def test_a_large_file_through_all_of_it(ready_lake):
    """Rows 1, 2, 4, 7-9, 13-15, 17, 20."""
    lake = ready_lake(op_timeout="30s")
    nth = p.part_number
    used = spoil(lake, [
        ("create", p.error(503, "SlowDown"), {}),
        ("part", p.reset_before, {"key": nth(1)}),
        ("part", p.reset_upload(MIB), {"key": nth(2)}),
        ("part", p.lost, {"key": nth(3)}),
        ("part", p.error(500, "InternalError"), {"key": nth(4), "times": 5}),
        ("part", p.set_header("ETag", '"00000000000000000000000000000000"'), {"key": nth(5)}),
        ("part", p.set_header("ETag", None), {"key": nth(6)}),
        ("part", p.reset_head(), {"key": nth(7)}),
        ("complete", p.answer(200, p.error_xml("InternalError")), {}),
        ("complete", p.lost, {}),
    ])
    lake.write("big", blob("big", BIG))
    lake.wait()
    assert [rule.n_used > 0 for rule in used] == [True] * len(used)
    assert len(lake.upstream("big")) == 1
    run("evict", lake.path / "big")
    used = [lake.proxy.rule("get", action, key="big", after=i) for i, action in enumerate(p.WRONG_BODIES.values())]
    lake.check("big")
    assert [rule.n_used for rule in used] == [1] * len(used)


def test_a_large_file_whose_upload_begins_again(ready_lake):
    """Rows 3, 5, 16, 18-20; and 41, in the middle of an upload."""
    lake = ready_lake(op_timeout="30s")
    lake.write("big", b"an older one")
    lake.wait()
    used = spoil(lake, [
        ("create", p.answer(429, b"", Retry_After="2"), {}),
        ("part", p.late(4), {"key": p.part_number(2)}),
        ("part", p.first(lake.store.abort), {"key": p.part_number(5)}),
        ("complete", p.reset_before, {}),
        ("complete", p.answer(200, p.error_xml("InvalidPart")), {}),
        ("complete", p.keep_alive(3), {}),
    ])
    lake.write("big", blob("big", BIG))
    lake.wait()
    assert [rule.n_used for rule in used] == [1] * len(used)
    assert lake.upstream("big") == [b"an older one", lake.files["big"]]
    lake.proxy.rule("part", p.silence, key="killed", times=None, after=10)
    lake.write("killed", blob("killed", BIG))
    assert eventually(lambda: lake.proxy.count("part", "killed") > 10, 60)
    lake.m.kill9()
    lake.proxy.heal()
    lake.mount()
    lake.wait()
    assert len(lake.upstream("killed")) == 1


def test_a_large_file_that_is_refused_for_a_while(ready_lake):
    """Rows 21, 24, 25."""
    lake = ready_lake(op_timeout="30s")
    lake.proxy.rule(("create", "part"), p.error(403, "AccessDenied"), times=None)
    lake.write("big", blob("big", BIG))
    lake.until_told("big", "ermission|allow")
    assert "big" not in lake.store.list()
    lake.proxy.heal()
    lake.wait()
    lake.proxy.rule(("part", "complete"), p.error(404, "NoSuchBucket"), times=None)
    lake.write("later", blob("later", BIG))
    lake.until_told("later", "bucket")
    lake.proxy.heal()
    lake.wait()
    lake.loses_to_somebody("lost", blob("lost", BIG), p.error(412, "PreconditionFailed"))


def test_a_large_object_read_through_all_of_it(ready_lake):
    """Rows 3, 5, 6; then 30-32: replaced before the first byte is asked for, replaced and removed in the middle."""
    lake = ready_lake(op_timeout="10s")
    old, between, new = blob("old", BIG), blob("between", BIG), blob("new", BIG)
    cold(lake, "there", old)
    bad = [p.answer(429, b"", Retry_After="2"), p.late(4), p.trickle(1, burst=70000), p.stall_body(70000)]
    used = [lake.proxy.rule("get", action, key="there", after=2 * i) for i, action in enumerate(bad)]
    lake.check("there")
    assert [rule.n_used for rule in used] == [1] * len(used)
    run("evict", lake.path / "there")
    looked = lake.proxy.rule("get", p.first(lambda _: lake.put("there", between)), key="there")
    got = or_stale(lambda: lake.read("there"))
    whole = got in (None, old, between)  # the old one if all of it came while the new one was being put
    assert whole and looked.n_used == 1
    assert eventually(lambda: or_stale(lambda: lake.read("there")) == between, 60)
    run("evict", lake.path / "there")
    assert pieces(lake, between, lambda: lake.put("there", new)) > 0, "the whole object came before it was replaced"
    assert eventually(lambda: or_stale(lambda: lake.read("there")) == new, 20)
    run("evict", lake.path / "there")
    assert pieces(lake, new, lambda: lake.store.delete("there")) > 0
    lake.removed("there")
    assert eventually(lambda: "there" not in os.listdir(lake.path), 10)


def or_stale(read):
    try:
        return read()
    except OSError as e:
        assert e.errno in (errno.ESTALE, errno.ENOENT, errno.EIO), e
        return None


def pieces(lake, data, meanwhile):
    """How many pieces could not be read after something was done to the object whose first bytes were; the others are of what was opened."""
    with open(lake.path / "there", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 4096, 0) == data[:4096]
        meanwhile()
        got = [or_stale(lambda off=off: os.pread(f.fileno(), 4096, off) == data[off:off + 4096]) for off in range(0, BIG, 8 * MIB)]
    assert False not in got
    return got.count(None)
