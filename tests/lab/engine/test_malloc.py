import ctypes
import platform
import subprocess
import sys

import pytest

from advdrop.lab.engine import malloc
from advdrop.lab.engine.malloc import keep_freed_memory

TRIM, MMAP = -1, -3  # of glibc's <malloc.h>
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is nothing to arrange without glibc")


def library(monkeypatch, refused=()):
    """A C library that notes what it is asked for and refuses some of it."""
    asked = []

    class Library:
        def mallopt(self, parameter, value):
            asked.append((parameter, value))
            return int(asked[-1] not in refused)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    return asked


@glibc
def test_glibc_keeps_what_is_freed():
    assert keep_freed_memory() is True
    assert keep_freed_memory() is True


@glibc
@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="older ones keep blocks of 32 MB at most")
def test_a_block_that_comes_back_costs_no_new_pages():
    # In a process of its own: this one may have been told already.
    program = """
import resource, runpy, sys
if sys.argv[1] == "keep":
    assert runpy.run_path(sys.argv[2])["keep_freed_memory"]()
pages = []
for _ in range(10):
    block = bytes(1) * 40_000_000
    del block
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(pages[-1] - pages[4])
"""
    returned, kept = (
        int(subprocess.check_output([sys.executable, "-c", program, mode, malloc.__file__], timeout=240))
        for mode in ("return", "keep")
    )
    assert kept < returned / 10


def test_the_large_blocks_are_asked_for_first_and_then_the_rest(monkeypatch):
    asked = library(monkeypatch)
    assert keep_freed_memory() is True
    assert asked == [(MMAP, 2**30), (TRIM, 2**31 - 1)]


def test_an_old_glibc_takes_what_it_can(monkeypatch):
    asked = library(monkeypatch, refused=[(MMAP, 2**30)])
    assert keep_freed_memory() is True
    assert asked == [(MMAP, 2**30), (MMAP, 2**25), (TRIM, 2**31 - 1)]


@pytest.mark.parametrize("refused", [[(MMAP, 2**30), (MMAP, 2**25)], [(TRIM, 2**31 - 1)]])
def test_a_refusal_is_told(monkeypatch, refused):
    library(monkeypatch, refused)
    assert keep_freed_memory() is False


def missing(error):
    def load(name):
        raise error

    return load


@pytest.mark.parametrize(
    "load",
    [lambda name: object(), missing(OSError("no such library")), missing(TypeError("expected a path, got None"))],
    ids=["another library", "none", "windows"],
)
def test_elsewhere_nothing_is_arranged(load, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert keep_freed_memory() is False
