#!/usr/bin/python3
"""Checks who may include whom.

Layers, lowest first: meta/base < meta < s3 < cache < fs < tools < tests; a file includes only what is its own layer's or below.
Each foreign library has one owner. Prints one line per offence; exit 1 if there is any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = ["meta/base", "meta", "s3", "cache", "fs", "tools", "tests"]
# From s3/ only base and the shared vocabulary of meta are visible, never the database.
S3_MAY_SEE_OF_META = {"meta/types.h"}
OWNERS = {
    r"curl/.*": {"s3/http.c"},
    r"libxml/.*": {"s3/s3_xml.c"},
    r"rocksdb/.*": {"meta/meta_db.c"},
    r"fuse.*": "fs/",
    r"openssl/.*": "s3/",
    r"microhttpd\.h": "fs/",
    r"gnutls/.*": {"fs/http_tls.c"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def layer_of(path):
    best = None
    for layer in LAYERS:
        if path.startswith(layer + "/") and (best is None or len(layer) > len(best)):
            best = layer
    return best


def resolve(name, source):
    """The repository path of an include, None if it is not the project's."""
    for base in (source.parent, ROOT, ROOT / "meta", ROOT / "s3", ROOT / "cache", ROOT / "fs", ROOT / "tools", ROOT / "tests/support"):
        path = base / name
        if path.is_file():
            return str(path.resolve().relative_to(ROOT))
    return None


def check(source):
    rel = str(source.relative_to(ROOT))
    mine = layer_of(rel)
    if mine is None:
        return
    for kind, name in INCLUDE.findall(source.read_text(errors="replace")):
        if kind == "<":
            for pattern, owner in OWNERS.items():
                if not re.fullmatch(pattern, name) or mine == "tests":
                    continue
                allowed = rel.startswith(owner) if isinstance(owner, str) else rel in owner
                if not allowed:
                    yield f"{rel}: only {owner} may include <{name}>"
            continue
        target = resolve(name, source)
        if target is None:
            yield f'{rel}: cannot find "{name}"'
            continue
        theirs = layer_of(target)
        if theirs is None:
            continue
        if LAYERS.index(theirs) > LAYERS.index(mine):
            yield f"{rel}: {mine} may not include {target} of the layer above"
        if mine == "s3" and theirs == "meta" and target not in S3_MAY_SEE_OF_META:
            yield f"{rel}: s3 may use base/ and types.h only, not {target}"


def main():
    sources = [p for layer in ("meta", "s3", "cache", "fs", "tools", "tests") for p in sorted((ROOT / layer).rglob("*.[ch]"))]
    offences = [line for p in sources for line in check(p)]
    print("\n".join(offences) or f"layers: {len(sources)} files, no offence")
    return 1 if offences else 0


sys.exit(main())
