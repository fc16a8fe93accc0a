"""Checkpoints on a mount: kept by rule until newer ones are safe, listed with their state; objects that appear are warmed."""
import json
import os

import pytest
from mounts import MIB, eventually, run


def checkpoints(m, *args):
    lines = run("checkpoints", "--json", *args, env=m.env).stdout.splitlines()
    return [json.loads(line) for line in lines]


def pinned(m, names, folder="ckpt"):
    return [name for name in names if m.info(f"{folder}/{name}")["pinned"]]


def save_steps(m, steps, size=MIB):
    os.makedirs(m.path / "ckpt", exist_ok=True)
    for i in steps:
        path = m.path / f"ckpt/step_{i}.pt"
        path.write_bytes(os.urandom(size))
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def test_newest_stay_pinned_until_newer_ones_are_verified(make_mount):
    names = [f"step_{i}.pt" for i in range(1, 5)]
    m = make_mount(rule="ckpt/**=pin=2")
    save_steps(m, (1, 2))
    m.wait(timeout=60)
    assert eventually(lambda: pinned(m, names[:2]) == names[:2])
    m.options["fault"] = "op=put,action=error:-EIO"
    m.remount()
    save_steps(m, (3, 4))
    assert eventually(lambda: pinned(m, names) == names)  # 3 and 4 are not in the store: 1 and 2 are what there is
    m.kill9()
    m.mount()
    assert eventually(lambda: pinned(m, names) == names)
    m.options["fault"] = None
    m.remount()
    m.wait(timeout=60)
    assert eventually(lambda: pinned(m, names) == names[2:])
    run("evict", m.path / "ckpt", check=False)
    assert [m.info(f"ckpt/{name}")["cached_bytes"] for name in names] == [0, 0, MIB, MIB]
    m.options["rule"] = None
    m.remount()
    assert eventually(lambda: pinned(m, names) == [])


def test_pinned_in_memory_by_rule(make_mount):
    m = make_mount(rule="ckpt/**=close=remote,pin=1,tier=memory", memory_cache="64M")
    save_steps(m, (1, 2), 4 * MIB)
    assert eventually(lambda: pinned(m, ["step_1.pt", "step_2.pt"]) == ["step_2.pt"])
    memory = {t["kind"]: t for t in m.status()["tiers"]}["memory"]
    assert eventually(lambda: memory["used_bytes"] >= 4 * MIB or {t["kind"]: t for t in m.status()["tiers"]}["memory"]["used_bytes"] >= 4 * MIB)
    assert eventually(lambda: [(r["path"], r["pinned"]) for r in checkpoints(m, m.path)] == [("ckpt/step_2.pt", True), ("ckpt/step_1.pt", False)])
    assert checkpoints(m, m.path)[0]["pinned_in"] == "memory"


def test_checkpoints_are_listed_with_their_state(make_mount, store):
    store.put("old/checkpoint-100/model.safetensors", b"12345")
    store.put("old/checkpoint-100/config.json", b"{}")
    m = make_mount(rule="ckpt/**=pin=2")
    save_steps(m, (1, 2))
    m.wait(timeout=60)
    (m.path / "notes").write_bytes(b"no checkpoint")
    rows = {r["path"]: r for r in checkpoints(m, m.path)}
    assert set(rows) == {"old/checkpoint-100", "ckpt/step_1.pt", "ckpt/step_2.pt"}
    old, new = rows["old/checkpoint-100"], rows["ckpt/step_2.pt"]
    assert (old["type"], old["files"], old["bytes"], old["cached_percent"]) == ("directory", 2, 7, 0)
    assert (old["state"], old["safe"], old["pinned"]) == ("verified", True, False)
    assert (new["type"], new["bytes"], new["cached_percent"], new["state"], new["safe"]) == ("file", MIB, 100, "verified", True)
    assert eventually(lambda: all(r["pinned"] for r in checkpoints(m, m.path / "ckpt")))
    assert [r["path"] for r in checkpoints(m, m.path / "ckpt")] == ["ckpt/step_2.pt", "ckpt/step_1.pt"]  # the newest first
    m.remount(fault="op=put,action=error:-EIO")
    save_steps(m, (3,))
    first = checkpoints(m, m.path / "ckpt")[0]
    assert first["path"] == "ckpt/step_3.pt" and first["state"] in ("dirty", "uploading") and not first["safe"]
    table = run("checkpoints", m.path).stdout.splitlines()
    assert table[0].split() == ["TIME", "SIZE", "STATE", "CACHED", "PINNED", "SAFE", "NAME"]
    assert f"{m.path}/old/checkpoint-100/" in "\n".join(table)
    assert "step_3.pt" in run("checkpoints", check=False).stdout  # of all mounts, others' too


def test_checkpoints_says_what_is_wrong(mount, base):
    assert run("checkpoints", mount.path).stdout == "no checkpoints\n"
    done = run("checkpoints", mount.path / "none", check=False)
    assert done.returncode == 1 and "none" in done.stderr
    (mount.path / "file").write_bytes(b"")
    assert run("checkpoints", mount.path / "file", check=False).returncode == 1
    assert run("checkpoints", base, check=False).returncode == 1
    assert run("checkpoints", "a", "b", check=False).returncode == 2


def test_torch_keeps_the_last_two_of_a_loop(make_mount, store):
    torch = pytest.importorskip("torch")
    m = make_mount(rule="ckpt/**=pin=2,close=local")
    (m.path / "ckpt").mkdir()
    for step in range(5):
        state = {"step": step, "weights": torch.full((200_000,), float(step))}
        torch.save(state, m.path / "ckpt/tmp_save.tmp")
        os.replace(m.path / "ckpt/tmp_save.tmp", m.path / f"ckpt/step_{step}.pt")
    m.wait(timeout=120)
    names = [f"step_{i}.pt" for i in range(5)]
    assert eventually(lambda: pinned(m, names) == names[-2:])
    assert [r["path"] for r in checkpoints(m, m.path / "ckpt")] == [f"ckpt/{name}" for name in reversed(names)]
    assert all(r["safe"] for r in checkpoints(m, m.path / "ckpt"))
    run("evict", m.path / "ckpt", check=False)
    m.remount(fault="op=any,action=error:-EIO", op_timeout="3s")
    again = torch.load(m.path / "ckpt/step_4.pt")
    assert again["step"] == 4 and torch.equal(again["weights"], torch.full((200_000,), 4.0))


def test_what_appears_in_the_store_is_warmed(make_mount, store):
    store.put("models/old.bin", b"was there")
    store.put("other/old.bin", b"was there")
    m = make_mount(on_create="models/**=warm", metadata_ttl="0", negative_ttl="0")
    for name in ("models", "other"):
        assert os.listdir(m.path / name) == ["old.bin"]
        store.put(f"{name}/new.bin", os.urandom(MIB))
        store.put(f"{name}/llama/part-1", os.urandom(MIB))
        os.listdir(m.path / name)
    assert eventually(lambda: m.info("models/new.bin")["cached_bytes"] == MIB)
    assert eventually(lambda: m.info("models/llama/part-1")["cached_bytes"] == MIB)
    assert m.info("models/old.bin")["cached_bytes"] == 0  # it was there when the directory was listed first
    assert m.info("other/new.bin")["cached_bytes"] == 0
    store.put("models/old.bin", b"another version")
    os.listdir(m.path / "models")
    assert eventually(lambda: m.info("models/old.bin")["cached_bytes"] == 15)


def test_new_directory_is_looked_through_for_what_a_rule_means(make_mount, store):
    store.put("models/old/a.safetensors", b"was there")
    m = make_mount(on_create="models/**/*.safetensors=warm", metadata_ttl="0", negative_ttl="0")
    assert os.listdir(m.path / "models") == ["old"]
    store.put("models/new/a.safetensors", os.urandom(MIB))
    store.put("models/new/step/b.safetensors", os.urandom(MIB))
    store.put("models/new/a.log", os.urandom(MIB))
    assert sorted(os.listdir(m.path / "models")) == ["new", "old"]
    assert eventually(lambda: m.status()["downloaded_bytes"] >= 2 * MIB)  # nobody looks into it
    assert m.info("models/new/a.safetensors")["cached_bytes"] == MIB
    assert m.info("models/new/step/b.safetensors")["cached_bytes"] == MIB
    assert m.info("models/new/a.log")["cached_bytes"] == 0
    assert m.info("models/old/a.safetensors")["cached_bytes"] == 0


@pytest.mark.slow
def test_of_very_many_the_newest_are_shown_and_what_is_pinned(make_mount):
    m = make_mount(rule="many/**=local-only")
    (m.path / "many").mkdir()
    (m.path / "late").mkdir()  # looked at when the newest were cut for the first time
    for i in range(20_100):
        os.close(os.open(m.path / f"many/{i:05}.pt", os.O_CREAT | os.O_WRONLY))
    for name in ("pinned.pt", "other.pt"):
        (m.path / "late" / name).write_bytes(b"x")
        os.utime(m.path / "late" / name, (1_000_000_000, 1_000_000_000))
    run("pin", m.path / "late/pinned.pt")
    rows = checkpoints(m, m.path)
    shown = [r["path"] for r in rows if r["event"] == "checkpoint"]
    assert len(shown) == 10_000 and shown[0] == "many/20099.pt" and shown[-2:] == ["many/10101.pt", "late/pinned.pt"]
    assert [r["message"] for r in rows if r["event"] == "warning"] == ["only 10000 are shown, what is pinned and the newest: name a folder"]
