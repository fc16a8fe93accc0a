"""Root of a user namespace may mount, and has no CAP_SYS_ADMIN where it counts: nothing is passed through to the cache disk, and all else is as ever."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from mounts import SLUICE

HERE = pathlib.Path(__file__).parent
# Of other files, run here once more.
SAME = """
test_bytes.py::test_file_of_every_size_is_published_as_written
test_bytes.py::test_objects_of_other_tools_are_read_whole_and_in_parts
test_bytes.py::test_edit_in_the_middle_of_a_cold_object
test_bytes.py::test_append_and_truncate_of_a_cold_object
test_bytes.py::test_who_opens_for_reading_can_empty_a_file
test_bytes.py::test_safetensors_like_file_is_mapped
test_bytes.py::test_sparse_copies_of_a_half_cached_file_are_true
test_bytes.py::test_no_hole_is_told_where_a_map_has_written
test_bytes.py::test_redirection_duplicates_and_inheritance
test_bytes.py::test_opening_while_it_is_published
test_passthrough.py::test_a_large_file_is_served_at_once_and_passed_through_when_complete
test_passthrough.py::test_a_new_file_is_written_by_the_kernel_and_streamed
test_passthrough.py::test_parts_that_were_rewritten_after_they_were_streamed_are_sent_again
test_passthrough.py::test_a_change_through_us_after_the_kernel_wrote
test_passthrough.py::test_killed_while_the_kernel_writes
test_passthrough.py::test_many_writers_at_once
test_passthrough.py::test_writers_that_seek_and_preallocate
""".split()


def without_rights(*command):
    """Runs a command as root of namespaces of its own. Which tests there is time for was said for this one."""
    env = {k: v for k, v in os.environ.items() if k not in ("SLUICE_DEADLINE", "SLUICE_TURN", "SLUICE_SHARE")}
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", *map(str, command)], capture_output=True, text=True,
                          timeout=200, stdin=subprocess.DEVNULL, check=False, env=env)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize("name", SAME)
def test_the_same_is_true_without_rights(name):
    done = without_rights(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def test_status_says_so_before_any_file_is_opened(base):
    for name in ("lake", "mnt"):
        (base / name).mkdir()
    script = """set -e
"$1" mount "file://$2/lake" "$2/mnt" --cache-dir "$2/cache" --log-file "$2/log"
"$1" status --json "$2/mnt"; "$1" umount "$2/mnt" """
    done = without_rights("bash", "-c", script, "-", SLUICE, base)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["passthrough"], status["passthrough_off_because"]) == (False, "no CAP_SYS_ADMIN")
