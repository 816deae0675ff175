"""Creates a package of each kind, with its index, in the directories of their hosts below DIRECTORY.

Usage: packages.py DIRECTORY.
"""

import base64
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

DIRECTORY = pathlib.Path(sys.argv[1])
TEXT = "the package came through the gateway"


def put(path, data):
    """Writes a file of a host. Returns the digest of its contents."""
    path = DIRECTORY / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tar(files):
    """Returns a compressed archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


def python():
    wheel, name = io.BytesIO(), "cofferdam_demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        metadata = "cofferdam_demo-1.0.dist-info"
        archive.writestr("cofferdam_demo.py", f"TEXT = {TEXT!r}\n")
        archive.writestr(f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: cofferdam-demo\nVersion: 1.0\n")
        archive.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{metadata}/RECORD", "")
    digest = put(f"files.pythonhosted.org/packages/{name}", wheel.getvalue())
    link = f'<a href="https://files.pythonhosted.org/packages/{name}#sha256={digest}">{name}</a>'
    put("pypi.org/simple/cofferdam-demo/index.html", f"<!DOCTYPE html><html><body>{link}</body></html>")


def node():
    manifest = {"name": "cofferdam-demo", "version": "1.0.0", "main": "index.js"}
    code = f"module.exports = {TEXT!r}\n"
    archive = tar({"package/package.json": json.dumps(manifest), "package/index.js": code})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    put("registry.npmjs.org/files/cofferdam-demo-1.0.0.tgz", archive)
    tarball = "https://registry.npmjs.org/files/cofferdam-demo-1.0.0.tgz"
    version = manifest | {"dist": {"tarball": tarball, "integrity": integrity}}
    index = {"name": "cofferdam-demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    put("registry.npmjs.org/cofferdam-demo", json.dumps(index))


def rust():
    manifest = '[package]\nname = "cofferdam-demo"\nversion = "1.0.0"\nedition = "2021"\n'
    root = "cofferdam-demo-1.0.0"
    crate = tar({f"{root}/Cargo.toml": manifest, f"{root}/src/lib.rs": f"// {TEXT}\n"})
    digest = put("static.crates.io/crates/cofferdam-demo/1.0.0/download", crate)
    put("index.crates.io/config.json", json.dumps({"dl": "https://static.crates.io/crates"}))
    entry = {"name": "cofferdam-demo", "vers": "1.0.0", "deps": [], "cksum": digest, "features": {}, "yanked": False}
    put("index.crates.io/co/ff/cofferdam-demo", json.dumps(entry) + "\n")


def debian():
    root, file = DIRECTORY / "tree", "cofferdam-demo_1.0_all.deb"
    put("tree/usr/share/cofferdam-demo", f"{TEXT}\n")
    control = "Package: cofferdam-demo\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example>\nDescription: x\n"
    put("tree/DEBIAN/control", control)
    (DIRECTORY / "deb.debian.org/debian").mkdir(parents=True)
    package = DIRECTORY / "deb.debian.org/debian" / file
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, package], check=True, stdout=subprocess.DEVNULL)
    data = package.read_bytes()
    entry = f"{control}Filename: ./{file}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    put("deb.debian.org/debian/Packages", entry)


python()
node()
rust()
if shutil.which("dpkg-deb"):
    debian()
