#!/usr/bin/python3
"""torch_client.py save|load PATH MIB - torch.save of a checkpoint of that size, or torch.load of it, checked; prints seconds as JSON."""
import json
import sys
import time

import torch

verb, path, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
want = torch.arange(mib << 18, dtype=torch.float32).mul_(0.5).add_(1)  # 4 bytes each; in place: no memory is freed right before the clock starts
cpu, start = time.process_time(), time.monotonic()
if verb == "save":
    torch.save({"step": 1, "weights": want}, path)
    got = want
else:
    got = torch.load(path)["weights"]
seconds, cpu = time.monotonic() - start, time.process_time() - cpu
assert torch.equal(got, want), f"{path}: wrong content"
print(json.dumps({"seconds": seconds, "client_cpu": round(cpu, 3), "bytes": want.numel() * 4}))
