"""Run by vLLM's interpreter: does the side channel at a port answer a question, rubbish, and the question again?"""

import json
import sys

import msgspec
import zmq

QUESTION = msgspec.msgpack.encode((b"get_meta_msg", 0, 0))
RUBBISH = b"\xff\xff"
WAIT_MS = 5000


def answers(port: int, message: bytes) -> bool:
    with zmq.Context() as context, context.socket(zmq.REQ) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.connect(f"tcp://127.0.0.1:{port}")
        line.send(message)
        return bool(line.poll(WAIT_MS))


print("ANSWERS", json.dumps([answers(int(sys.argv[1]), message) for message in (QUESTION, RUBBISH, QUESTION)]))
