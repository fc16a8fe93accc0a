"""The table of what is measured. One Row is one line of the result; rows of the same case, arguments and options are measured together."""
import dataclasses

from measure import GIB, KIB, MIB

MOUNTED = ("native", "s3fs", "rclone", "sluice")
OURS = ("native", "sluice")


@dataclasses.dataclass(frozen=True)
class Sizes:
    big: int
    huge: int
    mixed: int        # bytes of each of 16 writers and 16 readers
    torch_mib: int
    small_n: int      # files of 100 KiB: the first small_n of the epoch's
    epoch_n: int
    tree_n: int       # files of `tiny` bytes in 100 directories
    many_n: int
    rand_128k: int    # reads
    rand_4k: int
    preads: int
    part: int = 8 * MIB  # raw transfers of a big file
    small: int = 100 * KIB
    tiny: int = 100


FULL = Sizes(big=GIB, huge=2 * GIB, mixed=64 * MIB, torch_mib=1024, small_n=2000, epoch_n=20000, tree_n=10000, many_n=100000,
             rand_128k=16384, rand_4k=262144, preads=100)
QUICK = Sizes(big=16 * MIB, huge=16 * MIB, mixed=MIB, torch_mib=8, small_n=20, epoch_n=100, tree_n=100, many_n=200,
              rand_128k=64, rand_4k=512, preads=10,
              part=2 * MIB)


@dataclasses.dataclass(frozen=True)
class Raw:
    """What objbench and curl do beside a row: total bytes as objects, or as parts of one, of that size by that many threads; of several numbers the fastest counts."""
    op: str
    object: int
    total: int
    threads: tuple


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    title: str
    case: str              # function of cases.py
    key: str               # which of its results
    warm: str              # what is in which cache when the clock starts
    needs: tuple = ()      # data sets
    args: tuple = ()
    sides: tuple = MOUNTED
    of: str = "sluice"     # the side that is compared ...
    base: tuple = ()       # ... with the fastest of these; ("slowest", A, B): with the slower of two
    bar: float = 0         # base seconds / side seconds must be at least this; 0: no bar
    limit: float = 0       # in the row's unit: the side may take at most this; 0: no limit. A row has a bar or a limit
    also: tuple = ()       # compared with the fastest of these too ...
    also_bar: float = 0    # ... whose seconds / side seconds must be at least this; 0: no bar
    fetch: float = 0       # bytes fetched / bytes read may be at most this; 0: any
    stored: float = 0      # of what the raw PUT stores in the time of the write, so much must be stored at its end; 0: any
    link: str = "near"     # or "far", behind the delaying relay
    options: tuple = ()    # of sluice mount
    requires: tuple = ()   # (verb, text of its --help): else the row is skipped
    raw: Raw | None = None
    unit: str = "s"        # or "MiB": the daemon's memory
    past_daemon: bool = False  # its bytes go by passthrough where the mount can: else the run has failed

    def group(self):
        return (self.case, self.args, self.link, self.options) if self.sides else self.name


NEW = "nothing: new mount, empty cache directory, page cache dropped"
PAGES = "page cache, cache disk, dentries"
DISK = "cache disk; page cache and dentries dropped"
PEERS = ("s3fs", "rclone")
FIRST = {"also": PEERS, "also_bar": 1}
PAST = {"past_daemon": True}
BUSY = "native+put"  # the upload goes on while Sluice writes: the disk is measured with one beside it that sends as many bytes a second


def issue_rows(s):
    """Four sides: a big file written and read, a tree listed, small files read."""
    big, few = f"{s.big // MIB} MiB", f"{s.small_n} x 100 KiB"
    ranges, files = Raw("get", s.part, s.big, (8,)), Raw("get", s.small, s.small * s.small_n, (16,))
    tree, read = ("tree",), ("big",)
    yield Row("write-close", f"write {big} by 1 MiB, until close returns", "write", "close", NEW, args=("big", MIB),
              sides=(*MOUNTED, BUSY), base=(BUSY,), bar=0.9, **FIRST, **PAST)
    yield Row("write-visible", f"write {big}, until the object is visible", "write", "visible", NEW, args=("big", MIB),
              sides=MOUNTED[1:], base=("raw",), bar=0.87, raw=Raw("put-part", s.part, s.big, (8,)), **FIRST)
    yield Row("read-cold", f"read {big} by 1 MiB, cold", "read", "cold", NEW, read, read, base=("raw",), bar=0.91, raw=ranges, **FIRST)
    yield Row("read-warm", f"read {big} by 1 MiB again", "read", "warm", PAGES, read, read, base=("native",), bar=0.95, **FIRST, **PAST)
    yield Row("ls-cold", f"ls -lR of {s.tree_n} files, cold", "ls", "cold", NEW, tree, tree, base=PEERS, bar=1)
    yield Row("ls-warm", f"ls -lR of {s.tree_n} files again", "ls", "warm", PAGES, tree, tree, base=PEERS, bar=1)
    yield Row("small-cold", f"read {few} one after the other, cold", "small", "cold", NEW, ("small",), base=PEERS, bar=1, also=("raw",),
              raw=files)
    yield Row("small-warm", f"read {few} one after the other again", "small", "warm", PAGES, ("small",), base=("native",), bar=0.9,
              **FIRST)
    far = {"sides": MOUNTED[1:], "base": ("raw",), "link": "far", **FIRST}
    yield Row("read-cold-far", f"read {big} by 1 MiB, cold, 30 ms away", "read", "cold", NEW, read, read,
              raw=dataclasses.replace(ranges, threads=(8, 16, 32)), bar=0.87, **far)
    yield Row("small-cold-far", f"read {few} one after the other, cold, 30 ms away", "small", "cold", NEW, ("small",), raw=files, bar=0.77, **far)


def file_rows(s):
    """One big file: warm reads, writes, publishing, random reads of a cold one."""
    huge, ours = f"{s.huge // MIB} MiB", {"base": ("native",), **FIRST, **PAST}
    for key, title, warm, bar in (("seq", f"read {huge} by 1 MiB", PAGES, 0.95), ("mmap", f"mmap and scan {huge}", PAGES, 0.95),
                                  ("rand-128k", f"{s.rand_128k} random reads of 128 KiB", PAGES, 0.9),
                                  ("rand-4k", f"{s.rand_4k} random reads of 4 KiB", PAGES, 0.75),
                                  ("dropped", f"read {huge} by 1 MiB from the disk", DISK, 0.95)):
        yield Row("warm-" + key, title, "warm", key, warm, ("huge",), bar=bar, **ours)
    for name, block, bar in (("1m", MIB, 0.9), ("64k", 64 * KIB, 0.75), ("4k", 4 * KIB, 0.7)):
        yield Row("write-" + name, f"write {huge} by {block // KIB} KiB, until close returns", "write", "close", NEW, args=("huge", block),
                  sides=(*MOUNTED, BUSY), base=(BUSY,), bar=bar, stored=0.5, raw=Raw("put-part", s.part, s.huge, (8,)), **FIRST, **PAST)
    yield Row("publish", f"write {s.big // MIB} MiB, from the first write until visible and verified", "publish", "verified", NEW,
              args=("big",), base=("slowest", "native", "raw"), bar=0.87, raw=Raw("put-part", s.part, s.big, (8,)), **FIRST)
    for link, tail in (("near", ""), ("far", ", 30 ms away")):
        yield Row("preads" + ("" if link == "near" else "-far"), f"{s.preads} random reads of 64 KiB, cold{tail}", "preads", "", NEW,
                  ("big",), sides=MOUNTED[1:], base=("raw",), bar=0.77, fetch=4, link=link, **FIRST,
                  raw=Raw("get", 64 * KIB, 64 * KIB * s.preads, (1,)))
    yield Row("mixed", f"16 writers and 16 readers of {s.mixed // MIB} MiB each", "mixed", "", "the file read: " + PAGES, ("big",),
              sides=(*MOUNTED, BUSY), base=(BUSY,), bar=0.9, **FIRST, **PAST)
    yield Row("mixed-memory", f"peak memory of the daemon under 16 writers and 16 readers of {s.mixed // MIB} MiB each", "mixed", "memory",
              "the file read: " + PAGES, ("big",), sides=("sluice",), limit=512, unit="MiB")


def torch_rows(s):
    saved = f"a checkpoint of {s.torch_mib} MiB"
    yield Row("torch-save", f"torch.save of {saved}, until it returns", "torch", "save", NEW, base=("native",), bar=0.91, also=PEERS, also_bar=1.5, **PAST)
    yield Row("torch-load", f"torch.load of {saved} just saved", "torch", "load", "the file as saved", base=("native",), bar=0.95, **FIRST, **PAST)
    memory = ("--memory-cache", f"{2 * s.torch_mib}M")
    yield Row("torch-load-pinned", f"torch.load of {saved} pinned in memory", "torch", "load", "sluice: memory tier, page cache dropped; native: page cache",
              args=("pin",), sides=OURS, base=("native",), bar=0.95, options=memory, requires=("mount", "--memory-cache"), **PAST)


def tree_rows(s):
    """Many files: epochs over small ones, and their metadata."""
    title, ours = f"an epoch of {s.epoch_n} x 100 KiB, shuffled, 4 threads", {"base": ("native",), **FIRST}
    variants = (("epoch", "", PAGES, (), (), (), 0.45),
                ("epoch-stale", ", --metadata-ttl 1s run out", PAGES + "; listings too old", ("stale",), ("--metadata-ttl", "1s"), (), 0.45),
                ("epoch-immutable", ", --immutable", PAGES, (), ("--immutable",), ("mount", "--immutable"), 0.9),
                ("epoch-memory", ", half of it fits into memory", DISK, ("limited",), (), (), 0.45))
    for name, tail, warm, args, options, requires, bar in variants:
        others = {} if name == "epoch" else {"sides": OURS, "also": (), "also_bar": 0}  # they have no such options
        yield Row(name, title + tail, "epoch", "", warm, ("small",), args, options=options, requires=requires, bar=bar, **{**ours, **others})
    known = "metadata of all files known, dentries"
    yield Row("stat", f"stat of {s.many_n} known files", "metadata", "stat", known, ("many",), ("many",), bar=0.95, **ours)
    yield Row("readdir", f"readdir of {s.many_n} known files", "metadata", "readdir", known, ("many",), ("many",), bar=1, **ours)
    yield Row("ls-restart", f"first ls -lR of {s.many_n} files after a restart", "metadata", "restart",
              "cache disk with metadata; page cache and dentries dropped", ("many",), ("many",), bar=0.5, **ours)
    yield Row("idle", "memory of an idle daemon", "idle", "", NEW, sides=MOUNTED[1:], base=PEERS, limit=64, unit="MiB")


def raw_rows(s):
    """The client code without a filesystem against curl -Z, and what the relay does to both."""

    def raw(name, title, *what, link="near", bar=0.9):
        return Row(name, title, "", "", "nothing", sides=(), of="raw", base=("curl",), bar=bar, raw=Raw(*what), link=link)
    part = f"{s.part // MIB} MiB objects, 8 at a time"
    yield raw("raw-put", f"write {part}", "put", s.part, s.big, (8,))
    yield raw("raw-put-part", f"write {s.part // MIB} MiB parts, 8 at a time", "put-part", s.part, s.big, (8,))
    yield raw("raw-get", f"read {part}", "get", s.part, s.big, (8,))
    yield raw("raw-small", "read 100 KiB objects, 16 at a time", "get", s.small, s.small * s.small_n, (16,))
    for link, where in (("near", "directly"), ("far", "behind the relay")):
        yield raw("delay-" + link, f"read {s.preads} x 4 KiB, one at a time, {where}", "get", 4 * KIB, 4 * KIB * s.preads, (1,), link=link,
                  bar=0)
        yield raw("rate-" + link, f"read {s.big // 8 // MIB} MiB objects, 8 at a time, {where}", "get", s.big // 8, s.big, (8,), link=link,
                  bar=0)


def all_rows(sizes):
    return [row for part in (issue_rows, file_rows, torch_rows, tree_rows, raw_rows) for row in part(sizes)]
