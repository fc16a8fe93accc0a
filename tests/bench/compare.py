#!/usr/bin/python3
"""Side by side: a local directory, s3fs, rclone and sluice on the same gateway in one run, as a Markdown table of medians.

usage: . CEPH_DIR/env; tests/bench/compare.py [--rounds 3] [--size MIB] [--files N] [--only native,s3fs,rclone,sluice]

Cases: write to close, write to visible in the bucket, cold and warm read of one big file, ls -lR of many files cold and warm, small
files read one after the other cold and warm. The contestants alternate within each round, so a slow minute of the machine hits all of
them. Cold means: a new mount with an empty cache and dropped page cache. The local directory has no "visible"; its cold is the page cache dropped.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import boto3
from botocore.config import Config

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE_BIN", str(ROOT / "build/tools/sluice"))
MIB = 1 << 20
CASES = ["write to close", "write to visible", "cold read", "warm read", "ls -lR cold", "ls -lR warm", "small files cold",
         "small files warm"]


def command(*args, env=None, timeout=600):
    subprocess.run([str(a) for a in args], check=True, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env)


def timed(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


def drop_page_cache():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


class Contestant:
    """start() gives a cold view of the bucket at self.dir, stop() takes it away."""

    def __init__(self, lake, work):
        self.lake, self.work = lake, pathlib.Path(work) / self.name
        self.dir, self.cache = self.work / "mnt", self.work / "cache"
        self.dir.mkdir(parents=True)

    def start(self):
        shutil.rmtree(self.cache, ignore_errors=True)
        self.cache.mkdir(mode=0o700)
        drop_page_cache()
        self.mount()
        until = time.monotonic() + 30
        while not os.path.ismount(self.dir):
            assert time.monotonic() < until, f"{self.name} does not mount"
            time.sleep(0.05)

    def stop(self):
        subprocess.run(["umount", "-l", self.dir], check=False, timeout=60, stderr=subprocess.DEVNULL)

    def visible(self, key, size):
        until = time.monotonic() + 300
        while time.monotonic() < until:
            if self.lake.size(key) == size:
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self.name}: {key} never became visible")


class Native(Contestant):
    name = "native"

    def start(self):
        drop_page_cache()
        for key in self.lake.keys:
            path = self.dir / key
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self.lake.client.download_file(self.lake.bucket, key, str(path))
        drop_page_cache()

    def stop(self):
        pass  # a directory is always there

    def visible(self, key, size):
        (self.dir / key).unlink()  # nothing to wait for


class S3fs(Contestant):
    name = "s3fs"

    def mount(self):
        env = dict(os.environ, AWSACCESSKEYID=os.environ["AWS_ACCESS_KEY_ID"],
                   AWSSECRETACCESSKEY=os.environ["AWS_SECRET_ACCESS_KEY"])
        command("s3fs", self.lake.bucket, self.dir, "-o",
                f"url={self.lake.endpoint},use_path_request_style,use_cache={self.cache}", env=env)


class Rclone(Contestant):
    name = "rclone"

    def mount(self):
        env = dict(os.environ, RCLONE_CONFIG_L_TYPE="s3", RCLONE_CONFIG_L_PROVIDER="Ceph", RCLONE_CONFIG_L_ENV_AUTH="true",
                   RCLONE_CONFIG_L_ENDPOINT=self.lake.endpoint, RCLONE_CONFIG="/dev/null")
        env.pop("AWS_CA_BUNDLE", None)
        command("rclone", "mount", f"l:{self.lake.bucket}", self.dir, "--daemon", "--cache-dir", self.cache, "--vfs-cache-mode",
                "full", "--use-server-modtime", "--s3-upload-concurrency", "8", "--transfers", "8", "--vfs-read-ahead", "64M",
                "--dir-cache-time", "1h", "--vfs-write-back", "0s", env=env)


class Sluice(Contestant):
    name = "sluice"

    def mount(self):
        command(SLUICE, "mount", self.lake.source, self.dir, "--endpoint-url", self.lake.endpoint, "--cache-dir", self.cache,
                "--log-file", self.work / "log")

    def stop(self):
        subprocess.run([SLUICE, "umount", self.dir], check=False, timeout=60)
        super().stop()


class Lake:
    def __init__(self, big, files):
        self.endpoint = os.environ["S3_ENDPOINT"]
        config = Config(s3={"addressing_style": "path"}, max_pool_connections=16)
        self.client = boto3.client("s3", endpoint_url=self.endpoint, config=config)
        self.bucket = "bench-" + uuid.uuid4().hex[:8]
        self.source = f"s3://{self.bucket}"
        self.client.create_bucket(Bucket=self.bucket)
        self.keys = ["big"] + [f"small/d{i % 20}/f{i}" for i in range(files)]
        block = os.urandom(MIB)
        with tempfile.NamedTemporaryFile() as f:
            for _ in range(big):
                f.write(block)
            f.flush()
            self.client.upload_file(f.name, self.bucket, "big")
        for key in self.keys[1:]:
            self.client.put_object(Bucket=self.bucket, Key=key, Body=block[:100 * 1024])

    def size(self, key):
        try:
            return self.client.head_object(Bucket=self.bucket, Key=key)["ContentLength"]
        except self.client.exceptions.ClientError:
            return None

    def remove(self):
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            rows = [{"Key": row["Key"]} for row in page.get("Contents", [])]
            if rows:
                self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": rows})
        self.client.delete_bucket(Bucket=self.bucket)


def write_file(path, mib, block):
    with open(path, "wb", buffering=0) as f:
        for _ in range(mib):
            f.write(block)


def read_file(path):
    with open(path, "rb", buffering=0) as f:
        while f.read(MIB):
            pass


def one_round(c, args, number):
    """Seconds by case for one contestant."""
    took, block, key = {}, os.urandom(MIB), f"written-{c.name}-{number}"
    c.start()
    try:
        start = time.monotonic()
        took["write to close"] = timed(lambda: write_file(c.dir / key, args.size, block))
        c.visible(key, args.size * MIB)
        if c.name != "native":
            took["write to visible"] = time.monotonic() - start
        c.stop()
        c.start()
        took["cold read"] = timed(lambda: read_file(c.dir / "big"))
        took["warm read"] = timed(lambda: read_file(c.dir / "big"))
        c.stop()
        c.start()
        took["ls -lR cold"] = timed(lambda: command("ls", "-lR", c.dir / "small"))
        took["ls -lR warm"] = timed(lambda: command("ls", "-lR", c.dir / "small"))
        c.stop()
        c.start()
        paths = [c.dir / k for k in c.lake.keys[1:2001]]
        took["small files cold"] = timed(lambda: [read_file(p) for p in paths])
        took["small files warm"] = timed(lambda: [read_file(p) for p in paths])
    finally:
        c.stop()
    return took


def table(results, names):
    print("| case (s, median) | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for case in CASES:
        cells = [f"{statistics.median(results[n][case]):.2f}" if results[n].get(case) else "-" for n in names]
        print(f"| {case} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the big file")
    parser.add_argument("--files", type=int, default=10000, help="small objects of 100 KiB; 2,000 of them are read")
    parser.add_argument("--only", default="native,s3fs,rclone,sluice")
    args = parser.parse_args()
    kinds = {k.name: k for k in (Native, S3fs, Rclone, Sluice)}
    names = args.only.split(",")
    work = pathlib.Path(tempfile.mkdtemp(prefix="sluice-bench."))
    lake = Lake(args.size, args.files)
    results = {n: {case: [] for case in CASES} for n in names}
    contestants = [kinds[n](lake, work) for n in names]
    try:
        for number in range(args.rounds):
            for c in contestants[number % len(names):] + contestants[:number % len(names)]:
                for case, seconds in one_round(c, args, number).items():
                    results[c.name][case].append(seconds)
                print(f"round {number + 1} of {args.rounds}: {c.name} done", file=sys.stderr)
        table(results, names)
    finally:
        for c in contestants:
            c.stop()
        lake.remove()
        shutil.rmtree(work, ignore_errors=True)


main()
