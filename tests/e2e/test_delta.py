"""Large files saved again: what the store has of them is copied there, the rest is sent, and the object is right whatever becomes of its predecessor."""
import io
import os

import pytest
from mounts import MIB, QUICK, eventually, in_thread, sh
from stores import md5

PART = 8 * MIB
SIZE = (96 if QUICK else 160) * MIB + 12345


def content(seed=0):
    """Of SIZE bytes, no two parts alike, none with itself shifted."""
    block = os.urandom(MIB)
    return bytearray(b"".join(i.to_bytes(8, "little") + bytes([seed]) + block[9:] for i in range(SIZE // MIB + 1))[:SIZE])


def changed(data, share=0.2):
    """A copy of which the first `share` is other bytes."""
    new = bytearray(data)
    n = int(SIZE * share)
    new[:n] = bytes(b ^ 0xFF for b in data[:MIB]) * (n // MIB) + new[n // MIB * MIB:n]
    return new


def save(m, name, data, how="plain"):
    path = m.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    to = path.with_name(path.name + ".tmp") if how == "rename" else path
    with open(to, "wb", buffering=0) as f:
        view = memoryview(data)
        for off in range(0, len(data), MIB):
            f.write(view[off:off + MIB])
    if how == "rename":
        os.rename(to, path)


class Sent:
    """What was sent and saved since it was made."""

    def __init__(self, m):
        self.m, self.before = m, m.status()

    def __call__(self):
        now = self.m.status()
        return now["uploaded_bytes"] - self.before["uploaded_bytes"], now["saved_bytes"] - self.before["saved_bytes"]


@pytest.mark.parametrize("first, second, how", [("ckpt.pt", "ckpt.pt", "plain"), ("ckpt.pt", "ckpt.pt", "rename"),
                                                ("step_100/model.pt", "step_200/model.pt", "plain"),
                                                ("ckpt_100.pt", "ckpt_200.pt", "rename")])
def test_only_what_changed_is_sent(mount, store, first, second, how):
    old = content()
    save(mount, first, old, how)
    mount.wait()
    assert mount.info(first)["saved_bytes"] == 0
    sent = Sent(mount)
    new = changed(old)
    save(mount, second, new, how)
    mount.wait()
    up, saved = sent()
    assert up <= 0.25 * SIZE and up + saved == SIZE, (up, saved)
    assert mount.info(second)["saved_bytes"] == saved
    assert md5(store.get(second)) == md5(new)
    if first != second:
        assert md5(store.get(first)) == md5(old)
    assert (mount.path / second).read_bytes() == new


@pytest.mark.parametrize("first, second", [("step_1/model.pt", "step_2/model.pt"), ("model.pt", "model.pt")])
def test_80_percent_frozen_torch_checkpoint(mount, store, first, second):
    """Of the same file name, which torch writes into each record of the file."""
    torch = pytest.importorskip("torch")
    for name in (first, second):
        (mount.path / name).parent.mkdir(exist_ok=True)
    n_layers, layer = 20, (12 if QUICK else 16) * MIB
    state = {f"layer{i}": torch.rand(layer // 4) for i in range(n_layers)}
    torch.save(state, mount.path / first)
    mount.wait()
    for i in range(n_layers * 8 // 10, n_layers):  # the head of the model is trained
        state[f"layer{i}"] += 1
    sent = Sent(mount)
    torch.save(state, mount.path / second)
    mount.wait()
    up, saved = sent()
    size = (mount.path / second).stat().st_size
    assert up + saved == size
    assert up <= 0.25 * size, f"{up / size:.1%} of {size} bytes were sent"
    loaded = torch.load(io.BytesIO(store.get(second)))
    assert all(torch.equal(loaded[k], state[k]) for k in state)


def test_step_before_is_removed_right_after_the_save(mount, store):
    old = content()
    save(mount, "step_1/model.pt", old)
    mount.wait()
    sent = Sent(mount)
    new = changed(old)
    save(mount, "step_2/model.pt", new)
    sh(f"rm -r {mount.path}/step_1")
    mount.wait()
    assert sent()[0] <= 0.25 * SIZE
    assert set(store.list()) == {"step_2/model.pt"}
    assert md5(store.get("step_2/model.pt")) == md5(new)


@pytest.mark.parametrize("what", ["replaced before", "replaced meanwhile", "removed meanwhile"])
def test_predecessor_changed_elsewhere(make_mount, store, what):
    """Where others write to the bucket: what the object does not give any more is sent."""
    old = content()
    other = content(seed=1)  # as large, and other bytes at each place
    m = make_mount(fault="op=part-copy,action=delay:300ms")
    save(m, "step_1.pt", old)
    m.wait()
    sent = Sent(m)
    if what == "replaced before":
        store.put("step_1.pt", bytes(other))
    new = changed(old)
    saving = in_thread(lambda: save(m, "step_2.pt", new))
    if what != "replaced before":
        assert eventually(lambda: sent()[1] > 0)
        if what == "replaced meanwhile":
            store.put("step_1.pt", bytes(other))
        else:
            store.delete("step_1.pt")
    saving(120)
    m.wait()
    up, saved = sent()
    assert up + saved == SIZE
    assert (saved == 0) == (what == "replaced before")
    assert md5(store.get("step_2.pt")) == md5(new)
    save(m, "step_3.pt", new)  # the next one has a good predecessor again
    m.wait()
    assert sent()[0] == up
    assert md5(store.get("step_3.pt")) == md5(new)


def test_daemon_killed_in_the_middle(make_mount, store):
    old = content()
    m = make_mount(fault="op=complete,nth=2,count=1000000,action=error:-EIO")
    save(m, "step_1.pt", old)
    m.wait()
    sent = Sent(m)
    new = changed(old)
    save(m, "step_2.pt", new)
    assert eventually(lambda: sum(sent()) >= SIZE / 2)
    m.kill9()
    m.mount(fault=None)
    m.wait()
    assert m.status()["uploaded_bytes"] <= 0.25 * SIZE
    assert md5(store.get("step_2.pt")) == md5(new)
    assert md5((m.path / "step_2.pt").read_bytes()) == md5(new)
    sent = Sent(m)
    save(m, "step_3.pt", new)
    m.wait()
    assert sent() == (0, SIZE)


def test_store_that_cannot_copy_parts(make_mount, store):
    old = content()
    m = make_mount(fault="op=part-copy,action=error:-EOPNOTSUPP")
    save(m, "step_1.pt", old)
    m.wait()
    sent = Sent(m)
    save(m, "step_2.pt", old)
    m.wait()
    assert sent() == (SIZE, 0)
    assert md5(store.get("step_2.pt")) == md5(old)


def test_delta_off_sends_all(make_mount, store):
    old = content()
    m = make_mount(delta="off")
    save(m, "step_1.pt", old)
    m.wait()
    sent = Sent(m)
    save(m, "step_2.pt", old)
    m.wait()
    assert sent() == (SIZE, 0)
