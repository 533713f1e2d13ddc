import os

# One compute thread a rank: ranks share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
