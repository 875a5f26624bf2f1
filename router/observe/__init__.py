"""What is told of requests once they are over: metrics, log lines, the last records, traces."""
