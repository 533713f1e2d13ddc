"""Says to scikit-build-core which Torch a wheel needs: the release it is built for.

Torch's C++ interface changes with every release, so any other would not load.
"""

from importlib import metadata


def dynamic_metadata(settings, project):
    """The dependencies of the package as it is built here."""
    try:
        release = metadata.version("torch").split("+")[0]
    except metadata.PackageNotFoundError:
        # Source archives are also made where there is no Torch.
        return {"dependencies": ["torch>=2.11"]}
    return {"dependencies": [f"torch=={release}"]}


def dynamic_wheel(settings):
    """What a wheel may say otherwise than the source archive it is built from."""
    return {"dependencies": True}
