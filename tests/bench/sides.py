"""The sides of a comparison. Each shows the data sets below its root; cold() gives it with nothing cached, restart() as a new process."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pages
from measure import IO, SLUICE, Failed, gone, is_mounted, run


PASSTHROUGH, SOME, DAEMON = "passthrough", "partly through the daemon", "through the daemon"
REQUEST_MOST = 1 << 20  # bytes that one request of the kernel reads or writes


def mode_of(before, now, sample):
    """Where the bytes of a sample went, by the number of requests that the daemon got meanwhile. None: of small files the opens alone are as many."""
    size, requests = sample.get("bytes", 0), now["fuse_requests"] - before["fuse_requests"]
    if not now["passthrough"]:
        return DAEMON
    if size < 64 * REQUEST_MOST * (sample.get("files") or 1):
        return None
    return DAEMON if requests >= size // REQUEST_MOST else SOME if 2 * requests >= size // REQUEST_MOST else PASSTHROUGH


class Side:
    name = None
    filesystem = True

    def __init__(self, lake, work):
        self.lake, self.work = lake, work / self.name
        self.root, self.cache = self.work / "mnt", self.work / "cache"
        self.root.mkdir(parents=True)
        self.process = None
        self.link, self.options = "near", ()

    def cold(self, link="near", options=()):
        """A new mount with an empty cache directory and dropped page cache."""
        self.stop()
        shutil.rmtree(self.cache, ignore_errors=True)
        self.link, self.options = link, tuple(options)
        self.restart()

    def restart(self):
        """A new mount on the cache directory as it is, page cache dropped."""
        self.stop()
        self.cache.mkdir(mode=0o700, exist_ok=True)
        pages.machine.drop()
        self.mount()
        until = time.monotonic() + 60
        while not is_mounted(self.root):
            if time.monotonic() > until or (self.process and self.process.poll() is not None):
                raise Failed(f"{self.name} does not mount: {self.log_tail()}")
            time.sleep(0.02)

    def spawn(self, *args, env):
        with open(self.work / "log", "ab") as log:
            self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def log_tail(self):
        with contextlib.suppress(OSError):
            return (self.work / "log").read_text(errors="replace")[-300:]
        return ""

    def stop(self):
        while is_mounted(self.root):
            subprocess.run(["umount", "-l", self.root], check=False, timeout=60, stderr=subprocess.DEVNULL)
        if self.process:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def close(self):
        """After a row: nothing stays mounted or on the disk."""
        self.stop()
        shutil.rmtree(self.cache, ignore_errors=True)

    def pids(self):
        return [self.process.pid] if self.process else []

    def begin(self):
        """Right before the work that mode() is asked of."""

    def mode(self, _sample):
        """How the bytes of the sample went."""
        return None

    def settle(self):
        """Returns when nothing is uploaded any more."""

    def load(self):
        """What goes on beside a write."""
        return contextlib.nullcontext()

    def note_upload(self, sample):
        """Right after close has returned: the write's sample, with what was sent and is in the store by then."""
        return sample

    def note_download(self, sample):
        """Adds to a sample what was fetched since the mount: what is now in the cache directory, for who does not say."""
        files = [pathlib.Path(where) / name for where, _, names in os.walk(self.cache) for name in names]
        sample["downloaded_bytes"] = sum(f.stat().st_blocks * 512 for f in files)

    def pin(self, key, _size):
        """Keeps a file in memory; here it is in the page cache, where it was written."""

    def wait_visible(self, key, size):
        self.lake.wait_visible(key, size)

    def check_object(self, key, size):
        self.lake.check_object(key, size)

    def forget(self, *keys):
        """Removes written files, or what is left of them."""
        with contextlib.suppress(Failed):
            run("rm", "-f", *[self.root / key for key in keys], timeout=120)
            self.settle()
        self.lake.delete(*keys)


class Native(Side):
    """A directory on the disk that also holds the cache directories."""
    name = "native"

    def __init__(self, lake, work):
        super().__init__(lake, work)
        self.root = lake.data
        self.root.mkdir(parents=True, exist_ok=True)

    def cold(self, link="near", options=()):
        pages.machine.drop()

    def restart(self):
        pages.machine.drop()

    def wait_visible(self, key, size):
        pass

    def check_object(self, key, size):
        with open(self.root / key, "rb") as f:
            run(IO, "check", key, size, stdin=f)

    def forget(self, *keys):
        for key in keys:
            (self.root / key).unlink(missing_ok=True)


class NativeBusy(Native):
    """The disk while as many bytes a second are uploaded as Sluice sent during its own write, parts that were not complete at its close included;
    measured after it in each run."""
    name = "native+put"

    def load(self):
        return self.lake.put_load(self.lake.upload_rate)

    def note_upload(self, sample):
        return dict(sample, load_bytes_per_s=round(self.lake.upload_rate))


class S3fs(Side):
    name = "s3fs"

    def mount(self):
        env = dict(os.environ, AWSACCESSKEYID=os.environ["AWS_ACCESS_KEY_ID"],
                   AWSSECRETACCESSKEY=os.environ["AWS_SECRET_ACCESS_KEY"])
        self.spawn("s3fs", self.lake.bucket, self.root, "-f", "-o",
                   f"url={self.lake.links[self.link]},use_path_request_style,use_cache={self.cache},max_stat_cache_size=200000,"
                   "parallel_count=16,multireq_max=64,multipart_size=16,enable_noobj_cache", env=env)


class Rclone(Side):
    name = "rclone"

    def mount(self):
        env = dict(os.environ, RCLONE_CONFIG_L_TYPE="s3", RCLONE_CONFIG_L_PROVIDER="Ceph", RCLONE_CONFIG_L_ENV_AUTH="true",
                   RCLONE_CONFIG_L_ENDPOINT=self.lake.links[self.link], RCLONE_CONFIG="/dev/null")
        self.spawn("rclone", "mount", f"l:{self.lake.bucket}", self.root, "--cache-dir", self.cache, "--vfs-cache-mode", "full",
                   "--use-server-modtime", "--s3-upload-concurrency", "8", "--transfers", "8", "--vfs-read-ahead", "64M",
                   "--dir-cache-time", "1h", "--vfs-write-back", "0s", env=env)


class Sluice(Side):
    name = "sluice"
    daemon = ()  # its processes, while there are any
    before = {}  # its status when the work began

    def mount(self):
        run(SLUICE, "mount", f"s3://{self.lake.bucket}", self.root, "--endpoint-url", self.lake.links[self.link], "--cache-dir",
            self.cache, "--log-file", self.work / "log", *self.options, timeout=120)
        self.daemon = self.pids()

    def status(self):
        return json.loads(run(SLUICE, "status", "--json", self.root, timeout=60))

    def info(self, key):
        return json.loads(run(SLUICE, "info", "--json", self.root / key, timeout=60).splitlines()[0])

    def stop(self):
        if is_mounted(self.root):
            with contextlib.suppress(Failed):
                run(SLUICE, "umount", self.root, timeout=120)
        super().stop()
        for pid in self.daemon:
            if not gone(pid, 60):
                os.kill(pid, signal.SIGKILL)
        self.daemon = ()

    def pids(self):
        status = self.status()
        return [p for p in (status["supervisor_pid"], status["pid"]) if p]

    def begin(self):
        self.before = self.status()

    def mode(self, sample):
        return mode_of(self.before, self.status(), sample)

    def note_upload(self, sample):
        """From the file of counters: a command would take longer to start than parts to be sent after the close."""
        rows = [line.split() for line in (self.root / ".stats").read_text().splitlines() if not line.startswith("#")]
        counters = {name: int(value) for name, value in rows}
        sent, stored = counters["sluice_sent_bytes_total"], counters["sluice_uploaded_bytes_total"]
        self.lake.upload_rate = sent / sample["seconds"]
        return dict(sample, sent_at_close=sent, uploaded_at_close=stored)

    def note_download(self, sample):
        sample["downloaded_bytes"] = self.status()["downloaded_bytes"]

    def pin(self, key, size):
        self.settle()
        run(SLUICE, "pin", "--memory", self.root / key)
        until = time.monotonic() + 60
        while sum(t["used_bytes"] for t in self.status()["tiers"] if t["kind"] == "memory") < size:
            if time.monotonic() > until:
                raise Failed(f"{key} did not come into the memory tier: {self.status()['tiers']}")
            time.sleep(0.1)
        pages.machine.drop()  # it is not the page cache of the disk that serves it

    def settle(self):
        run(SLUICE, "wait", "--timeout", "600s", self.root)


class Raw(Side):
    """objbench: no filesystem, the same client code."""
    name = "raw"
    filesystem = False

    def cold(self, link="near", options=()):
        self.link = link

    def transfer(self, raw):
        return self.lake.raw_objbench(raw, self.link)


class Curl(Raw):
    name = "curl"

    def transfer(self, raw):
        return self.lake.raw_curl(raw, self.link)


SIDES = {side.name: side for side in (Native, S3fs, Rclone, Sluice, NativeBusy, Raw, Curl)}
