"""Packs a directory into a Python wheel: writes its RECORD, and a zip file whose bytes depend on nothing else.

Usage: wheel.py DIRECTORY WHEEL EPOCH LEVEL
"""

import base64
import hashlib
import os
import stat
import sys
import time
import zipfile


def files(directory):
    """Returns the names of all files, sorted; those of the dist-info come last, as the format recommends."""
    found = []
    for parent, _, names in os.walk(directory):
        found += [os.path.relpath(os.path.join(parent, name), directory) for name in names]
    return sorted(found, key=lambda name: (".dist-info/" in name, name))


def row(name, data):
    """Returns the RECORD row of a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def main(directory, wheel, epoch, level):
    # The format has no time before 1980.
    moment = time.gmtime(max(int(epoch), 315532800))[:6]
    names = files(directory)
    record = next(name for name in names if name.endswith(".dist-info/WHEEL"))[: -len("WHEEL")] + "RECORD"
    rows = []
    with zipfile.ZipFile(wheel, "w") as archive:

        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, moment)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=int(level))

        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                data = file.read()
            add(name, data, stat.S_IMODE(os.stat(path).st_mode))
            rows.append(row(name, data))
        add(record, "".join(rows) + f"{record},,\n", 0o644)


main(*sys.argv[1:])
