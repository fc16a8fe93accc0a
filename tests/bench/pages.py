"""The memory that a measurement finds: the page cache dropped where a row says so, and none of it free on a machine whose host takes free memory back.

On such a virtual machine the first use of a free page costs more than reading it from the disk, and how many of the pages that a write takes are such
ones is left to chance: 1 GiB took the local disk 0.3 s or 1.4 s. With ballast there are none: what is not held by this process is kept full of the pages
of a file of holes, which are clean and go first when something else needs room, as on a machine that has been up for long.
"""
import mmap
import os
import pathlib

BLOCK = 1 << 20  # bytes of the file read at a time
FREE = 512 << 20  # bytes; is left free for programs to start
HOLES = 16  # the file is so many times as large as the memory; nothing of it is on the disk


def meminfo(field):
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def memory_size():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def mount_points():
    return {line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()}


class Plain:
    """The machine as it is."""

    @staticmethod
    def settle():
        """Before the clock starts."""

    @staticmethod
    def drop():
        """Nothing stays in the page cache. Needs root. Also drops dentries and inodes."""
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


class Ballast:
    """Holds the available memory but for leave bytes, and keeps that full. work: the directory whose files a measurement reads and writes."""

    def __init__(self, work, leave):
        self.work, self.at = work, 0
        path = work / "holes"
        self.fd = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self.size = HOLES * memory_size()
        os.truncate(path, self.size)
        self.held = self.hold(meminfo("MemAvailable") - leave)
        self.buffer = bytearray(BLOCK)

    @staticmethod
    def hold(size):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        return mmap.mmap(-1, size, flags=flags) if size > 0 else None

    def settle(self):
        """Reads holes until no more memory than FREE is free, or until as much was read as there is memory: then it is another's to free."""
        left = memory_size()
        while left > 0 and meminfo("MemFree") > FREE:
            for _ in range(32):
                self.at = self.at + BLOCK if self.at + BLOCK < self.size else 0
                left -= os.preadv(self.fd, [self.buffer], self.at)

    def drop(self):
        """Takes the files below work out of the page cache, so that not all of it has to be filled again; dentries and inodes everywhere."""
        os.sync()
        mounts = mount_points()
        for where, below, names in os.walk(self.work):
            below[:] = [d for d in below if os.path.join(where, d) not in mounts]
            for name in names:
                self.drop_file(os.path.join(where, name))
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("2")

    @staticmethod
    def drop_file(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # gone, or no file
            return
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(fd)


machine = Plain()
