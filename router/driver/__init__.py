"""The driver: runs the pure machines against real clients, engines, clocks and stores."""
