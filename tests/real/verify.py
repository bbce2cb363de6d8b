"""Verifies a delivery with the packages of PyPI: `stripe` or `standardwebhooks`.

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
else:
    sys.exit(f"no package {package}")
print("verified")
