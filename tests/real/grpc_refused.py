"""Calls a service of gRPC through a gateway, and prints what the client sees as JSON.

    grpc_refused.py ADDRESS AUTHORITY CA.crt METHOD [retry]

METHOD is unary or stream; with retry the client tries again as its server tells it.
"""

import json
import sys
import threading

import grpc

PATH = "/weir.test.Echo/"

# The server says when: without its word the second try would come at once.
RETRY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 2,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.01s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def main():
    address, authority, authorities, method, *retry = sys.argv[1:]
    with open(authorities, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    options = [
        ("grpc.ssl_target_name_override", authority),
        ("grpc.default_authority", authority),
    ]
    if retry:
        options.append(("grpc.service_config", json.dumps(RETRY)))
    channel = grpc.secure_channel(address, credentials, options)
    try:
        if method == "unary":
            channel.unary_unary(PATH + "Unary")(b"\x0a\x01a", timeout=15)
        else:
            # The client goes on sending while it is refused.
            open_ended = threading.Event()

            def messages():
                yield b"\x0a\x01a"
                open_ended.wait(15)

            list(channel.stream_stream(PATH + "Stream")(messages(), timeout=15))
        print(json.dumps({"code": "OK"}))
    except grpc.RpcError as error:
        metadata = list(error.initial_metadata() or []) + list(error.trailing_metadata() or [])
        seen = {"code": error.code().name, "details": error.details(), "metadata": dict(metadata)}
        print(json.dumps(seen))


main()
