"""Verifies a delivery with packages of PyPI: `stripe`, `standardwebhooks`, or `cryptography` for
Ed25519, whose SECRET is the public key.

Usage: verify.py PACKAGE SECRET HEADERS.json BODY. Ends with 0 where the delivery holds.
"""

import json
import sys

package, secret, headers, body = sys.argv[1:]
headers = json.load(open(headers, encoding="utf-8"))
body = open(body, "rb").read()

if package == "stripe":
    import stripe

    stripe.WebhookSignature.verify_header(
        body.decode(), headers["service-signature"], secret, tolerance=300
    )
elif package == "standardwebhooks":
    from standardwebhooks.webhooks import Webhook

    Webhook(secret).verify(body, headers)
elif package == "cryptography":
    from base64 import b64decode

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(b64decode(secret.removeprefix("whpk_")))
    signatures = headers["webhook-signature"].split(" ")
    [signature] = [one[4:] for one in signatures if one.startswith("v1a,")]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key.verify(b64decode(signature), signed)
else:
    sys.exit(f"no package {package}")
print("verified")
