"""Stands where the trial stands, and ends as its backend is called."""

import os
import signal
import sys
import time

match sys.argv[sys.argv.index("--backend") + 1]:
    case "crashes":
        print("fi_domain: cannot open", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    case "hangs":
        time.sleep(60)
    case "babbles":
        print("hello")
    case "refuses":
        print('{"error": "NIXL has no backend here."}')
    case "works":
        print("chatter\n" + '{"runs": [{"num_bytes": 8, "num_spans": 1, "seconds": 0.5, "wrong_bytes": 0}]}')
