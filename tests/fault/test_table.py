"""The table of README.md: each row is there, and the tests that it names are. Needs no gateway."""
import subprocess
import sys

from mounts import ROOT


def test_each_row_names_tests_that_exist():
    done = subprocess.run([sys.executable, ROOT / "tests/lint/tidy.py", "rows"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
