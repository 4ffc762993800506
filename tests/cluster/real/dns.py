#!/usr/bin/env python3
"""dns.py ADDRESS: the names of pods as CoreDNS serves them, HOST.SERVICE.NAMESPACE.svc.cluster.local, and of Services with one pod,
from the endpoints of headless Services. It asks the API server every half second."""
import sys
import time

from cluster import ROOT, request

sys.path.insert(0, f"{ROOT}/tests/rehearsal")
import name_server  # noqa: E402  pylint: disable=wrong-import-position

name_server.NAME_DELAY_S = 0


def names():
    for part in request("GET", "apis/discovery.k8s.io/v1/endpointslices")["items"]:
        service = part["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        name = f"{service}.{part['metadata']['namespace']}.svc.cluster.local"
        ready = [each for each in part.get("endpoints") or [] if each["conditions"].get("ready")]
        if len(ready) == 1:
            yield name, ready[0]["addresses"][0]
        for endpoint in ready:
            if "hostname" in endpoint:
                yield f"{endpoint['hostname']}.{name}", endpoint["addresses"][0]


def main():
    server, known = name_server.NameServer(sys.argv[1]), {}
    while True:
        now = dict(names())
        for name, address in known.items() - now.items():
            server.withdraw(name, address)
        for name, address in now.items() - known.items():
            server.publish(name, address)
        known = now
        time.sleep(0.5)


main()
