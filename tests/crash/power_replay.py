"""What a power cut leaves of a recorded folder (power_record.c), for any cut and any choice of what had not reached the disk yet.

The model. It allows all that ext4 with data=ordered and delayed allocation allows (and XFS), and some more:

 - Names, truncations, holes and attributes reach the disk in the order in which they were made (one journal): a cut leaves all of them up to some point, and none
   after it. The point is not before what was synced: fsync of a file brings the journal up to the last change of its inode (making, renaming, linking and removing
   names of it included), fdatasync up to its making and its last change of size, fsync of a directory up to the last change of its names.
   ext4 would write out all that is before; that is left to chance here.
 - Bytes reach the disk page by page in any order, whenever the kernel likes, and for certain at fsync or fdatasync of their file. Of the writes to a page that
   were not synced some first ones are there, and the rest not; a page that was being written is torn at 512 bytes.
 - A file is as long as what the journal tells: where its size is there and its bytes are not, it has zeros (blocks that were allocated and not written). So a file
   may have its size without data, its end without its middle, and its name, also that of another file it replaced, without either.
 - sync_file_range promises nothing. The lake is another machine: nothing of it is lost.

A choice is a style and a seed. `worst`: nothing that was not synced; `best`: everything; `names`: all names and sizes, no bytes; `prefix`: for each file its writes up to
some moment; `mixed`: any of these for each file, the journal up to any point.
"""
import os
import random
import struct

PAGE, SECTOR, HEAD = 4096, 512, 4096
RECORD = struct.Struct("=6I4Q")
KINDS = ("", "note", "create", "mkdir", "write", "truncate", "punch", "rename", "unlink", "rmdir", "link", "setxattr", "delxattr",
         "fsync", "fdatasync", "utimes", "snapshot", "strange")
STYLES = ("worst", "best", "names", "prefix", "mixed")


class Event:
    __slots__ = ("kind", "a", "b", "data", "ino", "off", "len", "when")

    def __repr__(self):
        return f"{self.kind} {self.a} {self.b} ino={self.ino} off={self.off} len={self.len} data={len(self.data)}"


def read_log(path):
    """The events of a log."""
    with open(path, "rb") as f:
        _, used, overflow = struct.unpack("=3Q", f.read(24))
        f.seek(HEAD)
        raw = f.read(used - HEAD)
    assert overflow == 0, "the log was too small"
    events, at = [], 0
    while at < len(raw):
        size, kind, a, b, n, _, ino, off, length, when = RECORD.unpack_from(raw, at)
        e, p = Event(), at + RECORD.size
        e.kind, e.ino, e.off, e.len, e.when = KINDS[kind], ino, off, length, when
        e.a, e.b, e.data = raw[p:p + a].decode(), raw[p + a:p + a + b].decode(), raw[p + a + b:p + a + b + n]
        events.append(e)
        at += size
    return events


def move(by_path, old, new):
    """What is at a path and below it."""
    for path in [p for p in by_path if p == old or p.startswith(old + "/")]:
        by_path[new + path[len(old):]] = by_path.pop(path)


def apply(data, kind, off, payload):
    """One change of a file's bytes."""
    if kind == "truncate":
        if off < len(data):
            del data[off:]
        else:
            data.extend(bytes(off - len(data)))
    elif kind == "punch":
        end = min(off + payload, len(data))
        data[off:end] = bytes(max(end - off, 0))
    else:
        if off > len(data):
            data.extend(bytes(off - len(data)))
        data[off:off + len(payload)] = payload


class File:
    """synced: the bytes that are on the disk for certain; pending: (moment, kind, off, bytes or length, time) since."""

    def __init__(self, now, when):
        self.synced, self.pending = bytearray(), []
        self.journal = self.size_journal = now  # the last change that fsync, that fdatasync brings to the disk
        self.xattrs, self.mtime = {}, when
        self.size = 0  # as programs see it

    def change(self, now, kind, off, payload, when):
        if kind != "write" or off + len(payload) > self.size:
            self.size_journal = now
        if kind == "truncate":
            self.size = off
        elif kind == "write":
            self.size = max(self.size, off + len(payload))
        self.journal = now
        self.pending.append((now, kind, off, payload, when))

    def sync(self):
        for _, kind, off, payload, when in self.pending:
            apply(self.synced, kind, off, payload)
            self.mtime = when
        self.pending = []

    def now(self):
        data = bytearray(self.synced)
        for _, kind, off, payload, _ in self.pending:
            apply(data, kind, off, payload)
        return data

    def mtime_up_to(self, moment):
        return max([self.mtime] + [when for at, *_, when in self.pending if at <= moment])


class Disk:
    """A recorded folder while its events are played. Names are paths below the folder; values File, or None for a directory."""

    def __init__(self, root):
        self.root = root
        self.moment = 0
        self.names = {}      # as programs see them
        self.inodes = {}     # number -> File
        self.on_disk = {}    # names as of `settled`
        self.settled = 0     # the journal is on the disk up to this moment
        self.pending = []    # (moment, function of names) behind it
        self.folders = {}    # path -> moment of the last change of its names
        self.folder_xattrs = {}

    def load(self):
        """What the folder holds before its first event."""
        for top, dirs, files in os.walk(self.root):
            for name in dirs:
                self.names[self.below(f"{top}/{name}")] = None
            for name in files:
                full = f"{top}/{name}"
                st = os.stat(full)
                f = self.inodes[st.st_ino] = self.names[self.below(full)] = File(0, st.st_mtime_ns)
                with open(full, "rb") as data:
                    f.synced = bytearray(data.read())
                f.size = len(f.synced)
                f.xattrs = {x: os.getxattr(full, x) for x in os.listxattr(full)}
        self.on_disk = dict(self.names)
        return self

    def below(self, path):
        return path[len(self.root):].lstrip("/") if path == self.root or path.startswith(self.root + "/") else None

    def journal(self, change, *paths):
        change(self.names)
        self.pending.append((self.moment, change))
        for path in paths:
            self.folders[os.path.dirname(path)] = self.moment

    def settle(self, moment):
        if moment <= self.settled:
            return
        self.settled = moment
        while self.pending and self.pending[0][0] <= moment:
            self.pending.pop(0)[1](self.on_disk)

    def play(self, e):
        """The next event; False if it is of another folder."""
        self.moment += 1
        handler = getattr(self, "on_" + e.kind, None)
        return handler(e) if handler else False

    # ---- names ----

    def on_create(self, e):
        path = self.below(e.a)
        if path is None:
            return False
        f = self.inodes[e.ino] = File(self.moment, e.when)
        self.journal(lambda names: names.__setitem__(path, f), path)
        return True

    def on_mkdir(self, e):
        path = self.below(e.a)
        if path is None:
            return False
        if path:
            self.journal(lambda names: names.__setitem__(path, None), path)
        return True

    def on_rename(self, e):
        old, new = self.below(e.a), self.below(e.b)
        if old is None:
            return False
        for f in (self.names[old], self.names.get(new)):
            if f:
                f.journal = self.moment
        move(self.folders, old, new)
        move(self.folder_xattrs, old, new)
        self.journal(lambda names: move(names, old, new), old, new)
        return True

    def on_unlink(self, e):
        path = self.below(e.a)
        if path is None:
            return False
        if self.names[path]:
            self.names[path].journal = self.moment
        self.folder_xattrs.pop(path, None)
        self.journal(lambda names: names.pop(path), path)
        return True

    on_rmdir = on_unlink

    def on_link(self, e):
        old, new = self.below(e.a), self.below(e.b)
        if old is None:
            return False
        self.names[old].journal = self.moment
        self.journal(lambda names: names.__setitem__(new, names[old]), new)
        return True

    # ---- bytes and attributes ----

    def change(self, e, kind, payload):
        f = self.inodes.get(e.ino)
        if f:
            f.change(self.moment, kind, e.off, payload, e.when)
        return bool(f)

    def on_write(self, e):
        return self.change(e, "write", e.data)

    def on_truncate(self, e):
        return self.change(e, "truncate", None)

    def on_punch(self, e):
        return self.change(e, "punch", e.len)

    def on_snapshot(self, e):
        """Written past the recorder since it was last seen: where it differs, in pages."""
        f = self.inodes.get(e.ino)
        if not f:
            return False
        old = f.now()
        for at in range(0, len(e.data), PAGE):
            page = e.data[at:at + PAGE]
            if old[at:at + PAGE] != page:
                f.change(self.moment, "write", at, page, e.when)
        if len(e.data) < len(old):
            f.change(self.moment, "truncate", len(e.data), None, e.when)
        return True

    def xattrs_of(self, e):
        """Those of a file or, by its path, of a directory; None: of another folder."""
        if e.b:
            path = self.below(e.b)
            return None if path is None else self.folder_xattrs.setdefault(path, {})
        f = self.inodes.get(e.ino)
        if f:
            f.journal = self.moment
        return f.xattrs if f else None

    def on_setxattr(self, e):
        xattrs = self.xattrs_of(e)
        if xattrs is not None:
            xattrs[e.a] = e.data
        return xattrs is not None

    def on_delxattr(self, e):
        xattrs = self.xattrs_of(e)
        if xattrs is not None:
            xattrs.pop(e.a, None)
        return xattrs is not None

    def on_utimes(self, e):
        f = self.inodes.get(e.ino)
        if f:
            f.sync()  # only the lake's files are given times, and nothing of it is lost
            f.mtime = e.off
        return bool(f)

    def on_fsync(self, e):
        if e.a:
            path = self.below(e.a)
            if path is not None:
                self.settle(self.folders.get(path, 0))
            return path is not None
        f = self.inodes.get(e.ino)
        if f:
            f.sync()
            self.settle(f.journal)
        return bool(f)

    def on_fdatasync(self, e):
        f = self.inodes.get(e.ino)
        if f:
            f.sync()
            self.settle(f.size_journal)
        return bool(f)

    # ---- after the cut ----

    def now(self):
        """What programs see."""
        return {path: None if f is None else (f.now(), f.mtime_up_to(self.moment), f.xattrs) for path, f in self.names.items()}

    def after_cut(self, style, seed):
        """name -> (bytes, mtime in ns, attributes), or None for a directory."""
        rng = random.Random(seed)
        up_to = {"worst": self.settled, "best": self.moment, "names": self.moment}.get(style)
        if up_to is None:
            up_to = rng.choice((self.settled, self.moment, rng.randint(self.settled, self.moment)))
        names = dict(self.on_disk)
        for moment, change in self.pending:
            if moment <= up_to:
                change(names)
        built = {}
        for path in sorted(names):
            f = names[path]
            if f is not None and id(f) not in built:
                built[id(f)] = (survive(f, up_to, style, rng), f.mtime_up_to(up_to), {} if style == "worst" else f.xattrs)
        return {path: None if f is None else built[id(f)] for path, f in names.items()}


def pages_lost(f, style, until, rng):
    """A function that tells of a page before which moment the writes to it are there."""
    first, after = f.pending[0][0], f.pending[-1][0] + 1
    front = (f.size // PAGE) // 2 + 1
    chosen = {}

    def up_to(page):
        if page not in chosen:
            chosen[page] = {"worst": 0, "names": 0, "best": after, "prefix": until + 1, "tail": 0 if page < front else after,
                            "pages": rng.choice((0, after, rng.randint(first, after)))}[style]
        return chosen[page]

    return up_to


def survive(f, up_to, style, rng):
    """The bytes of a file when the journal is there up to a moment."""
    if not f.pending:
        return f.synced
    if style == "mixed":
        style = rng.choice(("worst", "best", "names", "prefix", "pages", "pages", "tail"))
    until = rng.choice(f.pending)[0] if style == "prefix" else f.pending[-1][0]
    page_up_to = pages_lost(f, style, until, rng)
    data = bytearray(f.synced)
    for moment, kind, off, payload, _ in f.pending:
        if kind != "write":
            if moment <= up_to:
                apply(data, kind, off, payload)
            continue
        end = off + len(payload)
        if end > len(data) and moment <= up_to and style not in ("worst", "prefix"):
            apply(data, "truncate", end, None)
        at = off
        while at < end:
            stop = min(end, at - at % PAGE + PAGE)
            piece = payload[at - off:stop - off] if moment < page_up_to(at // PAGE) else b""
            if moment == until and style in ("prefix", "pages") and rng.random() < 0.5:  # torn
                piece = piece[:max((at + rng.randrange(0, PAGE)) // SECTOR * SECTOR - at, 0)]
            if moment > up_to:
                piece = piece[:max(len(data) - at, 0)]
            if piece:
                apply(data, "write", at, piece)
            at = stop
    return data


def build(root, names, folder_xattrs=None):
    """Makes the folder of names as now() and after_cut() give them."""
    os.makedirs(root)
    os.chmod(root, 0o700)
    for path in sorted(names):
        full = f"{root}/{path}"
        if names[path] is None:
            os.makedirs(full, 0o700, exist_ok=True)
            continue
        data, mtime, xattrs = names[path]
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.truncate(fd, len(data))
            for at in range(0, len(data), 1 << 16):  # holes stay holes
                piece = bytes(data[at:at + (1 << 16)])
                if piece.count(0) != len(piece):
                    os.pwrite(fd, piece, at)
            for name, value in xattrs.items():
                os.setxattr(fd, name, value)
            os.utime(fd, ns=(mtime, mtime))
        finally:
            os.close(fd)
    for path, xattrs in (folder_xattrs or {}).items():
        for name, value in xattrs.items():
            if path in names or not path:
                os.setxattr(f"{root}/{path}", name, value)
