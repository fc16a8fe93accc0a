"""The measurements of many names, with few of them: every row is there, and what must be 0 is."""
import os
import pathlib
import re
import subprocess
import sys
import uuid

import pytest

HERE = pathlib.Path(__file__).resolve().parent
NIGHT = bool(os.environ.get("SLUICE_NIGHT"))
pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")


def scale(base, timeout, **options):
    args = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, HERE / "scale.py", *args, "--dir", base], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]


def bucket():
    import boto3
    from botocore.config import Config

    name = "scale-" + uuid.uuid4().hex[:12]
    boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"], config=Config(s3={"addressing_style": "path"})).create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.mark.parametrize("where", ["directory", "gateway"])
def test_every_row_is_measured(tmp_path, where):
    if where == "gateway" and "S3_ENDPOINT" not in os.environ:
        pytest.skip("needs the gateway")
    source = {"source": bucket()} if where == "gateway" else {}
    rows = scale(tmp_path, 240, dirs=5, files=20, flat=300, fill=2000, threads=2, **source)
    assert len(rows) == 5 + 6 + 1 + 5 + 1 + 6 + 8
    asked = [r for r in rows if "requests of the second mount" in r[0]]
    assert len(asked) == 2 and all(r[1] == "0" for r in asked)
    assert any("(0 requests)" in r[0] for r in rows)
    judged = [r for r in rows if len(r) > 4 and r[4]]
    assert len(judged) == 5 + 6 + 1 + 4 and all(r[5:] in (["yes"], ["**no**"]) for r in judged), judged
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(7200 if NIGHT else 240)
def test_memory_does_not_grow_with_the_lake(tmp_path):
    rows = scale(tmp_path, 7000 if NIGHT else 200, dirs=0, flat=0, fill=10_000_000 if NIGHT else 100_000)
    memory = [(r[0], int(mib)) for r in rows if "memory" in r[0] for mib in re.findall(r"(\d+) MiB", r[1])]
    assert len(memory) == 2 + 2 + 2 + 2
    assert all(mib <= 300 for _, mib in memory), memory
