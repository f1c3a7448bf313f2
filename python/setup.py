# SPDX-License-Identifier: Apache-2.0
"""The wheel of package weft: CMake builds library, extension and command from the repository around this folder.

    pip install ./python                                    or: pip wheel --no-deps ./python
    WEFT_CMAKE_BUILD=build pip install --no-build-isolation ./python

Variables: WEFT_CMAKE_BUILD, a folder where CMake has built Weft already (relative: in the repository), which is taken
as it is; CMAKE_ARGS, more arguments for CMake; STRIP, the program that strips. scripts/wheel.sh sets them.
The wheel is for CPython 3.9 and all later ones, and holds the shared library and the command `weft`; it is linked with
the system's libraries (README.md lists the packages), so it is for machines like this one. scripts/wheel.sh builds one
for others.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from distutils.command.build import build
from distutils.command.build_scripts import build_scripts

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent
PACKAGE = "weft"
GIVEN = os.environ.get("WEFT_CMAKE_BUILD")
# pip starts this in HERE, wherever it was called.
BUILD = (SOURCE / GIVEN).resolve() if GIVEN else HERE / "build" / "cmake"
STRIP = os.environ.get("STRIP", "strip")
WHEEL = (BUILD if GIVEN else HERE / "build") / "wheel"  # what setuptools leaves behind


def version():
    text = (SOURCE / "CMakeLists.txt").read_text() if (SOURCE / "CMakeLists.txt").exists() else ""
    found = re.search(r"project\(weft VERSION ([0-9.]+)", text)
    if not found:
        raise SystemExit("setup.py: Weft's sources are not around this folder; build the wheel in the repository, by "
                         "`pip wheel --no-deps ./python`")
    return found.group(1)


def build_weft():
    """Fills BUILD, unless somebody has."""
    if GIVEN:
        return
    if not shutil.which("cmake"):
        raise SystemExit("setup.py: cmake is not installed; README.md lists the packages that a build needs")
    options = ["-DWEFT_COMMAND_IN_LIBRARY=ON", "-DWEFT_TESTS=OFF", "-DWEFT_SAMPLES=OFF", "-DWEFT_BENCH=OFF", "-DWEFT_PYTHON=ON"]
    headers = sysconfig.get_path("include")
    if sys.version_info >= (3, 11) and os.path.exists(os.path.join(headers, "Python.h")):
        options.append(f"-DWEFT_PYTHON_INCLUDE={headers}")
    elif "WEFT_PYTHON_INCLUDE" not in os.environ.get("CMAKE_ARGS", ""):
        raise SystemExit(f"setup.py: {headers} has no Python.h of CPython 3.11 or later: install the Debian package "
                         "python3-dev, or name a folder by CMAKE_ARGS=-DWEFT_PYTHON_INCLUDE=DIR")
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    subprocess.run(["cmake", "-S", SOURCE, "-B", BUILD, *options], check=True)
    subprocess.run(["cmake", "--build", BUILD, "--target", "weft_installed", "weft_python",
                    "-j", str(len(os.sched_getaffinity(0)))], check=True)


def command_in_library():
    return "WEFT_COMMAND_IN_LIBRARY:BOOL=ON" in (BUILD / "CMakeCache.txt").read_text()


class Build(build):
    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)  # what a former version of the package had
        super().run()


class BuildExtension(build_ext):
    """Puts _core.abi3.so, which looks for the library beside itself, and the library into the package."""

    def run(self):
        build_weft()
        if not (BUILD / "python" / PACKAGE / "_core.abi3.so").exists():
            raise SystemExit(f"setup.py: {BUILD} has no Python package: were Python.h (python3-dev) and "
                             "WEFT_PYTHON=ON there?")
        root = HERE if self.inplace else pathlib.Path(self.build_lib).resolve()
        subprocess.run(["cmake", "--install", BUILD, "--component", "python", "--strip", "--prefix", root], check=True)
        # A wheel holds no links: the library goes by the name that the loader looks for.
        library = root / PACKAGE / "libweft.so.0"
        shutil.copyfile(BUILD / "libweft.so.0", library)
        subprocess.run([STRIP, "--strip-unneeded", library], check=True)

    def get_outputs(self):
        root = pathlib.Path(self.build_lib) / PACKAGE
        names = ["_core.abi3.so", "libweft.so.0", "libweft_mpi.so", "libweft_onnxruntime.so", "libweft_tvm.so"]
        names += ["libweft_opencl.so"] * (root / "libweft_opencl.so").exists()
        return [str(root / name) for name in names + ["bin/weft"] * command_in_library()]

    def get_source_files(self):
        return []


class BuildScripts(build_scripts):
    """The command: where the package has its program, the script that starts it, otherwise the program."""

    def run(self):
        self.mkpath(self.build_dir)
        target = pathlib.Path(self.build_dir) / "weft"
        if command_in_library():
            shutil.copyfile(HERE / "weft_command.py", target)
        else:
            shutil.copyfile(BUILD / "weft", target)
            subprocess.run([STRIP, target], check=True)
        target.chmod(0o755)

    def get_source_files(self):
        return []


class Wheel(bdist_wheel):
    def finalize_options(self):
        self.py_limited_api = "cp39"
        super().finalize_options()


WHEEL.mkdir(parents=True, exist_ok=True)
setup(
    name="weft",
    version=version(),
    description="Collectives as operators of a compute graph",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "licences/*"],  # the latter by scripts/wheel.sh
    python_requires=">=3.9",
    extras_require={"numpy": ["numpy"], "torch": ["torch"]},
    py_modules=["weft_torch_backend"],
    entry_points={"torch.backends": ["weft = weft_torch_backend:register"]},
    packages=find_packages(str(HERE), include=[PACKAGE, f"{PACKAGE}.*"]),
    package_data={"": ["py.typed", "*.pyi"]},
    ext_modules=[Extension(f"{PACKAGE}._core", [], py_limited_api=True)],
    scripts=["weft_command"],  # by BuildScripts
    zip_safe=False,
    options={"build": {"build_base": str(WHEEL)}, "egg_info": {"egg_base": str(WHEEL)}},
    cmdclass={"build": Build, "build_ext": BuildExtension, "build_scripts": BuildScripts,
              "bdist_wheel": Wheel},
)
