"""wstrace-native: the look-up of a seen request in C, for wstrace of the same version."""

from setuptools import Extension, setup  # type: ignore[import-untyped]

VERSION = "0.1.0"

setup(
    name="wstrace-native",
    version=VERSION,
    description="The look-up of a seen request in C, an extra of wstrace",
    license="Apache-2.0",
    python_requires=">=3.11",
    py_modules=[],
    ext_modules=[
        Extension(
            "wstrace_native",
            ["wstrace_native.c"],
            define_macros=[("WSTRACE_VERSION", f'"{VERSION}"')],
            extra_compile_args=["-std=c11"],
        )
    ],
)
