"""Small programs that stand in for engines and router where a test is about those who start them."""

import sys

from router.cli.processes import Program
from router.contract.errors import RouterError

_ENGINE = """
import json, signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(json.dumps({"ready": True, "url": "http://engine"}), flush=True)
threading.Event().wait()
"""

_ROUTER = """
import json, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Answers.asked += 1
        known = [{"url": "http://engine", "model": "stand-in"}] if Answers.asked > 4 else []
        body = json.dumps({"instances": known}).encode()
        self.send_response(200 if Answers.asked > 2 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def engine(name, code=_ENGINE):
    """An engine that says ready at once and stays, or whatever `code` does."""
    return Program(name, (sys.executable, "-c", code))


def router(port, code=_ROUTER):
    """A router that is ready at the third question and knows the engines at the fifth."""
    return Program("router", (sys.executable, "-c", code, str(port)), failure=RouterError)


def stand_in(monkeypatch, *engines):
    """Let every LocalFleet start these engines and the stand-in router instead of real ones."""
    for module in ("local_fleet", "up"):
        monkeypatch.setattr(f"router.cli.{module}.engine_programs", lambda setup, store_url: engines)
    monkeypatch.setattr("router.cli.local_fleet.router_program", lambda setup, store_url: router(setup.port))
