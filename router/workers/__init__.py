"""Several router processes behind one port: who starts them, and what they must show as one."""
