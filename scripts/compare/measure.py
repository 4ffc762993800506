"""Runs a training job of several ranks and measures it from outside: when each step ended, memory, loopback traffic."""

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import pathlib
import re
import socket
import struct
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
SAMPLE_SECONDS = 1.0  # a sample walks all page tables: tens of milliseconds for a large process


@dataclasses.dataclass
class Measured:
    seconds: float = 0.0  # of the whole command
    step_times: list = dataclasses.field(default_factory=list)  # since its start, as its log says a step's loss
    step_bytes: list = dataclasses.field(default_factory=list)  # through the loopback device until then
    rank_peaks: dict = dataclasses.field(default_factory=dict)  # bytes resident (VmHWM) by rank
    total_peak: int = 0  # largest sum of all processes' memory, shared pages counted once (PSS)
    own_network: bool = False  # nothing else used the loopback device


def own_loopback():
    """Gives the process a loopback device that nobody else uses. Needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))
    return True


def loopback_bytes(pid):
    text = pathlib.Path(f"/proc/{pid}/net/dev").read_text()
    return int(re.search(r"^\s*lo:\s*(\d+)", text, re.MULTILINE).group(1))


def descendants(pid):
    found = [pid]
    for process in found:
        for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                pass  # it has ended
    return found


def sample_memory(pid, measured, rank_of):
    total = 0
    for process in descendants(pid):
        folder = pathlib.Path(f"/proc/{process}")
        try:
            total += 1024 * int(re.search(r"^Pss:\s*(\d+)", (folder / "smaps_rollup").read_text(), re.MULTILINE).group(1))
            peak = 1024 * int(re.search(r"^VmHWM:\s*(\d+)", (folder / "status").read_text(), re.MULTILINE).group(1))
            if process not in rank_of:
                found = re.search(rb"(?:^|\0)LOCAL_RANK=(\d+)", (folder / "environ").read_bytes())
                rank_of[process] = int(found.group(1)) if found else None
        except (OSError, AttributeError):
            continue  # it has ended
        rank = rank_of[process]
        if rank is not None:
            measured.rank_peaks[rank] = max(measured.rank_peaks.get(rank, 0), peak)
    measured.total_peak = max(measured.total_peak, total)


def follow_log(stream, log_path, begin, pid, measured):
    """Copies the log to a file and notes when each step's loss appears in it."""
    tail = b""
    with open(log_path, "wb", buffering=0) as log:
        while chunk := os.read(stream.fileno(), 65536):
            now = time.monotonic() - begin
            log.write(chunk)
            tail += chunk
            for _ in re.findall(rb"'loss': ", tail):
                measured.step_times.append(now)
                measured.step_bytes.append(loopback_bytes(pid))
            last = tail.rfind(b"'loss': ")
            tail = tail[last + len(b"'loss': ") :] if last >= 0 else tail[-16:]


def run(command, log_path, environment):
    """Runs `command`, a list; its output goes to log_path. Ends the program if it fails."""
    measured = Measured(own_network=os.geteuid() == 0)
    prepare = own_loopback if measured.own_network else None
    begin = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, preexec_fn=prepare
    ) as process:
        reader = threading.Thread(target=follow_log, args=(process.stdout, log_path, begin, process.pid, measured))
        reader.start()
        rank_of = {}
        while process.poll() is None:
            sample_memory(process.pid, measured, rank_of)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_SECONDS)
        reader.join()
    measured.seconds = time.monotonic() - begin
    if process.returncode != 0:
        raise SystemExit(f"error: exit code {process.returncode}, see {log_path}: {' '.join(map(str, command))}")
    return measured
