#!/usr/bin/env python3
"""Prints the components of the programs as CycloneDX 1.5, from `cargo metadata` on standard input.

usage: cargo metadata --locked --format-version 1 --filter-platform TARGET | sbom.py
The same dependencies give the same bytes: no time and no serial number.
"""
import json
import sys

PROGRAMS = ("acp-gateway", "acp-supervisor", "acp-wrapper", "acp-acpx-bridge")

metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}


def ref(identity):
    package = packages[identity]
    return f"pkg:cargo/{package['name']}@{package['version']}"


def needed(identity):
    """Dependencies that are compiled into a program or build it; not those of tests."""
    for dependency in nodes[identity]["deps"]:
        if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
            yield dependency["pkg"]


roots = [identity for identity, package in packages.items() if package["name"] in PROGRAMS]
found, pending = set(), list(roots)
while pending:
    identity = pending.pop()
    if identity not in found:
        found.add(identity)
        pending.extend(needed(identity))


def component(identity):
    package = packages[identity]
    entry = {
        "type": "application" if package["name"] in PROGRAMS else "library",
        "bom-ref": ref(identity),
        "name": package["name"],
        "version": package["version"],
        "purl": ref(identity),
    }
    if package["license"]:
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return entry


# Modules of the web console that are part of acp-gateway; gateway/console/vendor has them with their licences. htm does not
# tell which Preact its file contains.
VENDORED = [("htm", "3.1.1", "Apache-2.0"), ("marked", "18.2.1", "MIT"), ("preact", None, "MIT")]


def vendored(name, version, licence):
    purl = f"pkg:npm/{name}@{version}" if version else f"pkg:npm/{name}"
    entry = {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "licenses": [{"expression": licence}]}
    return entry | ({"version": version} if version else {})


version = next(packages[identity]["version"] for identity in roots)
order = sorted(found, key=ref)
bom = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": {"type": "application", "bom-ref": "acp-host", "name": "acp-host", "version": version}},
    "components": [component(identity) for identity in order] + [vendored(*entry) for entry in VENDORED],
    "dependencies": [{"ref": "acp-host", "dependsOn": sorted(ref(identity) for identity in roots)}]
    + [
        {"ref": ref(identity), "dependsOn": sorted({ref(other) for other in needed(identity)})}
        for identity in order
    ],
}
json.dump(bom, sys.stdout, indent=1)
print()
