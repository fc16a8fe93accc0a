"""A delete or a copy whose reply did not come, and that the store carries out later, does not take away or replace what was published at that name since."""
import os
import time

import proxy as p
import pytest
from conftest import blob
from mounts import eventually

pytestmark = pytest.mark.ceph

LATE = 4  # seconds; what is carried out before they are over does no harm


def lose(lake, kind, how):
    """The request of that kind for "d/name" gets no reply: the connection ends, or the worker is killed meanwhile. Returns who carries it out."""
    later = p.CarriedOutLater(hang=how == "kill")
    rule = lake.proxy.rule(kind, later, key="d/name")
    return later, rule


def lost(lake, rule, how):
    assert eventually(lambda: rule.n_used == 1 and rule.action.request, 20)
    if how == "kill":
        lake.worker = lake.m.kill_worker()
    return time.monotonic()


@pytest.mark.parametrize("how", ["cut", "kill"])
@pytest.mark.parametrize("kind", ["delete", "copy"])
def test_what_is_carried_out_late_meets_nothing_newer(make_lake, kind, how):
    lake = make_lake(late_requests=f"{LATE}s")
    name = lake.path / "d/name"
    old, new = blob("old", 100000), blob("new", 70000)
    lake.write("d/there", old)
    if kind == "delete":
        lake.write("d/name", old)
    lake.wait()
    later, rule = lose(lake, kind, how)
    if kind == "delete":
        os.unlink(name)
    else:  # a source that stays, or a late copy had nothing to copy
        os.link(lake.path / "d/there", name)
        lake.may_show("d/name", old)
    since = lost(lake, rule, how)
    if kind == "copy":
        assert eventually(lambda: "d/name" in lake.store.list(), 20)
        os.unlink(name)
    lake.write("d/name", new)
    time.sleep(max(0.0, since + LATE / 2 - time.monotonic()))
    lake.may_show("d/name", old)
    assert later.carry_out() // 100 == 2
    lake.wait()
    assert lake.store.get("d/name") == new
    assert lake.status("conflicts") == 0


def test_the_wait_begins_when_a_store_that_hung_goes_on(make_lake):
    """It hung for longer than the wait, and carries out what came before and meanwhile in any order."""
    lake = make_lake(late_requests=f"{2 * LATE}s", op_timeout="3s")
    name = lake.path / "d/name"
    lake.write("d/name", blob("old", 100000))
    lake.wait()
    later = p.CarriedOutLater(hang=True)

    def hangs(x):
        x.hang()
        p.pass_on(x)

    def is_the_last(x):
        """Nothing is answered from the delete on, the question behind it neither."""
        lake.proxy.rule("any", hangs, key="d/name", times=None)
        later(x)

    lake.proxy.rule("delete", is_the_last, key="d/name", times=None)
    os.unlink(name)
    assert eventually(lambda: later.request and "a delete got no reply" in lake.m.log(), 20)
    new = blob("new", 70000)
    lake.write("d/name", new)  # the delete is not tried again: this takes its place
    time.sleep(2 * LATE + 5)
    lake.proxy.heal()
    eventually(lambda: lake.store.list()["d/name"] == len(new), LATE)
    assert later.carry_out() // 100 == 2
    lake.wait()
    assert lake.store.get("d/name") == new


def test_nothing_is_waited_for_when_all_replies_come(make_lake):
    """A day would be too long for the wait."""
    lake = make_lake(late_requests="24h")
    for i in range(3):
        lake.write("d/name", blob(i, 50000))
        lake.wait()
        os.rename(lake.path / "d/name", lake.path / "d/other")
        lake.removed("d/name")
        lake.wrote("d/other", blob(i, 50000))
        lake.wait()
