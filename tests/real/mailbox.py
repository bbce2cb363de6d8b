"""A real SMTP server that writes each mail it takes as a line of JSON.

Usage: mailbox.py [--auth USER:PASSWORD] [--tls CERTIFICATE KEY] [--refuse TIMES]
"""

import argparse
import asyncio
import email
import email.policy
import json
import ssl

from aiosmtpd.smtp import SMTP, AuthResult


def say(**fields):
    print(json.dumps(fields), flush=True)


class Keeper:
    """Takes every mail, but puts the first few off where it was told to."""

    def __init__(self, refuse):
        self.refuse = refuse

    async def handle_DATA(self, server, session, envelope):
        if self.refuse > 0:
            self.refuse -= 1
            say(refused=True)
            return "451 4.3.0 Come back later"
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        body = mail.get_body(preferencelist=("plain",))
        say(
            **{"from": envelope.mail_from},
            to=list(envelope.rcpt_tos),
            headers=dict(mail.items()),
            text=body.get_content() if body else "",
            tls=session.ssl is not None,
            user=session.auth_data.login.decode() if session.auth_data else None,
        )
        return "250 2.0.0 Kept"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--auth")
    parser.add_argument("--tls", nargs=2)
    parser.add_argument("--refuse", type=int, default=0)
    flags = parser.parse_args()

    settings = {}
    if flags.tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*flags.tls)
        settings.update(tls_context=context, require_starttls=True)
    if flags.auth:
        user, password = flags.auth.encode().split(b":", 1)

        def authenticate(server, session, envelope, mechanism, given):
            good = (given.login, given.password) == (user, password)
            return AuthResult(success=good, auth_data=given)

        settings.update(
            authenticator=authenticate, auth_required=True, auth_require_tls=bool(flags.tls)
        )
    asyncio.run(serve(Keeper(flags.refuse), settings))


async def serve(keeper, settings):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(keeper, **settings), "127.0.0.1", 0)
    say(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


main()
