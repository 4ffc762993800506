#!/usr/bin/python3
"""sbom_check.py SBOM PACKAGES: compares the SPDX document with `dpkg-query --show` of the same image."""
import json
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    document = json.load(file)
with open(sys.argv[2], encoding="utf-8") as file:
    installed = dict(line.rstrip("\n").split("\t") for line in file)
installed = {name.split(":")[0]: version for name, version in installed.items()}

problems = []
packages = document["packages"]
listed = {p["name"]: p["versionInfo"] for p in packages if p["SPDXID"].startswith("SPDXRef-installed-")}
if listed != installed:
    problems.append(f"lists other packages than are installed: {set(listed.items()) ^ set(installed.items())}")
compiled_in = {p["name"] for p in packages if p["SPDXID"].startswith("SPDXRef-compiled-in-")}
if compiled_in != {"libasio-dev", "libboost-dev", "libhwy-dev", "nlohmann-json3-dev"}:
    problems.append(f"lists as compiled in: {compiled_in}")
ids = [p["SPDXID"] for p in packages]
if len(set(ids)) != len(ids):
    problems.append("two packages have one SPDXID")
for package in packages:
    for reference in package.get("externalRefs", []):
        if not re.fullmatch(r"pkg:deb/debian/[a-z0-9.%B-]+@[A-Za-z0-9.~%-]+\?arch=[a-z0-9]+&distro=debian-12",
                            reference["referenceLocator"]):
            problems.append(f"no package URL: {reference['referenceLocator']}")
    if not re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", package["SPDXID"]):
        problems.append(f"no SPDX identifier: {package['SPDXID']}")
relations = document["relationships"]
described = [r["relatedSpdxElement"] for r in relations if r["relationshipType"] == "DESCRIBES"]
if described != ["SPDXRef-installed-tessera"]:
    problems.append(f"describes {described}")
if {r["relatedSpdxElement"] for r in relations} != set(ids):
    problems.append("packages and relationships do not have the same elements")
for field, value in {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT"}.items():
    if document[field] != value:
        problems.append(f"{field} is {document[field]}")
for problem in problems:
    print(f"{sys.argv[1]}: {problem}")
sys.exit(1 if problems else 0)
