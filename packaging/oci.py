#!/usr/bin/env python3
"""Prints an OCI archive with one layer. usage: oci.py ROOT.tar ROOT.tar.gz VERSION ARCHITECTURE

The format is that of the OCI image specification 1.0: a directory of blobs named by their digest, in a tar file.
SOURCE_DATE_EPOCH is the time of the image, so that the same root gives the same bytes.
"""
import datetime
import hashlib
import io
import json
import os
import sys
import tarfile

root, layer, version, architecture = sys.argv[1:]
time = int(os.environ["SOURCE_DATE_EPOCH"])
archive = tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add(name, size, content):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, time, 0o644
    archive.addfile(entry, content)


def descriptor(kind, digest, size):
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}


def blob(kind, value):
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    add(f"blobs/sha256/{digest}", len(data), io.BytesIO(data))
    return descriptor(kind, digest, len(data))


layer_digest, layer_size = sha256(layer), os.path.getsize(layer)
with open(layer, "rb") as file:
    add(f"blobs/sha256/{layer_digest}", layer_size, file)
config = blob(
    "config.v1+json",
    {
        "architecture": architecture,
        "os": "linux",
        "created": datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "config": {
            "User": "acp",
            "WorkingDir": "/home/acp",
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/acp", "LANG=C.UTF-8"],
            "Cmd": ["acp-gateway", "up"],
            "Volumes": {"/home/acp": {}},
            "Labels": {"org.opencontainers.image.title": "acp-host", "org.opencontainers.image.version": version},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(root)}"]},
        "history": [{"created_by": "packaging/image.sh"}],
    },
)
manifest = blob(
    "manifest.v1+json",
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [descriptor("layer.v1.tar+gzip", layer_digest, layer_size)],
    },
)
manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
for name, value in [
    ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
    ("index.json", {"schemaVersion": 2, "manifests": [manifest]}),
]:
    data = json.dumps(value, sort_keys=True).encode()
    add(name, len(data), io.BytesIO(data))
archive.close()
