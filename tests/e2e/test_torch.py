"""torch on a lake: checkpoints and data sets."""
import io
import os
import random

import pytest
from mounts import MIB, QUICK
from stores import md5

torch = pytest.importorskip("torch")


def test_checkpoint_is_saved_streamed_and_reloaded_without_the_store(mount, store):
    size = (64 if QUICK else 512) * MIB
    state = {"step": 7, "weights": torch.arange(size // 4, dtype=torch.float32)}
    torch.save(state, mount.path / "ckpt.pt")
    mount.wait(timeout=200)
    raw = store.get("ckpt.pt")
    assert md5(raw) == md5((mount.path / "ckpt.pt").read_bytes())
    assert torch.equal(torch.load(io.BytesIO(raw))["weights"], state["weights"])
    mount.remount(fault="op=any,action=error:-EIO", op_timeout="3s")
    again = torch.load(mount.path / "ckpt.pt")
    assert again["step"] == 7 and torch.equal(again["weights"], state["weights"])


class Files(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(os.path.join(root, n) for n in os.listdir(root))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as f:
            return md5(f.read())


def test_epoch_over_small_files(mount, store):
    n = 200 if QUICK else 2000
    rng = random.Random(3)
    want = {}
    for i in range(n):
        data = rng.randbytes(rng.randrange(1, 20000))
        store.put(f"data/{i:05}", data)
        want[i] = md5(data)
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Files(mount.path / "data"), batch_size=16, num_workers=2)
        got = [digest for batch in loader for digest in batch]
        assert got == [want[i] for i in range(n)]
