"""The shrinking of test_model.py: a fault that is planted is found, and comes out with the few steps that it needs."""
import re

import model
import model_bytes
import pytest
from test_model import run_of

LIMIT_S = 100


class Floor:
    """Where step 500 lays what step 700 slips on; "late": it is found at the end only."""

    def __init__(self, late):
        self.laid, self.late, self.found = False, late, False

    def do(self, step):
        self.laid |= step == ("lay",)
        self.found |= step == ("slip",) and self.laid
        if self.found and not self.late:
            raise model.Diverged("slipped")

    def check_log(self):
        if self.found:
            raise model.Diverged("slipped")

    def last_words(self):
        return ""

    def finish(self):
        pass


def shrunk(make_run, steps):
    """The steps that are left of a run that has to fail."""
    with pytest.raises(AssertionError) as e:
        model.check(make_run, steps, LIMIT_S)
    text = str(e.value)
    left = re.search(r"^shrunk to (\d+) steps:\n\[\n(.*)\n\]\nwhich say: \(", text, re.M | re.S)
    assert left, text
    lines = [line.strip() for line in left[2].split("\n")]
    assert len(lines) == int(left[1])
    return lines


@pytest.mark.parametrize("late", [False, True])
def test_two_steps_are_left_of_a_thousand(late):
    steps = [("walk", i) for i in range(1000)]
    steps[100] = steps[700] = ("slip",)
    steps[500] = ("lay",)
    assert shrunk(lambda: Floor(late), steps) == ["('lay',),", "('slip',),"]


def test_a_run_without_a_fault_says_nothing():
    model.check(lambda: Floor(False), [("slip",), ("lay",)], LIMIT_S)


class Planted(model_bytes.Bytes):
    def do_lay(self):
        """A byte more than was asked for."""
        with open(self.at("f"), "ab") as f:
            f.write(b"x")


def test_a_fault_on_a_mount_comes_out_with_few_steps(run_of):
    steps = [step for step in model_bytes.steps_of(3, 60) if step[0] not in ("kill", "takeover", "remount", "arm")]
    steps[len(steps) // 2] = ("lay",)
    options = {"passthrough": "on", "fault": None, "part_size": "256K"}
    left = shrunk(run_of(Planted, options), steps)
    assert "('lay',)," in left
    assert len(left) <= 3, left


__all__ = ["run_of"]
