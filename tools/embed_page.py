#!/usr/bin/env python3
"""Writes the files of the page as one C++ source: each as it is and gzip'ed, with its type and entity tag.

    embed_page.py OUT.cc FILE…

The same files give the same bytes out (no times, no paths), so that the object is cached and builds are reproducible.
What is declared here is declared in src/server/page.h.
"""
import gzip
import hashlib
import pathlib
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def literal(data):
    """Octal escapes of three digits cannot run into the character after them."""
    lines = []
    for at in range(0, len(data), 48):
        lines.append('"' + "".join(f"\\{byte:03o}" for byte in data[at:at + 48]) + '"')
    return "\n".join(lines)


def main():
    out, files = pathlib.Path(sys.argv[1]), [pathlib.Path(f) for f in sys.argv[2:]]
    entries = []
    for file in sorted(files, key=lambda f: f.name):
        data = file.read_bytes()
        packed = gzip.compress(data, 9, mtime=0)
        tag = hashlib.sha256(data).hexdigest()[:16]
        entries.append(f'{{"{file.name}", "{TYPES[file.suffix]}", "{tag}",\nstd::string_view({literal(data)}, {len(data)}),\n'
                       f'std::string_view({literal(packed)}, {len(packed)})}},\n')
    out.write_text('#include "server/page.h"\n\nnamespace sluice {\nnamespace {\nconstexpr PageFile kFiles[] = {\n' + "".join(entries) +
                   "};\n}  // namespace\nstd::span<const PageFile> page_files() { return kFiles; }\n}  // namespace sluice\n")


if __name__ == "__main__":
    main()
