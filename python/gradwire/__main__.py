"""The gradwire command: `python -m gradwire` or `gradwire`.

>>> gradwire hooks
"""

import importlib.util
import os
import pathlib
import sys


def main() -> None:
    """Replace this process by the native command, with the same arguments."""
    here = pathlib.Path(__file__).parent
    command = here / "bin" / "gradwire"
    environment = dict(os.environ)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("gradwire: this environment has no torch, run pip install torch")
    torch_libraries = pathlib.Path(spec.origin).parent / "lib"
    # The command looks for Torch beside the package; it may be elsewhere.
    if torch_libraries != here.parent / "torch" / "lib":
        paths = [str(torch_libraries), environment.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    os.execve(command, [command, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
