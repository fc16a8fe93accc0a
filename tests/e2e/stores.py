"""The two object stores of the end-to-end tests, behind the same methods: put, get, head, list, delete, uploads.

FileStore is a directory (file:// source), CephStore a bucket of the gateway that tests/ceph/up.sh started (its env sourced).
Both look at the store past Sluice, as any other tool would.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import uuid

PROBE = ".sluice-probe/"  # below it a daemon tries, some time after its mount, what the store can do; no list here shows it unless asked for it
LARGE = 1 << 16  # smaller objects are left behind: to delete a hundred thousand takes the gateway minutes
CEPH = pathlib.Path(__file__).resolve().parents[1] / "ceph"


class FileStore:
    kind = "file"
    endpoint = None

    @staticmethod
    @contextlib.contextmanager
    def used(alone):
        """While a test has such a store."""
        yield

    def __init__(self, where):
        self.root = pathlib.Path(where)
        self.root.mkdir(mode=0o755)
        self.source = f"file://{self.root}"

    def put(self, key, data, metadata=None):
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = self.root.with_name(f"{self.root.name}.{uuid.uuid4().hex}")
        tmp.write_bytes(data)
        os.replace(tmp, path)

    def get(self, key):
        return (self.root / key).read_bytes()

    def head(self, key):
        """size, mtime and user metadata, None if there is no such object."""
        path = self.root / key
        try:
            st = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        metadata = {}
        for name in os.listxattr(path):
            if name.startswith("user."):
                metadata[name.split(".")[-1].removeprefix("x-amz-meta-")] = os.getxattr(path, name).decode(errors="replace")
        return {"size": st.st_size, "mtime": st.st_mtime, "metadata": metadata}

    def list(self, prefix=""):
        found = {}
        for top, dirs, files in os.walk(self.root):
            if pathlib.Path(top) == self.root:
                dirs[:] = [d for d in dirs if d != ".sluice-tmp"]
            for name in files:
                path = pathlib.Path(top) / name
                key = str(path.relative_to(self.root))
                if key.startswith(prefix):
                    try:
                        found[key] = path.stat().st_size
                    except FileNotFoundError:
                        pass
        return found

    def delete(self, key):
        (self.root / key).unlink(missing_ok=True)

    def uploads(self, empty=True):
        return []

    def parts(self):
        """Of each multipart upload in progress: how many parts are stored."""
        return {(d / "key").read_text(): sum(1 for p in d.iterdir() if p.name != "key")
                for d in (self.root / ".sluice-tmp").glob("mpu-*")}

    def begin_upload(self, key):
        return None

    def has_upload(self, key, upload):
        return True

    def keep_versions(self):
        pass

    def versions(self):
        return {}

    def env(self):
        return {}

    def remove(self):
        shutil.rmtree(self.root, ignore_errors=True)


class CephStore:
    kind = "ceph"
    keeps_versions = False

    @staticmethod
    @contextlib.contextmanager
    def used(alone):
        """While a test uses the gateway, which others use too, or has it alone to end it. Who comes while somebody waits to be alone waits behind him."""
        top = pathlib.Path(os.environ["SLUICE_CEPH_DIR"])
        with open(top / "tests.lock", "a", encoding="ascii") as users, open(top / "tests.queue", "a", encoding="ascii") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(queue, fcntl.LOCK_UN)
            yield

    def __init__(self, _where):
        import boto3
        from botocore.config import Config

        self.endpoint = os.environ["S3_ENDPOINT"]
        self.dir = os.environ["SLUICE_CEPH_DIR"]
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}, connect_timeout=5, read_timeout=60)
        self.client = boto3.client("s3", endpoint_url=self.endpoint, config=config)
        self.bucket = "t-" + uuid.uuid4().hex[:12]
        self.client.create_bucket(Bucket=self.bucket)
        self.source = f"s3://{self.bucket}"

    def put(self, key, data, metadata=None):
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data, Metadata=metadata or {})

    def get(self, key):
        try:
            return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self.client.exceptions.NoSuchKey:
            raise FileNotFoundError(key) from None

    def head(self, key):
        try:
            reply = self.client.head_object(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as e:
            if e.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return None
            raise
        return {"size": reply["ContentLength"], "mtime": reply["LastModified"].timestamp(), "metadata": reply["Metadata"]}

    def list(self, prefix=""):
        found = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            for row in page.get("Contents", []):
                if not row["Key"].endswith("/") and row["Key"].startswith(PROBE) == prefix.startswith(PROBE):
                    found[row["Key"]] = row["Size"]
        return found

    def delete(self, key):
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def uploads(self, empty=True):
        """Keys of multipart uploads in progress; empty=False leaves out those that hold no part: a kill between creating an upload
        and writing down its id leaves such a one, and nobody can tell afterwards whose it was."""
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [u["Key"] for u in found if not u["Key"].startswith(PROBE) and (empty or self.client.list_parts(
            Bucket=self.bucket, Key=u["Key"], UploadId=u["UploadId"]).get("Parts"))]

    def parts(self):
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return {u["Key"]: len(self.client.list_parts(Bucket=self.bucket, Key=u["Key"], UploadId=u["UploadId"]).get("Parts", []))
                for u in found}

    def begin_upload(self, key):
        """A multipart upload of somebody else, with one part: its id."""
        upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        self.client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"of somebody else")
        return upload

    def has_upload(self, key, upload):
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return (key, upload) in [(u["Key"], u["UploadId"]) for u in found] and len(self.client.list_parts(
            Bucket=self.bucket, Key=key, UploadId=upload).get("Parts", [])) == 1

    def keep_versions(self):
        """What is visible from here on stays until the end: versions()."""
        self.keeps_versions = True
        self.client.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})

    def versions(self):
        """key -> every version that was kept, each for bytes_of()."""
        found = {}
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket):
            for row in page.get("Versions", []):
                if not row["Key"].endswith("/") and not row["Key"].startswith(PROBE):
                    found.setdefault(row["Key"], []).append(row)
        return found

    def large_versions(self):
        return [row for rows in self.versions().values() for row in rows if row["Size"] >= LARGE]

    def bytes_of(self, row):
        return self.client.get_object(Bucket=self.bucket, Key=row["Key"], VersionId=row["VersionId"])["Body"].read()

    def abort(self, request):
        """Ends the multipart upload that a request is of: its key, query["uploadId"]."""
        self.client.abort_multipart_upload(Bucket=self.bucket, Key=request.key, UploadId=request.query["uploadId"])

    def delete_bucket(self):
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            for row in page.get("Contents", []):
                self.delete(row["Key"])
        self.client.delete_bucket(Bucket=self.bucket)

    def env(self):
        return {k: v for k, v in os.environ.items() if k.startswith("AWS_")}

    def stop_gateway(self):
        subprocess.run([CEPH / "gateway.sh", "stop", self.dir], check=True, timeout=60, stdin=subprocess.DEVNULL)

    def start_gateway(self):
        subprocess.run([CEPH / "gateway.sh", "start", self.dir], check=True, timeout=90, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def remove(self):
        self.start_gateway()
        for key, size in self.list().items():
            if size >= LARGE:
                self.delete(key)
        for row in self.large_versions() if self.keeps_versions else []:
            self.client.delete_object(Bucket=self.bucket, Key=row["Key"], VersionId=row["VersionId"])


STORES = {"file": FileStore, "ceph": CephStore}


def md5(data):
    return hashlib.md5(data).hexdigest()
