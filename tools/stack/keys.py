"""Makes the key that the API server signs service account tokens with, without any library.

An elliptic curve private key is just a random number; the file format around it is a fixed run of bytes, and readers
compute the public half themselves.
"""

import base64
import secrets

# SEQUENCE { 1, OCTET STRING (32 bytes), [0] OBJECT IDENTIFIER prime256v1 }, cut where the number goes.
_BEFORE = bytes.fromhex("30310201010420")
_AFTER = bytes.fromhex("a00a06082a8648ce3d030107")
# How many points the curve P-256 has: keys are 1 to one less than that.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def new_signing_key() -> str:
    """A fresh P-256 private key as PEM text."""
    number = secrets.randbelow(_ORDER - 1) + 1
    encoded = base64.encodebytes(_BEFORE + number.to_bytes(32, "big") + _AFTER).decode("ascii")
    return f"-----BEGIN EC PRIVATE KEY-----\n{encoded}-----END EC PRIVATE KEY-----\n"
