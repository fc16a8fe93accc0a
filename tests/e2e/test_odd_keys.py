"""Keys and names that trip text tools: each byte, other people's conventions, keys that are no names. What cannot be shown is counted and never harmed."""
import errno
import http.client
import os
import unicodedata
import urllib.parse

import lake
import pytest
import stores
from mounts import Mount, eventually

NAMES = [b"a&b", b"<tag>", b"it's", b'say "x"', b"%41", b"%2F", b"a+b", b" lead", b"trail ", b" ", b"back\\slash", b"C:", b"-rf", b"~", b"~root", b"*", b"?", b"#",
         b"a;b", b"a,b", b"a=b", b"$HOME", b"`id`", b"!", b"...", b".hidden", b"x_$folder$", b"CASE", b"case", b"new\nline", b"tab\t", b"cr\r", b"\r\n", b"\x1b[31m",
         b"\x7f", "é".encode(), unicodedata.normalize("NFD", "é").encode(), "日本".encode(), "\u202egpj.exe".encode(), "\U0001f600".encode(), b"n" * 255]
NOT_TEXT = [b"\xff", b"\xc3", b"a\xe9b", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"]
NO_NAMES = [b"x//f", b"tr//", b"/lead", b"./f", b"../f", b".", b"..", b"a/../b", b"../../etc/evil", b"n/./f", b"n//"]
BYTES = [bytes([b]) for b in range(1, 256) if b not in b"/."] + [b"x%cy" % b for b in range(1, 256) if b != ord("/")]


class Keys:
    """Objects by key as bytes, past Sluice and past what client libraries make of a path."""

    def __init__(self, store):
        self.store = store
        if store.kind == "ceph":
            from botocore.session import get_session
            self.credentials = get_session().get_credentials()

    def ask(self, method, key, body=b""):
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        url = f"{self.store.endpoint}/{self.store.bucket}/{urllib.parse.quote(key, safe='/-_.~')}"
        request = AWSRequest(method=method, url=url, data=body)
        S3SigV4Auth(self.credentials, "s3", "us-east-1").add_auth(request)
        where = urllib.parse.urlsplit(url)
        link = http.client.HTTPConnection(where.netloc, timeout=30)
        link.request(method, where.path, body=body, headers=dict(request.headers.items()))
        reply = link.getresponse()
        data = reply.read()
        link.close()
        return reply.status, data

    def put(self, key, data):
        """False when the store does not take such a key."""
        if self.store.kind == "ceph":
            return self.ask("PUT", key, data)[0] == 200
        self.store.put(os.fsdecode(key), data)
        return True

    def get(self, key):
        """None: no such object."""
        if self.store.kind == "ceph":
            status, data = self.ask("GET", key)
            assert status in (200, 404), (key, status)
            return data if status == 200 else None
        path = os.path.join(os.fsencode(self.store.root), key)
        if not os.path.lexists(path):
            return None
        with open(path, "rb") as f:
            return f.read()


@pytest.fixture
def keys(store):
    return Keys(store)


def at(mount, name):
    return os.path.join(os.fsencode(mount.path), name)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def check_both_ways(mount, keys, names):
    """Objects under names are seen as such and reached by them; files of such names become objects of just that key."""
    put = [n for n in names if keys.put(b"up/" + n, b"of " + n)]
    assert sorted(os.listdir(at(mount, b"up"))) == sorted(put)
    for name in put:
        assert read(at(mount, b"up/" + name)) == b"of " + name
    os.mkdir(at(mount, b"down"))
    for name in put:
        write(at(mount, b"down/" + name), b"our " + name)
    mount.wait()
    for name in put:
        assert keys.get(b"down/" + name) == b"our " + name, name
    for name in put[::2]:
        os.unlink(at(mount, b"up/" + name))
    for name in put[1::2]:
        os.rename(at(mount, b"up/" + name), at(mount, b"down/moved " + name[:240]))
    mount.wait()
    for name in put[::2]:
        assert keys.get(b"up/" + name) is None, name
    for name in put[1::2]:
        assert keys.get(b"up/" + name) is None and keys.get(b"down/moved " + name[:240]) == b"of " + name, name
    return put


def test_every_byte_is_a_name_and_a_part_of_one(mount, keys):
    """Of those that the store takes: the gateway takes what is text, which a byte above 0x7f alone is not."""
    put = check_both_ways(mount, keys, BYTES)
    assert put == (BYTES if keys.store.kind == "file" else [n for n in BYTES if max(n) < 0x80])


@pytest.mark.ceph  # else it is the one above
def test_every_byte_is_a_name_in_a_directory_as_store(base):
    made = stores.FileStore(base / "directory")
    m = Mount(made, base / "m").mount()
    try:
        assert check_both_ways(m, Keys(made), BYTES) == BYTES
    finally:
        m.finish()


@pytest.mark.ceph
def test_a_file_of_several_parts_may_have_any_control_character_in_its_name(make_mount, store, keys):
    """The store repeats the key in what it answers to a multipart upload."""
    m = make_mount(part_size="5M")
    data = os.urandom(12 << 20)
    names = [b"".join(bytes([b]) for b in range(1, 0x20)) + b"\x7f", b"one\x01"]
    for name in names:
        write(at(m, name), data)
    m.wait()
    for name in names:
        assert keys.get(name) == data
    assert m.status()["parked"] == 0 and store.uploads() == []


def test_directories_with_control_characters_in_their_names_are_listed(mount, keys):
    """The store repeats the name in the listing."""
    top = b"d" + b"".join(bytes([b]) for b in range(1, 0x20)) + b"\x7f"
    names = [b"f1", b"f2"] + [b"sub\x02"]
    for name in names[:-1]:
        assert keys.put(top + b"/" + name, b"x")
    assert keys.put(top + b"/sub\x02/f", b"below")
    assert top in os.listdir(at(mount, b""))
    assert sorted(os.listdir(at(mount, top))) == names
    assert read(at(mount, top + b"/sub\x02/f")) == b"below"


def test_names_other_tools_stumble_over(mount, keys):
    assert check_both_ways(mount, keys, NAMES) == NAMES


def test_names_that_look_alike_stay_apart(mount, keys):
    alike = [b"CASE", b"case", b"Case", "é".encode(), unicodedata.normalize("NFD", "é").encode(), b"sp", b"sp ", b"%41", b"A", b"a+b", b"a b", b"a%20b"]
    for i, name in enumerate(alike):
        write(at(mount, name), b"%d" % i)
    mount.wait()
    assert [keys.get(n) for n in alike] == [b"%d" % i for i in range(len(alike))]
    mount.remount()
    assert [read(at(mount, n)) for n in alike] == [b"%d" % i for i in range(len(alike))]


def test_names_that_are_no_text(mount, keys):
    """Kept byte for byte where the store takes them; else kept here and tried again, and nothing in other directories waits for them."""
    taken = {n: keys.put(b"up/" + n, b"up") for n in NOT_TEXT}
    keys.put(b"up/text", b"text")
    assert set(os.listdir(at(mount, b"up"))) == {n for n in NOT_TEXT if taken[n]} | {b"text"}
    ours = {n: b"down%d/" % i + n for i, n in enumerate(NOT_TEXT)}
    for name, path in ours.items():
        os.mkdir(at(mount, os.path.dirname(path)))
        write(at(mount, path), b"our " + name)
    os.mkdir(at(mount, b"beside"))
    write(at(mount, b"beside/later"), b"not held up")
    assert eventually(lambda: keys.get(b"beside/later") == b"not held up")
    for name in NOT_TEXT:
        if taken[name]:
            assert eventually(lambda n=name: keys.get(ours[n]) == b"our " + n)
    left = sum(1 for n in NOT_TEXT if not taken[n])
    assert eventually(lambda: mount.status()["dirty_files"] == left)
    mount.remount()
    for name, path in ours.items():
        assert read(at(mount, path)) == b"our " + name


@pytest.mark.ceph
def test_long_components_are_read_and_not_made(mount, keys):
    for n in (255, 256, 300, 1000, 1019):
        assert keys.put(b"d/" + b"l" * n, b"%d" % n)
    assert sorted(map(len, os.listdir(at(mount, b"d")))) == [255, 256, 300, 1000, 1019]
    for n in (255, 256, 300, 1000, 1019):
        assert read(at(mount, b"d/" + b"l" * n)) == b"%d" % n
        write(at(mount, b"d/" + b"l" * n), b"changed")
    mount.wait()
    assert keys.get(b"d/" + b"l" * 1019) == b"changed"
    os.unlink(at(mount, b"d/" + b"l" * 1000))
    mount.wait()
    assert keys.get(b"d/" + b"l" * 1000) is None


@pytest.mark.parametrize("make", [lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY)), os.mkdir, lambda p: os.symlink("x", p), os.mkfifo, os.lstat])
def test_new_components_have_255_bytes_at_most(mount, make):
    for n in (256, 1024, 1025, 4000):
        with pytest.raises(OSError) as e:
            make(at(mount, b"l" * n))
        assert e.value.errno == errno.ENAMETOOLONG
    assert os.listdir(mount.path) == []


def test_keys_longer_than_a_store_takes_are_refused_at_once(mount, keys):
    """1,024 bytes: told when the name is made, not when nobody listens any more."""
    deep = b"/".join([b"d" * 200] * 5)
    os.makedirs(at(mount, deep))
    fits = deep + b"/" + b"f" * (1024 - len(deep) - 1)
    write(at(mount, fits), b"fits")
    write(at(mount, b"short"), b"s")
    os.mkdir(at(mount, b"dir"))
    write(at(mount, b"dir/" + b"x" * 100), b"x")
    for change in (lambda: write(at(mount, fits + b"f"), b""), lambda: os.mkdir(at(mount, fits[:-1] + b"dd")),
                   lambda: os.rename(at(mount, b"short"), at(mount, fits + b"f")), lambda: os.link(at(mount, b"short"), at(mount, fits + b"f")),
                   lambda: os.symlink("x", at(mount, fits + b"f")), lambda: os.rename(at(mount, b"dir"), at(mount, deep + b"/dir"))):
        with pytest.raises(OSError) as e:
            change()
        assert e.value.errno == errno.ENAMETOOLONG
    mount.wait()
    assert keys.get(fits) == b"fits" and keys.get(b"short") == b"s"
    assert mount.status()["parked"] == 0


def test_a_marker_makes_a_directory_and_goes_with_it(mount, store):
    os.mkdir(mount.path / "empty")
    mount.wait()
    other = store.root / "theirs" if store.kind == "file" else None
    if other:
        other.mkdir()
        os.setxattr(other, "user.sluice.marker", b"1")
    else:
        assert store.head("empty/")["size"] == 0
        store.put("theirs/", b"")
    assert eventually(lambda: sorted(os.listdir(mount.path)) == ["empty", "theirs"])
    (mount.path / "theirs/f").write_text("x")
    mount.wait()
    (mount.path / "theirs/f").unlink()
    mount.wait()
    mount.remount()
    assert sorted(os.listdir(mount.path)) == ["empty", "theirs"] and os.listdir(mount.path / "theirs") == []
    for name in ("empty", "theirs"):
        os.rmdir(mount.path / name)
    mount.wait()
    assert os.listdir(mount.path) == []
    assert not list(store.root.glob("[!.]*")) if store.kind == "file" else store.head("empty/") is None and store.head("theirs/") is None


@pytest.mark.ceph
def test_a_marker_with_bytes_is_never_lost(mount, store):
    store.put("d/", b"bytes of the marker")
    store.put("e/", b"also")
    store.put("e/f", b"x")
    store.put("large/", bytes(65537))
    assert sorted(os.listdir(mount.path)) == ["d", "e", "large"] and os.listdir(mount.path / "d") == []
    assert os.getxattr(mount.path / "d", "user.sluice.marker") == b"bytes of the marker"
    for name, number in (("large", errno.E2BIG), (".", errno.ENODATA)):
        with pytest.raises(OSError) as error:
            os.getxattr(mount.path / name, "user.sluice.marker")
        assert error.value.errno == number, name
    assert "user.sluice.marker" not in os.listxattr(mount.path / "d")
    (mount.path / "d/f").write_text("x")
    mount.wait()
    (mount.path / "d/f").unlink()
    (mount.path / "e/f").unlink()
    mount.wait()
    for name in ("d", "e"):
        with pytest.raises(OSError) as error:
            os.rmdir(mount.path / name)
        assert error.value.errno == errno.ENOTEMPTY
    os.rename(mount.path / "e", mount.path / "moved")
    mount.wait()
    assert store.get("d/") == b"bytes of the marker" and store.get("e/") == b"also"
    assert mount.status()["hidden_keys"] >= 1


@pytest.mark.parametrize("gone", [False, True])
def test_bytes_that_come_while_a_marker_is_put_stay(base, monkeypatch, gone):
    """An empty one stood there and, as soon as it was looked at, or it went, one with bytes does."""
    store = lake.Lake()
    handler = store.server.RequestHandlerClass
    plain = handler.do_HEAD

    def head(self):
        old = store.objects.get("d/") if self.path.endswith("/d/") else None
        if old is None or old[0]:
            plain(self)
            return
        self.parse()
        store.put("d/", b"theirs")
        self.answer(404 if gone else 200, headers=self.of_object(old), length=0)

    monkeypatch.setattr(handler, "do_HEAD", head)
    m = Mount(store, base / "m", metadata_ttl="1h").mount()
    try:
        os.mkdir(m.path / "d")
        store.put("d/", b"")
        m.wait()
        assert store.get("d/") == b"theirs"
        assert m.status()["conflicts"] == 0
    finally:
        m.finish()
        store.remove()


@pytest.mark.ceph
def test_a_directory_stands_before_an_object_of_its_name(mount, store):
    store.put("a", b"object a")
    store.put("a/x", b"x")
    store.put("b", b"object b")
    store.put("b/", b"")
    assert sorted(os.listdir(mount.path)) == ["a", "b"]
    assert os.path.isdir(mount.path / "a") and os.path.isdir(mount.path / "b")
    assert mount.status()["hidden_keys"] >= 2
    with pytest.raises(IsADirectoryError):
        (mount.path / "a").write_text("no")
    with pytest.raises(OSError) as error:
        os.rename(mount.path / "a/x", mount.path / "b")
    assert error.value.errno == errno.EISDIR
    (mount.path / "a/x").write_text("changed")
    (mount.path / "a/y").write_text("y")
    (mount.path / "b/z").write_text("z")
    mount.wait()
    assert store.get("a") == b"object a" and store.get("b") == b"object b" and store.get("a/x") == b"changed"
    for name in ("a/x", "a/y", "b/z"):
        (mount.path / name).unlink()
    os.rmdir(mount.path / "a")
    os.rmdir(mount.path / "b")
    mount.wait()
    assert store.get("a") == b"object a" and store.get("b") == b"object b"
    assert eventually(lambda: os.path.isfile(mount.path / "a") and (mount.path / "a").read_bytes() == b"object a")
    assert eventually(lambda: os.path.isfile(mount.path / "b") and (mount.path / "b").read_bytes() == b"object b")


@pytest.mark.ceph
def test_keys_that_are_no_names_are_counted_and_unharmed(mount, keys, base):
    put = [k for k in NO_NAMES if keys.put(k, b"of " + k)]
    assert {b"x//f", b"tr//", b"/lead", b"../f", b"../../etc/evil"} <= set(put)
    keys.put(b"n/ok", b"ok")
    keys.put(b"x/ok", b"ok")
    before = set(os.listdir(base))
    for top, dirs, files in os.walk(mount.path):
        assert not [n for n in dirs + files if n in ("", ".", "..") or "/" in n]
        for name in files:
            with open(os.path.join(top, name), "rb") as f:
                f.read()
    assert read(at(mount, b"n/ok")) == b"ok"
    assert mount.status()["hidden_keys"] >= 3
    os.unlink(at(mount, b"x/ok"))
    for name in (b"x", b"tr"):
        with pytest.raises(OSError) as error:
            os.rmdir(at(mount, name))
        assert error.value.errno == errno.ENOTEMPTY, name
    assert b"x//" in [os.fsencode(k) for k in mount.info("x")["hidden_keys"]]
    assert "dir='x/' key='x//'" in mount.log()
    os.rename(at(mount, b"n"), at(mount, b"moved"))
    os.rename(at(mount, b"tr"), at(mount, b"moved tr"))
    mount.wait()
    assert keys.get(b"moved tr/") == b""
    assert keys.get(b"moved/ok") == b"ok"
    mount.remount()
    for key in put:
        assert keys.get(key) == b"of " + key, key
    assert set(os.listdir(base)) == before and not os.path.exists(base / "etc")
