"""The bucket with its data sets, and the two clients without a filesystem that read and write it: objbench ("raw") and curl."""
import contextlib
import hashlib
import json
import os
import subprocess
import time
import uuid

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from measure import DELAY, IO, MIB, SLUICE, Failed, children_cpu, io, run, say

PART = 8 * MIB


class Lake:
    """One bucket. data is the local directory that holds the same files; links maps "near" and "far" to endpoints."""

    def __init__(self, sizes, work, far_port, server_cpus):
        self.sizes, self.work, self.data = sizes, work, work / "native/data"
        self.links = {"near": os.environ["S3_ENDPOINT"]}
        config = Config(s3={"addressing_style": "path"}, signature_version="s3v4", max_pool_connections=16)
        self.client = boto3.client("s3", endpoint_url=self.links["near"], config=config)
        self.far = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{far_port}", config=config)
        self.bucket = "bench-" + uuid.uuid4().hex[:8]
        self.made = False
        self.delay = None
        self.upload_rate = 0  # bytes a second, of the last write through Sluice
        self.far_port, self.server_cpus = far_port, server_cpus

    # ---- data sets ----

    def names(self, which):
        """Paths of a data set below its root; names are unique, since a file's content depends on its name."""
        s = self.sizes
        if which == "small":
            return [f"small/d{i // 100:03}/s{i:06}" for i in range(s.epoch_n)]
        if which in ("tree", "many"):
            return [f"{which}/d{i % 100:02}/{which}{i:06}" for i in range(s.tree_n if which == "tree" else s.many_n)]
        return [which]

    def list_file(self, which, n=None):
        """A file with the first n names of a data set."""
        path = self.work / f"{which}.{n or 'all'}"
        if not path.exists():
            path.write_text("".join(name + "\n" for name in self.names(which)[:n]))
        return path

    def size_of(self, which):
        s = self.sizes
        return {"big": s.big, "huge": s.huge, "small": s.small, "tree": s.tiny, "many": s.tiny}[which]

    def create(self, needed, delay_ms):
        self.client.create_bucket(Bucket=self.bucket)
        self.made = True
        if delay_ms:
            self.start_delay(delay_ms)
        for which in sorted(needed):
            say(f"data set {which}: {len(self.names(which))} x {self.size_of(which)} bytes")
            io("fill", self.data, self.list_file(which), self.size_of(which))
            if which in ("big", "huge"):
                self.client.upload_file(str(self.data / which), self.bucket, which,
                                        Config=TransferConfig(multipart_chunksize=PART, max_concurrency=4))
            else:
                self.put_files(self.names(which))

    def put_files(self, names):
        entries = [f'url = "{self.sign("put_object", n)}"\nupload-file = "{self.data / n}"' for n in names]
        for at in range(0, len(entries), 5000):  # curl keeps all of a run in memory
            self.curl(entries[at:at + 5000], 16)

    def start_delay(self, ms):
        target = self.links["near"].rsplit(":", 1)[1].rstrip("/")
        with contextlib.ExitStack() as stack:
            self.delay = subprocess.Popen(["taskset", "-c", self.server_cpus, DELAY, str(self.far_port), target, str(ms)],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            stack.callback(self.delay.stdout.close)
            if self.delay.stdout.readline() != "ready\n":
                raise Failed("the delaying relay does not start")
        self.links["far"] = f"http://127.0.0.1:{self.far_port}"

    def remove(self):
        """Takes the relay away and, from a gateway that stays, the bucket."""
        if self.delay:
            self.delay.terminate()
            self.delay.wait(10)
        if not self.made or os.environ.get("BENCH_OWN_GATEWAY"):
            return
        for upload in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            self.delete(*[row["Key"] for row in page.get("Contents", [])])
        self.client.delete_bucket(Bucket=self.bucket)

    # ---- looking past the filesystems ----

    def wait_visible(self, key, size):
        until = time.monotonic() + 600
        while time.monotonic() < until:
            try:
                if self.client.head_object(Bucket=self.bucket, Key=key)["ContentLength"] == size:
                    return
            except self.client.exceptions.ClientError:
                pass
            time.sleep(0.05)
        raise Failed(f"{key} never became visible")

    def check_object(self, key, size):
        """Every byte of an object that io.c wrote under that name."""
        with subprocess.Popen(["curl", "-sf", self.sign("get_object", key)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE) as get:
            run(IO, "check", key, size, stdin=get.stdout)

    def delete(self, *keys):
        for at in range(0, len(keys), 1000):
            self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": k} for k in keys[at:at + 1000]]})

    # ---- clients without a filesystem ----

    def sign(self, method, key, link="near", **more):
        client = self.far if link == "far" else self.client
        return client.generate_presigned_url(method, Params={"Bucket": self.bucket, "Key": key, **more}, ExpiresIn=86400)

    def signed_put(self, key, source, digest, link, query=""):
        """A curl entry that sends source, signed with its SHA-256: the gateway has it to compare, as with objbench. Good for some minutes."""
        request = AWSRequest("PUT", f"{self.links[link]}/{self.bucket}/{key}{query}")
        signer = S3SigV4Auth(boto3.Session().get_credentials(), "s3", self.client.meta.region_name)
        signer.payload = lambda _: digest
        signer.add_auth(request)
        headers = "".join(f'header = "{name}: {value}"\n' for name, value in request.headers.items())
        return f'url = "{request.url}"\nupload-file = "{source}"\n{headers}'

    def curl(self, entries, parallel):
        """curl -Z over configuration entries; seconds and CPU of the whole command."""
        config = self.work / f"curl-{uuid.uuid4().hex[:8]}"
        common = '\noutput = "/dev/null"\nheader = "Expect:"\nsilent\nfail\n'
        config.write_text("next\n".join(e + common for e in entries))
        cpu, start = children_cpu(), time.monotonic()
        try:
            run("curl", "-Z", "--parallel-immediate", "--parallel-max", parallel, "-K", config)
        finally:
            config.unlink()
        return {"seconds": time.monotonic() - start, "client_cpu": round(children_cpu() - cpu, 3)}

    def raw_objbench(self, raw, link):
        """The row of objbench that raw names: same requests, signing and checks as a mount of Sluice makes."""
        out = json.loads(run(SLUICE, "objbench", f"s3://{self.bucket}/raw", "--endpoint-url", self.links[link], "--json", "--size",
                             raw.total, "--object-size", raw.object, "--concurrency", ",".join(map(str, raw.threads)), "--small-objects", 0))
        row = min((r for r in out["results"] if r["op"] == raw.op), key=lambda r: r["seconds"])
        return {"client_cpu": row["cpu_seconds"], "threads": row["concurrency"], **{key: row[key] for key in ("seconds", "bytes", "p50_ms")}}

    def raw_curl(self, raw, link):
        """The same objects or parts by curl -Z: written with signatures made before, read with presigned URLs, deleted."""
        n = max(raw.total // raw.object, *raw.threads)
        source = self.work / "curl-object"
        source.write_bytes(os.urandom(raw.object))
        with self.curl_puts(raw, n, source, link) as (puts, keys):
            gets = [f'url = "{self.sign("get_object", k, link)}"' for k in keys]
            if raw.op == "get":
                self.curl(puts, 8)
            took = [dict(self.curl(gets if raw.op == "get" else puts, threads), threads=threads) for threads in raw.threads]
        return dict(min(took, key=lambda sample: sample["seconds"]), bytes=n * raw.object)

    @contextlib.contextmanager
    def curl_puts(self, raw, n, source, link):
        """Entries that put n objects, or parts of one, and the objects' keys; all is removed in the end."""
        keys, upload = [f"curl/{i:06}" for i in range(n)], None
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        if raw.op == "put-part":
            upload = {"Bucket": self.bucket, "Key": keys[0]}
            upload["UploadId"] = self.client.create_multipart_upload(**upload)["UploadId"]
            puts = [self.signed_put(keys[0], source, digest, link, f"?partNumber={i + 1}&uploadId={upload['UploadId']}") for i in range(n)]
        else:
            puts = [self.signed_put(k, source, digest, link) for k in keys]
        try:
            yield puts, keys
        finally:
            source.unlink()
            if upload:
                self.client.abort_multipart_upload(**upload)
            else:
                self.delete(*keys)

    @contextlib.contextmanager
    def put_load(self, bytes_per_second):
        """Eight connections that send without end, at that rate together, as background load."""
        source, jobs = self.work / "load-object", []
        source.write_bytes(os.urandom(PART))
        for i in range(8):
            config = self.work / f"load-{i}"
            config.write_text(self.put_load_config(self.sign("put_object", f"load/{i}"), source, max(int(bytes_per_second / 8), 1000)))
            jobs.append(subprocess.Popen(["sh", "-c", 'while curl -K "$0"; do :; done', config], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, start_new_session=True))
        try:
            yield
            if any(j.poll() is not None for j in jobs):
                raise Failed("the uploads beside it came to an end")
        finally:
            for j in jobs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(j.pid, 15)
                j.wait()
            self.delete(*[f"load/{i}" for i in range(8)])

    @staticmethod
    def put_load_config(url, source, rate):
        """Many uploads for one process of curl: starting one for each would be the greater load."""
        one = f'url = "{url}"\nupload-file = "{source}"\nlimit-rate = {rate}\nheader = "Expect:"\nsilent\nfail\n'
        return "next\n".join([one] * 1000)
