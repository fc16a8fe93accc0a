"""Credentials, clocks and certificates: keys that expire, clocks that differ, a peer that is not the store."""
import errno
import os
import ssl
import subprocess
import time

import proxy as p
import pytest
from conftest import BIG, blob, cold
from mounts import MIB, eventually, in_thread, run
from relay import Relay

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(480)]
OLD, NEW = "session-token-canary-old", "session-token-canary-new"


# ---- keys that expire ----

class KeysFile:
    """A credentials file with a session token, and a store that takes one token only."""

    def __init__(self, lake, path):
        self.lake, self.path = lake, path
        keys = [os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]]
        self.keys = keys
        lake.proxy.sign_as(*keys)
        lake.secrets |= {keys[1], OLD, NEW}
        lake.m.env.update({name: "" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")},
                          AWS_SHARED_CREDENTIALS_FILE=str(path), AWS_EC2_METADATA_DISABLED="true")

    def write(self, token):
        tmp = self.path.with_suffix(".new")
        tmp.touch(0o600)
        tmp.write_text(f"[default]\naws_access_key_id = {self.keys[0]}\naws_secret_access_key = {self.keys[1]}\naws_session_token = {token}\n")
        tmp.replace(self.path)

    def expire(self, token, status=400):
        """From now on the store refuses this token. The requests that it refused come back."""
        refused = []

        def expired(x):
            refused.append(x.request)
            p.error(status, "ExpiredToken")(x)
        self.lake.proxy.rule("any", expired, key=lambda request: request.header("x-amz-security-token") == token, times=None)
        return refused


@pytest.fixture
def keys_lake(make_lake, base):
    lake = make_lake(start=False, op_timeout="10s")
    keys = KeysFile(lake, base / "keys")
    keys.write(OLD)
    return lake, keys


@pytest.mark.parametrize("status,size", [(400, 0), (403, 5 * MIB), (400, BIG)])
def test_token_that_expires_is_read_again(keys_lake, status, size):
    """In the middle of reads and uploads: nobody sees an error."""
    lake, keys = keys_lake
    lake.mount()
    cold(lake, "there", blob("there", 40 * MIB))
    slow = lake.proxy.rule("part", p.silence, key=p.part_number(2), times=None)
    with open(lake.path / "there", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 1000, 0) == lake.files["there"][:1000]
        lake.write("f", blob("f", size))
        assert size < BIG or eventually(lambda: slow.n_used, 20)
        lake.proxy.heal()
        refused = keys.expire(OLD, status)
        lake.write("g", blob("g", min(size, 5 * MIB)))
        join = in_thread(lambda: os.pread(f.fileno(), 1000, 39 * MIB))
        assert eventually(lambda: {"get"} < {request.kind for request in refused}, 20), "a read and an upload"
        keys.write(NEW)
        assert join(30) == lake.files["there"][39 * MIB:39 * MIB + 1000]
        for off in range(0, 40 * MIB, 2 * MIB):
            assert os.pread(f.fileno(), 1000, off) == lake.files["there"][off:off + 1000]
    lake.wait()
    assert lake.proxy.requests()[-1].header("x-amz-security-token") == NEW


def test_token_that_nobody_renews_for_two_hours(keys_lake):
    """By a fast clock, 12 s. What is written meanwhile is kept, told, and published when there are keys again."""
    lake, keys = keys_lake
    lake.fast(600, patience=5).mount()
    cold(lake, "there", blob("there", MIB))
    lake.write("before", b"1")
    lake.wait()
    refused = keys.expire(OLD)
    began = time.monotonic()
    n = 0
    while time.monotonic() < began + 12:
        lake.write(f"d/f{n}", blob(n, (0, 5 * MIB, BIG)[n] if n < 3 else 10000))
        n += 1
        time.sleep(0.3)
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno in (errno.EACCES, errno.EIO, errno.EKEYEXPIRED, errno.ETIMEDOUT)
    assert lake.status("dirty_files") == n
    assert len(refused) >= 2
    lake.check("before", "d/f0")
    assert eventually(lambda: "expired" in lake.m.info("d/f0").get("error", ""), 10), lake.m.info("d/f0")
    keys.write(NEW)
    lake.wait()
    lake.check("there")


# ---- clocks ----

def clock_of_the_store(proxy, minutes, begins):
    """The store's clock is the proxy's: whoever signs for a time too far from it is refused, with its Date. begins(): does it differ yet? What was refused comes back."""
    proxy.sign_as(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    refused = []

    def skewed(x):
        now = time.time() + minutes * 60 * begins()
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
        signed = time.mktime(time.strptime(x.request.header("x-amz-date"), "%Y%m%dT%H%M%SZ")) - time.timezone
        if abs(signed - now) > 300:
            refused.append((x.request.kind, x.request.key, x.request.query.get("partNumber")))
            p.error(403, "RequestTimeTooSkewed", Date=date)(x)
        else:
            p.edit(lambda reply, _: reply.set("Date", date))(x)
    proxy.rule("any", skewed, times=None)
    return refused


@pytest.mark.parametrize("size", [0, 5 * MIB, BIG])
@pytest.mark.parametrize("minutes", [20, -20])
def test_clock_that_differs_from_the_stores(make_lake, minutes, size):
    lake = make_lake(start=False)
    refused = clock_of_the_store(lake.proxy, minutes, lambda: True)
    lake.mount()
    cold(lake, "there", blob("there", size))
    lake.check("there")
    lake.write("f", blob("f", size))
    lake.wait()
    assert 0 < len(refused) <= 4, "the difference is learnt once"


@pytest.mark.parametrize("minutes", [20, -20])
def test_clock_that_is_set_in_the_middle_of_an_upload(make_lake, minutes):
    """Of the 300 MiB two parts are there. What is under way then is refused, each once; the upload goes on."""
    lake = make_lake(start=False)
    refused = clock_of_the_store(lake.proxy, minutes, lambda: lake.proxy.count("part", "f") > 2)
    lake.mount()
    lake.write("f", blob("f", BIG))
    lake.wait()
    assert "part" in {kind for kind, _, _ in refused}
    assert len(refused) == len(set(refused)), "the difference is learnt once"
    assert lake.proxy.count("create", "f") == 1
    run("evict", lake.path / "f")
    lake.check("f")


# ---- certificates ----

CA_CONFIG = """
[ca]
default_ca = here
[here]
dir = {dir}
database = {dir}/index
new_certs_dir = {dir}
serial = {dir}/serial
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


class Authority:
    """Certificates for 127.0.0.1, good and bad."""

    def __init__(self, where):
        self.dir = where
        where.mkdir()
        (where / "index").touch()
        (where / "serial").write_text("01\n")
        (where / "ca.cnf").write_text(CA_CONFIG.format(dir=where))
        self.ca = where / "ca.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test authority",
                     "-keyout", where / "ca.key", "-out", self.ca, "-days", "30")

    @staticmethod
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=30, stdin=subprocess.DEVNULL)

    def context(self, name, host="IP:127.0.0.1", dates=(), signed=True):
        key, pem = self.dir / f"{name}.key", self.dir / f"{name}.pem"
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
               "-addext", f"subjectAltName={host}")
        if signed:
            self.openssl("req", *new, "-out", self.dir / f"{name}.csr")
            self.openssl("ca", "-batch", "-config", self.dir / "ca.cnf", "-cert", self.ca, "-keyfile", self.dir / "ca.key",
                         "-in", self.dir / f"{name}.csr", "-out", pem, *(dates or ("-days", "30")))
        else:
            self.openssl("req", "-x509", *new, "-out", pem, "-days", "30")
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(pem, key)
        return made


@pytest.fixture
def authority(base):
    return Authority(base / "authority")


BAD = {
    "wrong host": {"host": "DNS:store.example.org"},
    "expired": {"dates": ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")},
    "self-signed": {"signed": False},
}


@pytest.mark.parametrize("what", BAD)
def test_certificate_that_is_not_to_be_trusted(make_lake, authority, what):
    """Refused at mount, and, when it comes to be so, for a mount that stands; nothing goes out, in the clear or otherwise."""
    good, bad = authority.context("good"), authority.context("bad", **BAD[what])
    lake = make_lake(start=False, ca_bundle=authority.ca, op_timeout="3s")
    lake.proxy.tls = bad
    lake.m.options["endpoint_url"] = lake.proxy.url
    done = run(*lake.m.arguments(), check=False, env=lake.m.env)
    lake.outputs.append(done.stdout + done.stderr)
    assert done.returncode != 0 and not lake.m.is_mounted()
    assert "certificate" in done.stderr, done.stderr
    assert lake.proxy.count() == 0
    lake.proxy.tls = good
    lake.mount()
    cold(lake, "there", blob("there", MIB))
    lake.write("f", b"with a good one")
    lake.wait()
    lake.proxy.tls = bad
    lake.proxy.cut()
    n = lake.proxy.count()
    with pytest.raises(OSError) as e:
        lake.in_time(lambda: lake.read("there"))
    assert e.value.errno in (errno.EACCES, errno.EIO, errno.ETIMEDOUT)
    lake.write("g", b"kept")
    time.sleep(1)
    assert lake.status("dirty_files") == 1 and lake.proxy.count() == n
    lake.proxy.tls = good
    lake.wait()
    lake.check("there")


# ---- bits that change on the way ----

@pytest.mark.parametrize("size", [1000, 5 * MIB, BIG])
def test_bits_that_flip_on_the_way_over_tls(make_lake, authority, size):
    """Whatever the size: the connection is broken, and what it did not bring is asked for again. Where none brings anything it is an error."""
    with Relay(0) as relay:
        lake = make_lake(start=False, ca_bundle=authority.ca, op_timeout="10s")
        lake.proxy.tls = authority.context("good")
        relay.to = lake.proxy.port
        lake.m.options["endpoint_url"] = f"https://127.0.0.1:{relay.port}"
        lake.mount()
        cold(lake, "there", blob("there", size))
        if size > MIB:
            relay.flip_every = min(size // 5, 10 * MIB)
            lake.check("there")
            assert relay.n_flipped > 0
            run("evict", lake.path / "there")
        relay.flip_every = 500  # not even a head comes
        before = relay.n_flipped
        with pytest.raises(OSError) as e:
            with lake.in_time(lambda: open(lake.path / "there", "rb", buffering=0)) as f:
                lake.in_time(lambda: os.pread(f.fileno(), 1, size - 1))  # some of it may have come when the first bit flipped
        assert e.value.errno in (errno.EIO, errno.ETIMEDOUT)
        assert relay.n_flipped > before
        relay.flip_every = None
        lake.check("there")
