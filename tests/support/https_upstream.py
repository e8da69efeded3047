"""An upstream for tests that wants to see a certificate of its callers, and says whose it was.

usage: https_upstream.py CERTIFICATE KEY AUTHORITY

The first line is the port. It ends when its standard input is closed.
"""

import http.server
import json
import ssl
import sys
import threading


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        names = self.connection.getpeercert().get("subjectAltName", ())
        # Under /token it is an endpoint of OAuth 2 whose tokens tell the same.
        key = "access_token" if self.path == "/token" else "caller"
        body = json.dumps({key: names[0][1] if names else None}, separators=(",", ":")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


certificate, key, authority = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
context.load_verify_locations(authority)
context.verify_mode = ssl.CERT_REQUIRED
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
server.daemon_threads = True
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
