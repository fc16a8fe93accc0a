"""How readers of packed formats go through a file, cold: no byte is fetched twice, and little that was not asked for."""
import io
import mmap
import os
import random
import tarfile

import pytest
from mounts import MIB, eventually
from test_passthrough import blob

KIB = 1024
SIZE = 48 * MIB


@pytest.fixture
def lake(make_mount, store):
    """lake(name, data=None): path of a cold file, of SIZE bytes if nothing is said, its bytes, and a function for the bytes downloaded since."""
    m = make_mount(open_fill="1M")

    def make(name, data=None):
        data = blob(name, SIZE) if data is None else data
        store.put(name, data)
        before = m.status()["downloaded_bytes"]
        return m.path / name, data, lambda: m.status()["downloaded_bytes"] - before
    return make


def read(fd, data, off, size):
    assert os.pread(fd, size, off) == data[off:off + size]


def test_tar_shard_read_through(lake):
    path, data, downloaded = lake("shard-000.tar")
    with open(path, "rb", buffering=0) as f:
        off = 0
        while off < SIZE:  # a header, then the member
            read(f.fileno(), data, off, 512)
            size = min(100 * KIB, SIZE - off - 512)
            read(f.fileno(), data, off + 512, size)
            off += 512 + size
    assert downloaded() == SIZE


def test_tfrecord_read_with_small_buffers(lake):
    path, data, downloaded = lake("train.tfrecord")
    with open(path, "rb", buffering=256 * KIB) as f:
        for off in range(0, SIZE, 1000_000):
            assert f.read(12) == data[off:off + 12]
            assert f.read(min(1000_000 - 12, SIZE - off - 12)) == data[off + 12:off + 1000_000]
    assert downloaded() == SIZE


def tar_of(n, size):
    """A tar file, and its members' names and bytes."""
    members = {f"{i:05}.jpg": blob(i, size + i) for i in range(n)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue(), members


@pytest.mark.parametrize("name", ["shard.tar", "shard.unknown"])
def test_tar_whose_headers_are_read_first_and_its_members_in_any_order(lake, name):
    data, members = tar_of(400, 100 * KIB)
    path, _, downloaded = lake(name, data)
    order = sorted(members)
    random.Random(5).shuffle(order)
    with open(path, "rb", buffering=0) as f, tarfile.open(fileobj=f) as tar:
        assert tar.getnames() == sorted(members)
        for member in order:
            assert tar.extractfile(member).read() == members[member]
    assert downloaded() <= len(data)


def test_tfrecords_in_any_order_by_an_index(lake):
    path, data, downloaded = lake("shuffled.tfrecord")
    record = 150_000
    offsets = list(range(0, SIZE - record, record))
    random.Random(6).shuffle(offsets)
    with open(path, "rb", buffering=0) as f:
        for off in offsets:  # length and its checksum, then the record with its own
            read(f.fileno(), data, off, 12)
            read(f.fileno(), data, off + 12, record - 12)
    assert downloaded() <= SIZE


def test_parquet_whose_columns_are_all_read(lake):
    path, data, downloaded = lake("part-1.parquet")
    groups, columns, chunk, footer = 6, 8, MIB, 40 * KIB
    assert groups * columns * chunk == SIZE
    with open(path, "rb", buffering=0) as f:
        read(f.fileno(), data, SIZE - 8, 8)
        read(f.fileno(), data, SIZE - footer, footer - 8)
        assert downloaded() <= 4 * footer, "a footer is not a reason to fetch the file"
        for c in (5, 0, 7, 2, 1, 6, 3, 4):
            for g in range(groups):
                read(f.fileno(), data, (g * columns + c) * chunk, chunk)
    assert downloaded() == SIZE


def test_safetensors_header_then_tensors_in_any_order(lake):
    path, data, downloaded = lake("model.safetensors")
    tensors = [(off, min(3 * MIB, SIZE - off)) for off in range(64 * KIB, SIZE, 3 * MIB)]
    random.Random(1).shuffle(tensors)
    with open(path, "rb", buffering=0) as f:
        read(f.fileno(), data, 0, 8)
        read(f.fileno(), data, 8, 64 * KIB - 8)
        assert downloaded() <= 4 * MIB, "an index is not a reason to fetch the file"
        for off, size in tensors:
            read(f.fileno(), data, off, size)
    assert downloaded() == SIZE


def test_safetensors_mapped(lake):
    path, data, downloaded = lake("mapped.safetensors")
    order = list(range(0, SIZE, 2 * MIB))
    random.Random(2).shuffle(order)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for off in order:
            assert mapped[off:off + 2 * MIB] == data[off:off + 2 * MIB]
    assert downloaded() == SIZE


def test_weights_are_complete_behind_after_one_tensor(lake):
    path, data, downloaded = lake("one.safetensors")
    with open(path, "rb", buffering=0) as f:
        read(f.fileno(), data, 20 * MIB, MIB)
    assert eventually(lambda: downloaded() == SIZE)


def test_parquet_footer_then_columns(lake):
    path, data, downloaded = lake("part-0.parquet")
    group, column = 12 * MIB, 1 * MIB  # four row groups, of each the third column
    with open(path, "rb", buffering=0) as f:
        read(f.fileno(), data, SIZE - 8, 8)
        read(f.fileno(), data, SIZE - 64 * KIB, 64 * KIB)
        for g in range(SIZE // group):
            for page in range(0, column, 128 * KIB):
                read(f.fileno(), data, g * group + 2 * column + page, 128 * KIB)
    # The kernel reads three times as far as the program does, and we once more as far as the kernel.
    assert downloaded() <= SIZE // group * 6 * column + MIB, "columns that were not asked for"


def test_hdf5_superblock_then_chunks(lake):
    path, data, downloaded = lake("data.h5")
    chunks = [off for off in range(4 * KIB, SIZE - 256 * KIB, 256 * KIB)]
    random.Random(3).shuffle(chunks)
    with open(path, "rb", buffering=0) as f:
        read(f.fileno(), data, 0, 96)
        read(f.fileno(), data, 0, 2 * KIB)
        for off in chunks:
            read(f.fileno(), data, off, 256 * KIB)
    assert downloaded() <= SIZE


@pytest.fixture
def hdf5(base, lake):
    """hdf5(): an HDF5 file that libhdf5 made, cold, as lake() has it, and its rows."""
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    rows = numpy.random.default_rng(7).integers(0, 256, (320, 128 * KIB), dtype=numpy.uint8)
    with h5py.File(base / "made.h5", "w") as f:
        f.create_dataset("images", data=rows, chunks=(1, rows.shape[1]))
        for i in range(200):
            f.create_group(f"meta/{i}").attrs["label"] = i
    return h5py, rows, *lake("images.h5", (base / "made.h5").read_bytes())


def test_hdf5_that_its_library_reads_in_any_order(hdf5):
    h5py, rows, path, data, downloaded = hdf5
    order = list(range(len(rows)))
    random.Random(8).shuffle(order)
    with h5py.File(path, "r") as f:
        assert f["meta/77"].attrs["label"] == 77
        assert downloaded() <= len(data) // 4, "an index is not a reason to fetch the file"
        for i in order:
            assert (f["images"][i] == rows[i]).all()
    assert downloaded() <= len(data)


def test_hdf5_of_which_its_library_reads_a_few_rows(hdf5):
    h5py, rows, path, _, downloaded = hdf5
    few = random.Random(9).sample(range(len(rows)), 20)
    with h5py.File(path, "r") as f:
        for i in few:
            assert (f["images"][i] == rows[i]).all()
    assert downloaded() <= 4 * len(few) * rows.shape[1] + 4 * MIB


def test_random_reads_fetch_at_most_four_times_what_they_ask(lake):
    path, data, downloaded = lake("tokens.dat")
    rnd, n = random.Random(4), 60
    with open(path, "rb", buffering=0) as f:
        for _ in range(n):
            read(f.fileno(), data, rnd.randrange(0, SIZE - 64 * KIB), 64 * KIB)
    assert downloaded() <= 4 * n * 64 * KIB


def test_a_quarter_read_in_order_brings_the_rest(lake):
    path, data, downloaded = lake("corpus.txt")
    with open(path, "rb", buffering=0) as f:
        for off in range(0, SIZE // 3, 256 * KIB):
            read(f.fileno(), data, off, 256 * KIB)
    assert eventually(lambda: downloaded() == SIZE)
