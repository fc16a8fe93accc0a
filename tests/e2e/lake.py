"""A small S3 server in the test's process, whose failures the test commands: a black hole (connections stay, nothing is answered), refused keys, huge listings, and ones that stop.

Lake has what Mount asks of a store (source, endpoint, env) and put, get, list of what it holds. Objects are bytes; keys that are only listed are told by add_names().
"""
import bisect
import hashlib
import http.server
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape

BUCKET = "lake"
STAMP, HTTP_STAMP = "2024-01-02T03:04:05.000Z", "Tue, 02 Jan 2024 03:04:05 GMT"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        self.lake.open.wait()
        self.send_response_only(status)
        self.send_header("x-amz-request-id", "1")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def parse(self):
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = urllib.parse.unquote(url.path).split("/", 2)
        self.key = parts[2] if len(parts) > 2 else ""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lake.lock:
            self.lake.calls.append((self.command, self.key, self.query))

    def condition(self):
        """False: answered with 412."""
        if not self.lake.has_conditions:
            return True
        have = self.lake.objects.get(self.key)
        match, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        ok = not (match and (have is None or match.strip('"') != have[1])) and not (none == "*" and have is not None)
        if not ok:
            self.fail(412, "PreconditionFailed")
        return ok

    def of_object(self, have):
        return [("ETag", f'"{have[1]}"'), ("Last-Modified", HTTP_STAMP), *have[2].items()]

    def do_HEAD(self):
        self.parse()
        have = self.lake.objects.get(self.key)
        if not self.key:
            self.answer(200)
        elif self.key in self.lake.refused:
            self.answer(400)
        elif have is None:
            self.answer(404)
        else:
            self.answer(200, headers=self.of_object(have), length=len(have[0]))

    def do_GET(self):
        self.parse()
        if not self.key:
            if "continuation-token" in self.query:
                self.lake.pages_open.wait()
            self.answer(200, self.lake.page(self.query) if "uploads" not in self.query else NO_UPLOADS)
            return
        if "uploadId" in self.query:
            self.list_parts()
            return
        have = self.lake.objects.get(self.key)
        if have is None:
            self.fail(404, "NoSuchKey")
        elif self.condition():
            data, headers, status = have[0], self.of_object(have), 200
            found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if found:
                first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
                headers.append(("Content-Range", f"bytes {first}-{last}/{len(data)}"))
                data, status = data[first:last + 1], 206
            self.answer(status, data, headers)

    def list_parts(self):
        with self.lake.lock:
            known = self.query["uploadId"] in self.lake.metas
            parts = sorted(self.lake.parts.get(self.query["uploadId"], {}).items())
        if not known:
            self.fail(404, "NoSuchUpload")
            return
        rows = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{hashlib.md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Part>"
                       for n, data in parts)
        self.answer(200, f"<ListPartsResult><IsTruncated>false</IsTruncated>{rows}</ListPartsResult>".encode())

    def do_PUT(self):
        self.parse()
        self.lake.open.wait()
        if self.key in self.lake.refused:
            self.fail(400, "InvalidObjectName")
            return
        copies = "x-amz-copy-source" in self.headers
        data, meta = self.source() if copies else (self.body, self.meta())
        if data is None:
            self.fail(412, "PreconditionFailed")
        elif "uploadId" in self.query:
            with self.lake.lock:
                self.lake.parts.setdefault(self.query["uploadId"], {})[int(self.query["partNumber"])] = data
            self.stored(hashlib.md5(data).hexdigest(), "CopyPartResult" if copies else None)
        elif self.condition():
            self.stored(self.lake.put(self.key, data, meta), "CopyObjectResult" if copies else None)

    def meta(self):
        return {k: v for k, v in self.headers.items() if k.lower().startswith("x-amz-meta-")}

    def source(self):
        """Bytes and metadata of a copy; None: its condition does not hold."""
        have = self.lake.objects.get(urllib.parse.unquote(self.headers["x-amz-copy-source"]).lstrip("/").split("/", 1)[1])
        match = self.headers.get("x-amz-copy-source-if-match") if self.lake.has_conditions else None
        if have is None or (match and match.strip('"') != have[1]):
            return None, None
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("x-amz-copy-source-range") or "")
        data = have[0][int(found[1]):int(found[2]) + 1] if found else have[0]
        return data, self.meta() if self.headers.get("x-amz-metadata-directive") == "REPLACE" else have[2]

    def stored(self, etag, result):
        if result:
            self.answer(200, f'<{result}><ETag>"{etag}"</ETag></{result}>'.encode())
        else:
            self.answer(200, headers=[("ETag", f'"{etag}"')])

    def do_POST(self):
        self.parse()
        self.lake.open.wait()
        if self.key in self.lake.refused:
            self.fail(400, "InvalidObjectName")
        elif "uploads" in self.query:
            with self.lake.lock:
                self.lake.n_uploads += 1
                name = str(self.lake.n_uploads)
            self.lake.metas[name] = self.meta()
            self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode())
        elif self.condition():
            parts = self.lake.parts.pop(self.query["uploadId"])
            etag = self.lake.put(self.key, b"".join(parts[i] for i in sorted(parts)), self.lake.metas.pop(self.query["uploadId"]))
            self.answer(200, f'<CompleteMultipartUploadResult><ETag>"{etag}"</ETag></CompleteMultipartUploadResult>'.encode())

    def do_DELETE(self):
        self.parse()
        self.lake.open.wait()
        if self.key in self.lake.refused:
            self.fail(400, "InvalidObjectName")
        elif "uploadId" in self.query:
            with self.lake.lock:
                known = self.lake.metas.pop(self.query["uploadId"], None) is not None
                self.lake.parts.pop(self.query["uploadId"], None)
            self.answer(204) if known else self.fail(404, "NoSuchUpload")
        elif self.condition():
            self.lake.delete(self.key)
            self.answer(204)


NO_UPLOADS = b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass  # the other side has gone


class Lake:
    kind = "lake"

    def __init__(self, has_conditions=True):
        self.has_conditions = has_conditions  # if not, they are ignored
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.open.set()
        self.pages_open = threading.Event()  # not set: a listing gets its first page only
        self.pages_open.set()
        self.objects = {}  # key -> (bytes, etag, metadata)
        self.names = []  # all keys, sorted
        self.refused = set()  # keys that it does not take
        self.parts, self.metas, self.n_uploads = {}, {}, 0
        self.calls = []
        self.server = Server(("127.0.0.1", 0), type("LakeHandler", (Handler,), {"lake": self}))
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.source = f"s3://{BUCKET}"
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def env(self):
        return {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "cAnArYofTheLake0123456789abcdef", "AWS_REGION": "us-east-1", "no_proxy": "127.0.0.1"}

    def black_hole(self):
        self.open.clear()

    def answer_again(self):
        self.open.set()
        self.pages_open.set()

    def put(self, key, data, meta=None):
        etag = hashlib.md5(data).hexdigest()
        with self.lock:
            if key not in self.objects:
                bisect.insort(self.names, key)
            self.objects[key] = (data, etag, meta or {})
        return etag

    def get(self, key):
        return self.objects[key][0]

    def delete(self, key):
        with self.lock:
            self.objects.pop(key, None)
            i = bisect.bisect_left(self.names, key)
            if i < len(self.names) and self.names[i] == key:
                del self.names[i]

    def add_names(self, names):
        """Keys that are only ever listed, as objects of one byte."""
        with self.lock:
            self.names = sorted([*self.names, *names])

    def delete_names(self, gone):
        gone = set(gone)
        with self.lock:
            self.names = [name for name in self.names if name not in gone]

    def list(self, prefix=""):
        return [k for k in self.names if k.startswith(prefix) and k in self.objects]

    def page(self, query):
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", "1000"))
        after = query.get("continuation-token") or query.get("start-after") or ""
        rows, token, delimiter = [], None, query.get("delimiter")
        with self.lock:
            i = max(bisect.bisect_left(self.names, prefix), bisect.bisect_right(self.names, after) if after else 0)
            while i < len(self.names) and self.names[i].startswith(prefix):
                name = self.names[i]
                if len(rows) >= most:
                    token = last
                    break
                cut = name.find("/", len(prefix)) if delimiter else -1
                if cut >= 0:
                    dir_name = name[:cut + 1]
                    i, last = bisect.bisect_left(self.names, dir_name[:-1] + "0"), dir_name[:-1] + "/\U0010ffff"
                    rows.append(f"<CommonPrefixes><Prefix>{urllib.parse.quote(dir_name)}</Prefix></CommonPrefixes>")
                    continue
                data, etag, _ = self.objects.get(name, (b"x", "9dd4e461268c8034f5c8564e155c67a6", None))
                rows.append(f"<Contents><Key>{escape(urllib.parse.quote(name))}</Key><LastModified>{STAMP}</LastModified>"
                            f"<ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>")
                last = name
                i += 1
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return (f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{BUCKET}</Name><EncodingType>url</EncodingType>'
                f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}{''.join(rows)}</ListBucketResult>").encode()

    def remove(self):
        self.answer_again()
        self.server.shutdown()
        self.server.server_close()
