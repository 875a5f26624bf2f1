"""Run by vLLM's own interpreter: which lines of arguments (a JSON list of lists) does `vllm serve` refuse, and why?"""

import json
import sys
from contextlib import redirect_stderr
from io import StringIO

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.dp_supervisor import validate_multi_port_external_lb_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def refusal(line: list[str]) -> str | None:
    said = StringIO()
    try:
        with redirect_stderr(said):
            parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(line)
        if parsed.data_parallel_multi_port_external_lb:
            validate_multi_port_external_lb_args(parsed)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except ValueError as error:
        return str(error)
    return None


print("REFUSALS", json.dumps([refusal(line) for line in json.load(sys.stdin)]))
