"""A gRPC server of every kind of call, without generated code: messages are plain bytes.

    grpc_server.py [CERTIFICATE KEY]      plain HTTP/2, or over TLS

Says on standard error, a line of JSON each, where it listens and what was cancelled.
"""

import json
import sys
import threading
from concurrent import futures

import grpc


def say(**fields):
    print(json.dumps(fields), file=sys.stderr, flush=True)


def unary(request, context):
    given = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-first", given.get("x-in", ""))])
    context.set_trailing_metadata([("x-last", given.get("x-in", "")), ("x-last-bin", b"\0\xff")])
    return request


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number
    context.set_trailing_metadata([("x-last", "counted")])


def total(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def echo(requests, context):
    yield from requests


def fail(request, context):
    context.set_trailing_metadata([("x-last", "failed")])
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % \u00fc")


def fail_late(request, context):
    yield b"first"
    context.abort(grpc.StatusCode.DATA_LOSS, "after all")


def left(request, context):
    return b"%d" % int(context.time_remaining() * 1000)


def wait(request, context):
    over = threading.Event()

    # A call that is cancelled while this generator is not running is never resumed.
    def ends():
        say(message="cancelled", name=request.decode())
        over.set()

    context.add_callback(ends)
    yield b"waiting"
    over.wait()


CALLS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
    "Left": grpc.unary_unary_rpc_method_handler(left),
    "Wait": grpc.unary_stream_rpc_method_handler(wait),
}


def main():
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("weir.Test", CALLS)])
    if len(sys.argv) > 2:
        certificate, key = (open(path, "rb").read() for path in sys.argv[1:3])
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(message="listening", listener="grpc", address=f"127.0.0.1:{port}")
    server.wait_for_termination()


main()
