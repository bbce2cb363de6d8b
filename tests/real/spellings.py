"""Asks for names as programs in Python do, and prints the target of each request."""

import sys
import urllib.parse
import urllib.request

base = sys.argv[1]
names = ["a/b", "urn:isbn:1", "~ada", "100%", "a b", "é", "https://a.example/b?c=d#e", "a;b,c"]
quoted = [urllib.parse.quote(name, safe="") for name in names]
# As Python before 3.7 and others escape a tilde, and as a form would a space.
quoted += ["%7Eada", urllib.parse.quote_plus("a b"), "", "users/"]
for name in quoted:
    url = f"{base}/{name}"
    with urllib.request.urlopen(url) as answer:
        answer.read()
    print(url[url.index("/", len("http://")) :])
