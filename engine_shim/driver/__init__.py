"""The shim's driver: events in, machines stepped, effects carried out."""

from engine_shim.driver.driver import Driver
from engine_shim.driver.stream import Stream

__all__ = ["Driver", "Stream"]
