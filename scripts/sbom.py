#!/usr/bin/env python3
"""Prints the software bill of materials of saga-runner as CycloneDX 1.5, from `cargo metadata` and Cargo.lock.

It has what the default build for one target links: no test and no build dependency. sbom.py TARGET
"""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def metadata(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(meta, start):
    """Ids of the packages that the package links, and of each those that it needs."""
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    needs, todo = {}, [start]
    while todo:
        package = todo.pop()
        if package in needs:
            continue
        needs[package] = sorted(
            dependency["pkg"]
            for dependency in nodes[package]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        )
        todo += needs[package]
    return needs


def component(package, checksums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
    }
    if package["license"]:
        # Some packages still write `A/B` for `A OR B`.
        expression = package["license"].replace(" / ", " OR ").replace("/", " OR ")
        entry["licenses"] = [{"expression": expression}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def reference(package):
    return f"{package['name']}@{package['version']}"


def main():
    meta = metadata(sys.argv[1])
    packages = {package["id"]: package for package in meta["packages"]}
    start = next(id for id, package in packages.items() if package["name"] == "saga-runner")
    needs = linked(meta, start)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}
    program = component(packages[start], checksums) | {"type": "application"}
    libraries = sorted((packages[id] for id in needs if id != start), key=reference)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": program, "properties": [{"name": "cargo:target", "value": sys.argv[1]}]},
        "components": [component(package, checksums) for package in libraries],
        "dependencies": [
            {"ref": reference(packages[id]), "dependsOn": [reference(packages[need]) for need in needs[id]]}
            for id in sorted(needs, key=lambda id: reference(packages[id]))
        ],
    }
    # The same tree has the same text: the time is that of the commit, where there is one.
    if time := os.environ.get("SBOM_TIME"):
        bom["metadata"]["timestamp"] = time
    json.dump(bom, sys.stdout, indent=1)
    print()


main()
