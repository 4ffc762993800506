"""The cluster's DNS: full names of pods, which appear some time after their containers and vanish with them. Podman's own
name server has aliases only, from the start."""
import socket
import struct
import threading
import time

# Until a new pod's name can be resolved; in a cluster the endpoints controller and CoreDNS take about as long.
NAME_DELAY_S = 0.5

TYPE_A, CLASS_IN = 1, 1
NO_ERROR, NO_SUCH_NAME = 0, 3


def answer(query, addresses):
    """The answer to a DNS query; `addresses`: dotted IPv4 by lower-case name."""
    ident, _, num_questions = struct.unpack("!HHH", query[:6])
    labels, at = [], 12
    while (length := query[at]) != 0:
        labels.append(query[at + 1:at + 1 + length].decode("ascii"))
        at += 1 + length
    kind, _ = struct.unpack("!HH", query[at + 1:at + 5])
    question = query[12:at + 5]
    address = addresses.get(".".join(labels).lower()) if num_questions == 1 else None
    records = b""
    if address is not None and kind == TYPE_A:
        # 0xC00C: the name of the question. A time to live of 0, so that nobody remembers a pod that is gone.
        records = struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, 0, 4) + socket.inet_aton(address)
    flags = 0x8580 | (NO_SUCH_NAME if address is None else NO_ERROR)  # an authoritative response
    return struct.pack("!HHHHHH", ident, flags, 1, 1 if records else 0, 0, 0) + question + records


class NameServer:
    """Serves UDP port 53 of `address` until closed."""

    def __init__(self, address):
        self.lock = threading.Lock()
        self.names = {}  # name: (address, time from which on it is known)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # The bridge has its address once the first container is there.
        self.socket.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND
        self.socket.bind((address, 53))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def publish(self, name, address):
        with self.lock:
            self.names[name.lower()] = (address, time.monotonic() + NAME_DELAY_S)

    def withdraw(self, name, address):
        """Unless the name is another pod's by now."""
        with self.lock:
            if self.names.get(name.lower(), ("",))[0] == address:
                del self.names[name.lower()]

    def serve(self):
        while True:
            query, sender = self.socket.recvfrom(512)
            if len(query) < 17:  # empty: sent by close
                return
            with self.lock:
                now = time.monotonic()
                known = {name: address for name, (address, since) in self.names.items() if since <= now}
            self.socket.sendto(answer(query, known), sender)

    def close(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self.socket.getsockname())
        self.thread.join(timeout=5)
        self.socket.close()
