#!/usr/bin/env python3
"""Golden values of the key schedule, from Python's hmac alone: python3 vectors.py > vectors.json"""
import hashlib, hmac, json, struct

def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()

def expand(prk, info, size):
    out, block, i = b"", b"", 0
    while len(out) < size:
        i += 1
        block = mac(prk, block + info + bytes([i]))
        out += block
    return out[:size]

def case(seed, number, sender, receiver, lanes):
    dek = hashlib.sha256(b"dek" + seed).digest()
    exporter = hashlib.sha256(b"exporter" + seed).digest()
    prk = mac(dek, exporter)
    tail = b"\0" + sender.encode() + b"\0" + receiver.encode() + b"\0" + struct.pack(">Q", number)
    sas = [expand(prk, b"weft sa v1" + tail + bytes([lane]), 36) for lane in range(lanes)]
    return {
        "dek": dek.hex(), "exporter": exporter.hex(), "number": number, "from": sender, "to": receiver,
        "id": expand(prk, b"weft sa id v1" + tail, 8).hex(),
        "lanes": [{"key": sa[:32].hex(), "salt": sa[32:].hex()} for sa in sas],
    }

print(json.dumps([
    case(b"1", 1, "a", "b", 1),
    case(b"1", 1, "b", "a", 2),
    case(b"2", 15, "node-1.example", "node-2.example", 8),
    case(b"3", 16, "n1", "n2", 3),
    case(b"4", 2**64 - 1, "x" * 253, "y" * 253, 64),
], indent=1))
