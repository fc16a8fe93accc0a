"""The measurements of many names, with few of them: every row is there, and what must be 0 is."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
def test_every_row_is_measured(tmp_path):
    done = subprocess.run([sys.executable, HERE / "scale.py", "--dirs", "5", "--files", "20", "--flat", "300", "--fill", "2000", "--threads", "2", "--dir", tmp_path],
                          capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 5 + 6 + 1 + 5 + 1 + 6 + 5
    asked = [r for r in rows if "requests of the second mount" in r[0]]
    assert len(asked) == 2 and all(r[1] == "0" for r in asked)
    assert any("(0 requests)" in r[0] for r in rows)
    assert not list(tmp_path.iterdir())
