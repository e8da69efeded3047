"""A mail server for tests: takes messages on loopback and writes each as a line of JSON.

usage: smtp_sink.py plain|utf8|seven|starttls|tls [CERTIFICATE KEY]

The first line is the port. A recipient `refused@…` gets 550, `later@…` 451. A subject with `reject` gets 554 for the whole
message, one with `vanish` no answer at all, one with `slow` its answer after a second. `utf8` offers SMTPUTF8, `seven` not
even 8BITMIME. Protected servers want the user `shop` with the password `s3cret`.
"""

import asyncio
import base64
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult


class Sink:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("refused@"):
            return "550 5.1.1 no such mailbox"
        if address.startswith("later@"):
            return "451 4.7.1 come back later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        content = envelope.content
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        message = email.message_from_bytes(content, policy=email.policy.default)
        subject = message["subject"] or ""
        if "reject" in subject:
            return "554 5.7.1 not wanted"
        parts = [
            {
                "type": part.get_content_type(),
                "name": part.get_filename(),
                "text": part.get_payload(decode=True).decode("utf-8", "replace"),
            }
            for part in message.walk()
            if not part.is_multipart()
        ]
        headers = {name.lower(): str(value) for name, value in message.items()}
        seen = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "user": (session.auth_data or b"").decode() if session.authenticated else None,
            "protected": session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None,
            "hello": session.host_name,
            "options": envelope.mail_options,
            "raw": base64.b64encode(content).decode(),
            "headers": headers,
            "parts": parts,
        }
        print(json.dumps(seen), flush=True)
        if "vanish" in subject:
            server.transport.abort()
            await asyncio.sleep(3600)
        if "slow" in subject:
            await asyncio.sleep(1)
        return "250 2.0.0 taken as 42"


def authenticate(server, session, envelope, mechanism, data):
    good = data.login == b"shop" and data.password == b"s3cret"
    return AuthResult(success=good, handled=False, auth_data=data.login)


async def main():
    mode = sys.argv[1]
    context = None
    if mode in ("starttls", "tls"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])

    def session():
        return SMTP(
            Sink(),
            hostname="sink.test",
            authenticator=authenticate,
            auth_required=mode in ("starttls", "tls"),
            enable_SMTPUTF8=mode == "utf8",
            decode_data=mode == "seven",
            # Of a connection that is protected from its first byte the library knows nothing.
            auth_require_tls=mode == "starttls",
            require_starttls=mode == "starttls",
            tls_context=context if mode == "starttls" else None,
        )

    implicit = context if mode == "tls" else None
    server = await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0, ssl=implicit)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with the test: its standard input is closed then.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
