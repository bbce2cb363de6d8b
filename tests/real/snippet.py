"""Runs docs/verify/verify.py as it stands. Usage: snippet.py SNIPPET SECRET SIGNATURE BODY."""

import importlib.util
import sys

snippet, secret, signature, body = sys.argv[1:]
spec = importlib.util.spec_from_file_location("snippet", snippet)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(str(module.verify(secret, signature, open(body, "rb").read())).lower())
