"""Programs on two mounts of one bucket write and read the same files at once: two_mounts.py says what they may count on."""
import os
import random

import pytest
import two_mounts
from mounts import NIGHT, QUICK

SEED = int(os.environ.get("SLUICE_SEED", random.randrange(1 << 32) if NIGHT else 1))
STEPS = 100000 if NIGHT else 600 if QUICK else 3000
SECONDS = 1500 if NIGHT else 15  # a slow machine does fewer steps
OPTIONS = [{"close": "buffered"}, {"close": "remote"}, {"close": "local", "passthrough": "off"}]
pytestmark = pytest.mark.timeout(3600 if NIGHT else 240)


@pytest.mark.parametrize("closes", ["buffered", "mixed"])
def test_versions_are_whole_in_order_and_never_lost(make_mount, store, closes):
    rng = random.Random(SEED)
    sides = OPTIONS[:1] * 2 if closes == "buffered" else [OPTIONS[1], rng.choice(OPTIONS)]
    small = {"part_size": "64K"} if store.kind == "file" else {}
    print("seed", SEED, sides, flush=True)
    if closes == "buffered":  # what nobody has read is not here, and may be gone with the version it belongs to
        small.update(open_fill="0", prefetch="off")
    (a, b) = [make_mount(name, order="none", settle="0s", metadata_ttl="1s", **small, **options)
              for name, options in zip("ab", sides)]
    for name in ("d", "lost"):
        (a.path / name).mkdir()
    a.wait()
    race = two_mounts.Race(a, b, store, SEED, files=40, whole=closes == "mixed")
    race.run(STEPS, threads=3, seconds=SECONDS)
    race.check()
