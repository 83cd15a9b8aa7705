"""What is installed works for somebody else: installed into a scratch folder, used from C and C++, through find_package
and pkg-config, shared and static; and packed as a Debian package. What this machine has no tool for is skipped, and
says so.

Usage: package_test.py BUILD_FOLDER SOURCE_FOLDER C_COMPILER CXX_COMPILER [unittest options]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = SOURCE = CC = CXX = None


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise AssertionError(f"{words}: exit {result.returncode}\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return result.stdout


def found_packages():
    """Where the build found the libraries that the static one needs: whoever links it says the same."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    return [f"-D{name}={path}" for name, path in re.findall(r"(?m)^((?:fmt|TBB|simdjson)_DIR):\w+=(/.*)$", cache)]


def private_folders():
    """Of libraries that were built against and lie where no linker and no loader looks."""
    private = re.search(r"(?m)^Libs\.private:(.*)$", (BUILD / "tessera.pc").read_text(encoding="utf-8"))[1]
    return re.findall(r"-L(\S+)", private)


def library_path(*folders):
    """An environment in which linkers and programs find libraries there and in private folders."""
    path = [str(folder) for folder in folders] + private_folders()
    path += [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(path))


def needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}, which this machine does not have")


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.scratch = pathlib.Path(holder.name)
        first = cls.scratch / "first"
        run("cmake", "--install", BUILD, "--prefix", first)
        # Whatever is installed must not remember where it was put, nor where it was built.
        cls.prefix = cls.scratch / "moved"
        first.rename(cls.prefix)
        cls.libdir = next(cls.prefix.rglob("libtessera.a")).parent
        cls.examples = SOURCE / "examples" / "consumer"

    def check_program(self, program, **options):
        out = run(program, cwd=self.scratch, **{"env": library_path(), **options})
        self.assertRegex(out, r"(?m)^tessera \d+\.\d+\.\d+: cpu ran ")

    def test_files(self):
        for name in ("bin/tessera", "include/tessera/tessera.h", "include/tessera/c_api.h",
                     "include/tessera/error_codes.def"):
            self.assertTrue((self.prefix / name).exists(), name)
        # The program looks for it there, from where it lies itself.
        self.assertTrue((self.libdir / "tessera" / "libtessera_cpuinfo.so").exists())
        for name in ("LICENSE", "README.md", "docs/c_api.md", "examples/causal.toml"):
            self.assertTrue(list(self.prefix.glob(f"share/doc/*/{name}")), name)
        if (BUILD / "texts" / "tessera.1").exists():  # not where the program cannot be run while it is built
            for name in ("man/man1/tessera.1", "bash-completion/completions/tessera", "zsh/site-functions/_tessera",
                         "fish/vendor_completions.d/tessera.fish"):
                self.assertIn("tessera", (self.prefix / "share" / name).read_text(encoding="utf-8"))
        installed = {path.name for path in (self.prefix / "include" / "tessera").iterdir()}
        self.assertEqual(installed, {path.name for path in (SOURCE / "include" / "tessera").iterdir()})
        for path in [*self.prefix.rglob("*.cmake"), *self.prefix.rglob("*.pc")]:
            text = path.read_text(encoding="utf-8")
            for folder in (BUILD, SOURCE, self.scratch):
                self.assertNotIn(str(folder), text, f"{path} names {folder}")

    def test_program(self):
        out = run(self.prefix / "bin" / "tessera", "plan", SOURCE / "examples" / "causal.toml", cwd=self.scratch,
                  env=library_path())
        self.assertIn("forward", out)

    @needs("readelf")
    def test_soname(self):
        header = (SOURCE / "include" / "tessera" / "c_api.h").read_text(encoding="utf-8")
        abi = re.search(r"define TESSERA_ABI_VERSION (\d+)", header)[1]
        dynamic = run("readelf", "-d", self.libdir / "libtessera.so")
        self.assertIn(f"Library soname: [libtessera.so.{abi}]", dynamic)
        self.assertTrue((self.libdir / f"libtessera.so.{abi}").is_symlink())
        self.assertNotRegex(dynamic, r"RPATH|RUNPATH")

    @needs("nm")
    def test_symbols(self):
        """Every function of the C headers is exported, what public C++ headers declare is, and nothing else is."""
        lines = run("nm", "-DC", "--defined-only", self.libdir / "libtessera.so").splitlines()
        names = [line.split(" ", 2)[2] for line in lines]
        headers = sorted((SOURCE / "include" / "tessera").glob("c_*.h"))
        header = "\n".join(path.read_text(encoding="utf-8") for path in headers)
        declared = set(re.findall(r"^[\w* ]+?[ *](tessera_\w+)\((?!.*\{$)", header, re.MULTILINE))
        self.assertGreater(len(declared), 70)
        self.assertEqual(declared, {name for name in names if name.startswith("tessera_")})
        self.assertEqual([name for name in names if not re.match(r"tessera(_|::)", name)], [])
        exported = {re.match(r"(?:\w+::)*\w+", name)[0] for name in names}
        functions = set()
        for path in (SOURCE / "include" / "tessera").glob("*.h"):
            text = re.sub(r"//.*|^#.*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            # A declaration at the left margin that is no definition.
            for match in re.finditer(r"^(?!\s|typedef|struct|inline|template|static|using)[\w:<>, ]+?[ &*]+([A-Z]\w+)\(",
                                     text, re.MULTILINE):
                functions.add(f"tessera::{match[1]}")
        functions -= {"tessera::Trust"}  # declared in tessera::plan, for the planner
        self.assertGreater(len(functions), 45)
        self.assertEqual(functions - exported, set(), "declared in a public header and not exported")
        self.assertIn("tessera::Plan::FromBytes", exported)
        for name in ("tessera::RowSet", "tessera::lanes::", "tessera::capi::", "tessera::RunOn"):
            self.assertEqual([found for found in names if found.startswith(name)], [], "an internal name is exported")

    def consume_with_cmake(self, static):
        folder = self.scratch / f"cmake_{static}"
        run("cmake", "-G", "Ninja", "-S", self.examples, "-B", folder, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DUSE_STATIC={static}", f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}", *found_packages())
        run("cmake", "--build", folder, env=library_path())  # linkers look there too
        for name in ("attention_c", "attention_cc"):
            if shutil.which("readelf"):
                needed = run("readelf", "-d", folder / name)
                self.assertEqual("libtessera.so" in needed, static == "OFF", needed)
            self.check_program(folder / name)

    def test_find_package_shared(self):
        self.consume_with_cmake("OFF")

    def test_find_package_static(self):
        self.consume_with_cmake("ON")

    def test_find_package_from_a_c_project(self):
        folder = self.scratch / "c_project"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(only_c LANGUAGES C)\nfind_package(tessera REQUIRED)\n"
            f"add_executable(a {self.examples}/attention.c)\ntarget_link_libraries(a PRIVATE tessera::tessera)\n")
        run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_C_COMPILER={CC}")
        run("cmake", "--build", folder / "build", env=library_path())
        self.check_program(folder / "build" / "a")

    def test_find_package_of_another_version(self):
        folder = self.scratch / "another_version"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(c LANGUAGES C)\nfind_package(tessera 7.1 REQUIRED)\n")
        with self.assertRaises(AssertionError):
            run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def consume_with_pkg_config(self, *options):
        environment = dict(os.environ, PKG_CONFIG_PATH=str(self.libdir / "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", *options, "tessera", env=environment).split()
        if options:  # both libraries lie in one folder, and the linker takes the shared one unless told
            flags = ["-l:libtessera.a" if flag == "-ltessera" else flag for flag in flags]
        for name, compiler, standard in (("attention.c", CC, "-std=c11"), ("attention.cc", CXX, "-std=c++20")):
            program = self.scratch / f"pkg_config_{len(options)}_{name.replace('.', '_')}"
            run(compiler, standard, self.examples / name, *flags, "-o", program, env=library_path())
            self.check_program(program, env=library_path(*([] if options else [self.libdir])))

    @needs("pkg-config")
    def test_pkg_config_shared(self):
        self.consume_with_pkg_config()

    @needs("pkg-config")
    def test_pkg_config_static(self):
        self.consume_with_pkg_config("--static")

    @needs("pkg-config", "readelf")
    def test_pkg_config_names_what_the_library_needs(self):
        """What the shared library is linked with, the static one leaves to whoever links it; a C program asks for all."""
        needed = set(re.findall(r"NEEDED.*\[lib([\w+-]+)\.so", run("readelf", "-d", self.libdir / "libtessera.so")))
        self.assertIn("fmt", needed)
        environment = dict(os.environ, PKG_CONFIG_PATH=str(self.libdir / "pkgconfig"))
        flags = run("pkg-config", "--libs", "--static", "tessera", env=environment).split()
        self.assertEqual({name for name in needed - {"c", "gcc_s"} if f"-l{name}" not in flags}, set())
        shared = run("pkg-config", "--libs", "tessera", env=environment).split()
        self.assertEqual([flag for flag in shared if flag.startswith("-l")], ["-ltessera"])


class DebianPackage(unittest.TestCase):
    @needs("cpack", "dpkg", "dpkg-deb")
    def test_contents_and_program(self):
        if private_folders():
            self.skipTest(f"libraries in {', '.join(private_folders())} are of no package that could be depended on")
        with tempfile.TemporaryDirectory() as scratch:
            run("cpack", "-G", "DEB", "-B", scratch, cwd=BUILD)
            packages = list(pathlib.Path(scratch).glob("*.deb"))
            self.assertEqual(len(packages), 1, packages)
            contents = run("dpkg", "-c", packages[0])
            for name in (r"\./usr/bin/tessera$", r"/libtessera\.so\.\d+ -> libtessera\.so\.", r"/libtessera\.a$",
                         r"\./usr/include/tessera/c_api\.h$", r"/tesseraConfig\.cmake$", r"/pkgconfig/tessera\.pc$",
                         r"\./usr/share/doc/tessera/LICENSE$"):
                self.assertRegex(contents, f"(?m){name}")
            fields = run("dpkg-deb", "-f", packages[0])
            self.assertRegex(fields, r"(?m)^Package: tessera$")
            self.assertRegex(fields, r"(?m)^Maintainer: .")
            if shutil.which("dpkg-shlibdeps") and shutil.which("file"):
                self.assertRegex(fields, r"(?m)^Depends: .*libc6")
                if shutil.which("readelf") and "libtbb" in run("readelf", "-d", BUILD / "libtessera.so"):
                    self.assertRegex(fields, r"(?m)^Depends: .*libtbb")
            root = pathlib.Path(scratch) / "root"
            run("dpkg", "-x", packages[0], root)
            out = run(root / "usr" / "bin" / "tessera", "plan", SOURCE / "examples" / "causal.toml", cwd=scratch,
                      env=library_path())
            self.assertIn("forward", out)


class ReasonedResult(unittest.TextTestResult):
    """Skips in the form that script/test collects."""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        name = test.id().split(".", 1)[1]
        print(f"package_test.py: Skipped\n{reason}\n[  SKIPPED ] {name} (0 ms)", flush=True)


if __name__ == "__main__":
    BUILD, SOURCE = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    CC, CXX = (sys.argv.pop(1) for _ in range(2))
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=ReasonedResult))
