"""Calls a gRPC server in every way through a gateway, over TLS, and checks what comes back.

    grpc_client.py ADDRESS ROOT [CALL...]     all calls but `idle`, or those that are named
"""

import os
import sys
import time

import grpc


def metadata(pairs):
    return {key: value for key, value in pairs}


class Calls:
    def __init__(self, channel):
        self.channel = channel

    def one(self, name):
        return self.channel.unary_unary(f"/weir.Test/{name}")

    def unary(self):
        answer, call = self.one("Unary").with_call(b"hello", metadata=[("x-in", "a b")])
        assert answer == b"hello", answer
        assert metadata(call.initial_metadata())["x-first"] == "a b"
        last = metadata(call.trailing_metadata())
        assert last["x-last"] == "a b" and last["x-last-bin"] == b"\0\xff", last
        assert call.code() == grpc.StatusCode.OK

    def empty(self):
        assert self.one("Unary")(b"") == b""

    def large(self):
        body = os.urandom(5 << 20)
        assert self.one("Unary")(body, timeout=60) == body

    def server_streams(self):
        call = self.channel.unary_stream("/weir.Test/Count")(b"300")
        assert [int(number) for number in call] == list(range(300))
        assert metadata(call.trailing_metadata())["x-last"] == "counted"

    def client_streams(self):
        sent = (b"x" * 10_000 for _ in range(200))
        assert self.channel.stream_unary("/weir.Test/Total")(sent) == b"2000000"

    def both_stream(self):
        # Each message is answered before the next is sent.
        answers = []
        def ask():
            for number in range(50):
                while len(answers) < number:
                    time.sleep(0.001)
                yield b"%d" % number
        for answer in self.channel.stream_stream("/weir.Test/Echo")(ask()):
            answers.append(answer)
        assert answers == [b"%d" % number for number in range(50)], answers

    def fails(self):
        try:
            self.one("Fail")(b"")
            assert False, "it went well"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
            assert error.details() == "not now: 100 % \u00fc", error.details()
            assert metadata(error.trailing_metadata())["x-last"] == "failed"

    def fails_late(self):
        call = self.channel.unary_stream("/weir.Test/FailLate")(b"")
        assert next(call) == b"first"
        try:
            next(call)
            assert False, "it went on"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DATA_LOSS, error

    def unknown(self):
        try:
            self.one("Nothing")(b"")
            assert False, "it went well"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error

    def deadline_is_told(self):
        left = int(self.one("Left")(b"", timeout=30))
        assert 1_000 < left < 32_000, left

    def deadline_passes(self):
        call = self.channel.unary_stream("/weir.Test/Wait")(b"deadline", timeout=1)
        assert next(call) == b"waiting"
        try:
            next(call)
            assert False, "it went on"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error

    def cancels(self):
        call = self.channel.unary_stream("/weir.Test/Wait")(b"cancel")
        assert next(call) == b"waiting"
        call.cancel()

    def many_at_once(self):
        calls = [self.one("Unary").future(b"%d" % number) for number in range(300)]
        assert [int(call.result(timeout=30)) for call in calls] == list(range(300))

    def idle(self):
        """A stream that is silent for longer than `read_timeout`."""
        call = self.channel.unary_stream("/weir.Test/Wait")(b"idle")
        assert next(call) == b"waiting"
        try:
            next(call)
            assert False, "it went on"
        except grpc.RpcError as error:
            print("idle ended as", error.code())


def main():
    address, root, *names = sys.argv[1:]
    credentials = grpc.ssl_channel_credentials(open(root, "rb").read())
    options = [
        ("grpc.default_authority", "api.localhost"),
        ("grpc.ssl_target_name_override", "api.localhost"),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        calls = Calls(channel)
        every = [name for name in vars(Calls) if not name.startswith("_")]
        for name in names or [name for name in every if name not in ("one", "idle")]:
            getattr(calls, name)()
            print("ok", name, flush=True)


main()
