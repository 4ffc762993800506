#!/bin/sh
# sbom.sh COMPILED_IN BUNDLED: prints the bill of materials of this root file system as SPDX 2.3 JSON: every installed Debian
# package, those in the table COMPILED_IN (name, version, architecture, source package; tabs), whose code is part of
# the program, and the libraries of others in the table BUNDLED, which no package installed. Scanners look up vulnerabilities by the package URLs. Needs SOURCE_DATE_EPOCH.
set -eu
table=$(mktemp)
trap 'rm -f "$table"' EXIT
dpkg-query --show --showformat 'installed\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n' |
  LC_ALL=C sort >"$table"
sed 's/^/compiled-in\t/' "$1" >>"$table"
sed 's/^/bundled\t/' "$2" >>"$table"
hash=$(sha256sum <"$table" | cut -d ' ' -f 1)

awk -F '\t' -v created="$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" -v hash="$hash" '
function package_url(kind, name, version, architecture) {
  if (kind == "bundled") return "pkg:generic/" name "@" version
  gsub(/\+/, "%2B", name)
  gsub(/\+/, "%2B", version)
  gsub(/:/, "%3A", version)
  return "pkg:deb/debian/" name "@" version "?arch=" architecture "&distro=debian-12"
}
BEGIN {
  print "{"
  print "  \"spdxVersion\": \"SPDX-2.3\","
  print "  \"dataLicense\": \"CC0-1.0\","
  print "  \"SPDXID\": \"SPDXRef-DOCUMENT\","
  print "  \"name\": \"tessera image\","
  print "  \"documentNamespace\": \"https://tessera.invalid/spdx/" hash "\","
  print "  \"creationInfo\": {\"created\": \"" created "\", \"creators\": [\"Tool: tessera-sbom.sh\"]},"
  print "  \"packages\": ["
}
{
  id = "SPDXRef-" $1 "-" $2
  gsub(/[^A-Za-z0-9.-]/, "-", id)
  if ($2 == "tessera") program = id
  else ids[++count] = id
  kind[id] = $1
  printf "%s    {\"SPDXID\": \"%s\", \"name\": \"%s\", \"versionInfo\": \"%s\", ", separator, id, $2, $3
  printf "\"sourceInfo\": \"%s %s\", ", $1 == "bundled" ? "a file of" : "built from Debian source package", $5
  printf "\"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, \"licenseConcluded\": \"NOASSERTION\", "
  printf "\"licenseDeclared\": \"%s\", \"copyrightText\": \"NOASSERTION\"", $2 == "tessera" ? "Apache-2.0" : "NOASSERTION"
  if ($2 != "tessera")
    printf ", \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", " \
           "\"referenceLocator\": \"%s\"}]", package_url($1, $2, $3, $4)
  printf "}"
  separator = ",\n"
}
END {
  print "\n  ],\n  \"relationships\": ["
  printf "    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", " \
         "\"relatedSpdxElement\": \"%s\"}", program
  for (i = 1; i <= count; ++i)
    printf ",\n    {\"spdxElementId\": \"%s\", \"relationshipType\": \"%s\", \"relatedSpdxElement\": \"%s\"}", program,
           kind[ids[i]] == "compiled-in" ? "STATIC_LINK" : "DEPENDS_ON", ids[i]
  print "\n  ]\n}"
}' "$table"
