# Verifies a delivery: SIGNATURE is the header Service-Signature, BODY the bytes as they came.
import hashlib
import hmac
import time


def verify(secret: str, signature: str, body: bytes, tolerance: int = 300) -> bool:
    pairs = [pair.partition("=")[::2] for pair in signature.split(",")]
    t = dict(pairs).get("t", "")
    if not (t.isdecimal() and len(t) <= 12) or abs(time.time() - int(t)) > tolerance:
        return False
    expected = hmac.new(secret.encode(), t.encode() + b"." + body, hashlib.sha256).hexdigest()
    given = [value for name, value in pairs if name == "v1"]  # two while a secret is rotated
    return any(hmac.compare_digest(expected.encode(), value.encode()) for value in given)
