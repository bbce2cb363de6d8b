# Calls a URL, and waits after each 429 as docs/clients.md says.
# Usage: retry.py URL REQUESTS [TRIES], or retry.py --delays.
import json
import random
import sys
import time
import urllib.error
import urllib.request

TRIES_MAX = 6
WAIT_MAX = 600  # seconds; a client gives up rather than come before Retry-After
TIMEOUT = 30


def get_with_retries(url: str, tries_max: int = TRIES_MAX) -> tuple[int, list[float]]:
    waits = []
    while True:
        status, retry_after = get(url)
        wait = delay(len(waits), retry_after, random.random())
        if status != 429 or len(waits) + 1 >= tries_max or wait > WAIT_MAX:
            return status, waits
        time.sleep(wait)
        waits.append(wait)


def delay(retry: int, retry_after: float, luck: float) -> float:
    """Seconds before a retry, of which the first is number 0; luck is from 0 to 1."""
    return max(retry_after, min(30, 2**retry) * (0.8 + 0.4 * luck))


def get(url: str) -> tuple[int, int]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            response.read()
            return response.status, 0
    except urllib.error.HTTPError as refused:
        seconds = refused.headers.get("Retry-After", "").strip()
        refused.close()
        return refused.code, int(seconds) if seconds.isdecimal() else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--delays"]:
        print(json.dumps([delay(retry, 0, 0.5) for retry in range(7)]))
        sys.exit()
    url, requests, *tries = sys.argv[1:]
    for _ in range(int(requests)):
        status, waits = get_with_retries(url, *map(int, tries))
        line = {"status": status, "tries": len(waits) + 1, "waits": [round(w, 2) for w in waits]}
        print(json.dumps(line, separators=(",", ":")), flush=True)
