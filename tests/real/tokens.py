"""Makes tokens with PyJWT: good ones, and those that RFC 8725 warns of.

Usage: tokens.py ISSUER AUDIENCE. Prints {"jwks": ..., "good": {name: token}, "bad": {name: token}}.
"""

import base64
import json
import sys
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

issuer, audience = sys.argv[1:]
now = int(time.time())
claims = {
    "iss": issuer,
    "aud": [audience, "https://other.test"],
    "exp": now + 600,
    "iat": now,
    "sub": "someone",
    "workspace_id": "ws_acme",
}
keys = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
writers = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def published(name):
    key = writers[name].to_jwk(keys[name].public_key(), as_dict=True)
    key.pop("key_ops", None)
    return key | {"kid": name, "use": "sig", "alg": name}


def made(algorithm, key, kid, changes=None, headers=None):
    body = {name: value for name, value in (claims | (changes or {})).items() if value is not None}
    return jwt.encode(body, key, algorithm=algorithm, headers={"kid": kid} | (headers or {}))


def pem(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def hmac_with(secret, kid):
    """HS256 with any bytes as the secret, which PyJWT would not do with a public key."""
    coded = lambda part: base64.urlsafe_b64encode(part).rstrip(b"=")
    header = json.dumps({"alg": "HS256", "kid": kid}).encode()
    signed = coded(header) + b"." + coded(json.dumps(claims).encode())
    return (signed + b"." + coded(HMACAlgorithm(HMACAlgorithm.SHA256).sign(signed, secret))).decode()


good = {name: made(name, key, name) for name, key in keys.items()}
good["one audience"] = made("ES256", keys["ES256"], "ES256", {"aud": audience})
good["at+jwt"] = made("EdDSA", keys["EdDSA"], "EdDSA", headers={"typ": "at+jwt"})
good["fraction"] = made("EdDSA", keys["EdDSA"], "EdDSA", {"exp": now + 600.5})

rs, es = keys["RS256"], keys["ES256"]
other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
bad = {
    "none": made("none", None, "RS256"),
    "HS256 by a PEM": hmac_with(pem(rs), "RS256"),
    "HS256 by a JWK": hmac_with(json.dumps(published("RS256")).encode(), "RS256"),
    "RS384": made("RS384", rs, "RS256"),
    "RS512": made("RS512", rs, "RS256"),
    "PS256": made("PS256", rs, "RS256"),
    "another key": made("RS256", other, "RS256"),
    "another kind of key": made("ES256", es, "RS256"),
    "a key within": made(
        "RS256", other, "mine",
        headers={"jwk": RSAAlgorithm.to_jwk(other.public_key(), as_dict=True)},
    ),
    "crit": made("ES256", es, "ES256", headers={"crit": ["exp"], "exp": now}),
    "another type": made("ES256", es, "ES256", headers={"typ": "dpop+jwt"}),
    "expired": made("RS256", rs, "RS256", {"exp": now - 31}),
    "without expiry": made("RS256", rs, "RS256", {"exp": None}),
    "not yet": made("RS256", rs, "RS256", {"nbf": now + 120}),
    "issued later": made("RS256", rs, "RS256", {"iat": now + 120}),
    "another issuer": made("RS256", rs, "RS256", {"iss": issuer + "/"}),
    "another audience": made("RS256", rs, "RS256", {"aud": audience + "/"}),
    "no audience": made("RS256", rs, "RS256", {"aud": None}),
}
keys_of = {"keys": [published(name) for name in keys]}
print(json.dumps({"jwks": keys_of, "good": good, "bad": bad}))
