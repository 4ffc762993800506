"""For manifests_check.py: whether card-monitor.json takes the right lines of the kernel log for faults of a card."""
import json, re

# Lines of the kernel log, and the reason that card-monitor.json gives them; None for those that are no fault of the node.
MESSAGES = [
    ("NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "CardLost"),
    ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1896, name=tessera, An uncorrectable double bit error (DBE) has been detected", "CardMemoryFault"),
    ("NVRM: Xid (PCI:0000:10:1c): 64, pid=1896, Row Remapper: failed to remap", "CardMemoryFault"),
    ("NVRM: Xid (PCI:0002:00:00): 119, pid=1582259, name=nvc:[driver], Timeout after 6s of waiting for RPC response", "CardFirmwareFault"),
    ("NVRM: Xid (PCI:0000:b3:00): 74, pid=0, NVLink: fatal error detected on link 11(0x10000, 0x0)", "NvLinkFault"),
    ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "NvSwitchFault"),
    ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error", "NvSwitchError"),
    ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping", "CardMemoryWears"),
    ("NVRM: Xid (PCI:000f:01:00): 13, Graphics SM Warp Exception: Illegal Instruction Parameter", None),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=tessera, MMU Fault", None),
    ("NVRM: Xid (PCI:0000:3b:00): 45, pid=77, Ch 00000008", None),
    ("NVRM: Xid (PCI:0000:3b:00): 148, pid=77", None),
]


def mistakes(path):
    """What is wrong with the configuration, a sentence each."""
    monitor = json.loads(path.read_text())
    if [c["type"] for c in monitor["conditions"]] != ["TesseraCardFault"]:
        yield "card-monitor.json: condition"
    for rule in monitor["rules"]:
        if rule.get("condition", "") != ("TesseraCardFault" if rule["type"] == "permanent" else ""):
            yield rule["reason"]
    for message, reason in MESSAGES:
        # The detector searches for the pattern at the end of the message.
        found = [rule["reason"] for rule in monitor["rules"] if re.search(rule["pattern"] + r"\Z", message)]
        if found != ([reason] if reason else []):
            yield f"{message}: expected {reason}, found {found}"
    if {rule["reason"] for rule in monitor["rules"]} != {reason for _, reason in MESSAGES} - {None}:
        yield "a rule without a message"
