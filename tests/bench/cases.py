"""How each case of rows.py is measured: a function (bench, side, row) that gives {key: sample} for one run of one side.

A case leaves nothing behind that the next one could find warm: it begins with side.cold(), and the caller closes the side after it.
"""
import json
import time

import pages
from measure import HERE, KIB, MIB, MemoryLimit, Failed, io, measured, memory_mib, program, run


def write(bench, side, row):
    which, block = row.args
    key, size = bench.new_name(side), bench.lake.size_of(which)
    took, closed = {}, []

    def written():
        sample = io("write", side.root / key, size, block)
        closed.append(time.monotonic())
        return side.note_upload(sample)

    def whole():
        with side.load():
            took["close"] = measured(side, written)
        side.wait_visible(key, size)
        return {"seconds": took["close"]["seconds"] + time.monotonic() - closed[0]}

    side.cold(row.link, row.options)
    try:
        took["visible"] = measured(side, whole)
        side.check_object(key, size)
    finally:
        side.forget(key)
    return took


def read(bench, side, row):
    which = row.args[0]
    side.cold(row.link, row.options)
    path, size = side.root / which, bench.lake.size_of(which)
    took = {key: measured(side, lambda: io("read", path, MIB)) for key in ("cold", "warm")}
    io("check-files", side.root, bench.lake.list_file(which), size)
    return took


def ls(bench, side, row):
    which = row.args[0]
    side.cold(row.link, row.options)
    return {key: list_all(bench, side, which) for key in ("cold", "warm")}


def list_all(bench, side, which):
    """ls -lR; the sum of the sizes that it prints must be right."""
    out = side.work / "ls"
    sample = measured(side, lambda: program("ls", "-lR", side.root / which, stdout=out))
    rows = [line.split() for line in out.read_text().splitlines() if line.startswith("-")]
    names = bench.lake.names(which)
    if len(rows) != len(names) or any(int(r[4]) != bench.lake.size_of(which) for r in rows):
        raise Failed(f"ls shows {len(rows)} files of {len(names)}, or wrong sizes")
    return sample


def small(bench, side, row):
    names = bench.lake.list_file("small", bench.sizes.small_n)
    side.cold(row.link, row.options)
    took = {key: measured(side, lambda: io("files", side.root, names, 1, 0)) for key in ("cold", "warm")}
    io("check-files", side.root, names, bench.sizes.small)
    return took


def warm(bench, side, row):
    path, s = side.root / "huge", bench.sizes
    side.cold(row.link, row.options)
    for _ in range(2):  # into the cache disk, then into the page cache
        io("read", path, MIB)
    took = {"seq": measured(side, lambda: io("read", path, MIB)),
            "mmap": measured(side, lambda: io("mmap", path)),
            "rand-128k": measured(side, lambda: io("rand", path, 128 * KIB, s.rand_128k, 1)),
            "rand-4k": measured(side, lambda: io("rand", path, 4 * KIB, s.rand_4k, 2))}
    pages.machine.drop()
    took["dropped"] = measured(side, lambda: io("read", path, MIB))
    io("check-files", side.root, bench.lake.list_file("huge"), s.huge)
    return took


def publish(bench, side, row):
    key, size = bench.new_name(side), bench.lake.size_of(row.args[0])

    def whole():
        sample = io("write", side.root / key, size, MIB)
        written = time.monotonic()
        side.settle()
        side.wait_visible(key, size)
        return dict(sample, seconds=sample["seconds"] + time.monotonic() - written)

    side.cold(row.link, row.options)
    try:
        took = {"verified": measured(side, whole)}
        side.check_object(key, size)
    finally:
        side.forget(key)
    return took


def preads(bench, side, row):
    side.cold(row.link, row.options)
    what = (side.root / "big", 64 * KIB, bench.sizes.preads, 3)
    sample = measured(side, lambda: io("rand", *what))
    side.note_download(sample)
    io("check-rand", *what)
    return {"": sample}


def mixed(bench, side, row):
    size, written = bench.sizes.mixed, [f"mixed-{i}" for i in range(0, 32, 2)]
    side.cold(row.link, row.options)
    names = side.work / "mixed"
    names.write_text("".join(name + "\n" for name in written))
    for _ in range(2):
        io("read", side.root / "big", MIB)
    try:
        with side.load():
            sample = measured(side, lambda: side.note_upload(io("mixed", side.root, side.root / "big", 16, size)))
        took = {"": sample, "memory": {"MiB": sample.get("daemon_peak_mib"), "mode": sample["mode"]}}
        io("check-files", side.root, names, size)
    finally:
        side.forget(*written)
    return took


def torch(bench, side, row):
    key, mib = bench.new_name(side), bench.sizes.torch_mib

    def client(verb):
        return json.loads(run("/usr/bin/python3", HERE / "torch_client.py", verb, side.root / key, mib))

    side.cold(row.link, row.options)
    try:
        took = {"save": measured(side, lambda: client("save"))}
        if "pin" in row.args:
            side.pin(key, mib * MIB)
        took["load"] = measured(side, lambda: client("load"))
    finally:
        side.forget(key)
    return took


def epoch(bench, side, row):
    names, size = bench.lake.list_file("small"), bench.sizes.small * bench.sizes.epoch_n
    side.cold(row.link, row.options)
    for _ in range(2):  # into the cache disk, then into the page cache
        io("files", side.root, names, 16, 0)
    if "limited" not in row.args:
        if "stale" in row.args:
            time.sleep(1.1)
        took = {"": measured(side, lambda: io("files", side.root, names, 4, 5))}
    else:
        pages.machine.drop()
        with MemoryLimit(max(size // 2, 256 * MIB), side.pids()) as prefix:
            took = {"": measured(side, lambda: io("files", side.root, names, 4, 5, prefix=prefix))}
    io("check-files", side.root, names, bench.sizes.small)
    return took


def metadata(bench, side, row):
    which = row.args[0]
    names, size = bench.lake.list_file(which), bench.lake.size_of(which)
    side.cold(row.link, row.options)
    list_all(bench, side, which)
    took = {"stat": measured(side, lambda: io("stat", side.root, names, size)),
            "readdir": measured(side, lambda: io("walk", side.root / which))}
    if took["readdir"]["files"] != len(bench.lake.names(which)):
        raise Failed(f"readdir shows {took['readdir']['files']} files")
    side.restart()
    took["restart"] = list_all(bench, side, which)
    return took


def idle(_bench, side, row):
    side.cold(row.link, row.options)
    time.sleep(1)
    return {"": {"MiB": memory_mib(side.pids(), "VmRSS")}}
