#!/usr/bin/env python3
"""Ways to read a model file, cold (its pages dropped) and warm, a pass over all bytes included: what loading does, which
packs weights as it goes (here: Adler's checksum). Prints GB/s, the median of --rounds, each way in turn.

    python3 bench/model_files.py models/*.gguf                # about half a minute a GB
"""
import argparse
import mmap
import os
import statistics
import threading
import time
import zlib

BLOCK = 4 << 20


def look_at(block):
    zlib.adler32(block)


def mapped(path, advice=None):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        if advice is not None:
            pages.madvise(advice)
        with memoryview(pages) as view:
            for at in range(0, len(view), BLOCK):
                with view[at : at + BLOCK] as block:
                    look_at(block)


def read_through(path, flags=0, readers=1):
    """Blocks of 4 MiB into a buffer of the reader's, by so many threads at once."""
    size = os.path.getsize(path)

    def run(which):
        fd = os.open(path, os.O_RDONLY | flags)
        buffer = mmap.mmap(-1, BLOCK)  # aligned as O_DIRECT wants it
        with memoryview(buffer) as view:
            for at in range(which * BLOCK, size, readers * BLOCK):
                got = os.preadv(fd, [buffer], at)
                with view[:got] as block:
                    look_at(block)
        os.close(fd)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS = {
    "mmap": lambda path: mapped(path),
    "mmap, MADV_SEQUENTIAL": lambda path: mapped(path, mmap.MADV_SEQUENTIAL),
    "mmap, MADV_WILLNEED": lambda path: mapped(path, mmap.MADV_WILLNEED),
    "read": lambda path: read_through(path),
    "O_DIRECT": lambda path: read_through(path, os.O_DIRECT),
    "O_DIRECT, 4 at once": lambda path: read_through(path, os.O_DIRECT, 4),
}


def drop(path):
    os.sync()
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for path in args.files:
        size = os.path.getsize(path)
        times = {(way, state): [] for way in WAYS for state in ("cold", "warm")}
        for _ in range(args.rounds):
            for way, read in WAYS.items():
                for state in ("cold", "warm"):
                    if state == "cold":
                        drop(path)
                    else:
                        read_through(path)
                    start = time.perf_counter()
                    read(path)
                    times[way, state].append(time.perf_counter() - start)
        print(f"{os.path.basename(path)}, {size / 1e6:.0f} MB{'':>6} cold GB/s  warm GB/s")
        for way in WAYS:
            cold, warm = (size / 1e9 / statistics.median(times[way, state]) for state in ("cold", "warm"))
            print(f"  {way:24} {cold:12.2f} {warm:10.2f}")


if __name__ == "__main__":
    main()
