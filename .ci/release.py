"""Build the package in dist/ and check it: ``make release-check``, or ``make release-check TAG=v0.1.0 URL=...``.

With a tag, the state of the repository must be that of a release. With the URL of the repository on GitHub, the
package has its addresses, and README.md links to them instead of to files. build/recipe.yaml is the recipe for conda.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST, RECIPE = ROOT / "dist", ROOT / "build" / "recipe.yaml"
UNRELEASED = "not released yet"  # the words of README.md and CHANGELOG.md before a release

RUN_EXAMPLES = """
import doctest, sys
import neonlite
assert neonlite.__file__.startswith(sys.prefix), neonlite.__file__
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
result = doctest.testfile(sys.argv[1], module_relative=False, optionflags=flags, encoding="utf-8")
print(f"README.md: {result.attempted} examples, {result.failed} failed, with neonlite {neonlite.__version__}")
sys.exit(result.failed > 0 or not result.attempted)
"""


class ReleaseError(Exception):
    """What the release lacks."""


def check_versions(root: Path, tag: str | None) -> str:
    """Return the version. Raise ReleaseError if files or the tag have another one, or if a tag comes too early."""
    texts = {
        name: (root / name).read_text(encoding="utf-8")
        for name in ("neonlite/version.py", "CHANGELOG.md", "CITATION.cff", "README.md")
    }
    patterns = {
        "neonlite/version.py": r'^__version__ = "(.+)"$',
        "CHANGELOG.md": r"^## \[(.+?)\]",
        "CITATION.cff": r"^version: (.+)$",
    }
    found = {name: re.findall(pattern, texts[name], re.MULTILINE)[:1] for name, pattern in patterns.items()}
    if tag:
        found["the tag"] = [tag.removeprefix("v")]
    if len({tuple(versions) for versions in found.values()}) > 1 or not found["CHANGELOG.md"]:
        listed = ", ".join(f"{name}: {''.join(versions) or 'none'}" for name, versions in found.items())
        raise ReleaseError(f"expected one version, got {listed}")
    version: str = found["neonlite/version.py"][0]
    if tag:
        if tag != f"v{version}":
            raise ReleaseError(f"expected the tag v{version}, got {tag}")
        if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", texts["CHANGELOG.md"], re.MULTILINE):
            raise ReleaseError(f"CHANGELOG.md: expected the heading '## [{version}] - YEAR-MONTH-DAY'")
        early = [name for name in ("README.md", "CHANGELOG.md") if UNRELEASED in " ".join(texts[name].split())]
        if early:
            raise ReleaseError(f"{', '.join(early)}: expected no words {UNRELEASED!r} with a tag. Describe the release")
    return version


def set_addresses(root: Path, url: str, ref: str) -> None:
    """Add the addresses of the repository to pyproject.toml, and replace the links of README.md to files by them."""
    pages = {
        "Repository": url,
        "Documentation": f"{url}/tree/{ref}/docs",
        "Changelog": f"{url}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = ["\n[project.urls]", *(f'{name} = "{page}"' for name, page in pages.items())]
    with (root / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({url}/blob/{ref}/\1)", text)
    text = re.sub(r'src="(?!https?:)([^"]+)"', rf'src="{url}/raw/{ref}/\1"', text)
    readme.write_text(text, encoding="utf-8")


def check_files(what: str, found: set[str], expected: set[str]) -> None:
    """Raise ReleaseError unless a package has the expected files."""
    missing, more = sorted(expected - found), sorted(found - expected)
    if missing or more:
        raise ReleaseError(f"{what}: missing {', '.join(missing) or 'nothing'}; too many: {', '.join(more) or 'none'}")
    print(f"{what}: {len(found)} files, those of the repository")


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command; raise CalledProcessError if it fails."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def make_environment(folder: Path, *packages: str | Path) -> Path:
    """Return the folder of the programs of a new virtual environment with these packages."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run(programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return programs


def run_readme(programs: Path, folder: Path) -> None:
    """Run the examples of the README, and the commands that start with neonlite, in an empty folder."""
    folder.mkdir()
    (folder / "examples.py").write_text(RUN_EXAMPLES, encoding="utf-8")
    run(programs / "python", "-I", "-W", "error", "examples.py", ROOT / "README.md", cwd=folder)
    rows = [[i, i % 7, "odd" if i % 2 else "even"] for i in range(60)]
    for name, header in ("table.csv", ["a", "b", "COLUMN"]), ("rows.csv", ["a", "b", "c"]):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in re.findall(r"^neonlite .*", "".join(blocks), re.MULTILINE):
        words = line.partition("  #")[0].replace("--plot digits.png", "").split()  # matplotlib is not installed
        progress = ["--no-progress-bar"] if words[1] == "train" else []
        run(programs / words[0], *words[1:], *progress, cwd=folder)


def main() -> int:
    """Build and check the package; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", default="", help="the tag of a release, such as v0.1.0")
    parser.add_argument("--url", default="", help="the address of the repository")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            version = check_versions(ROOT, args.tag)
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
            files = {file for file in listed.stdout.split("\0") if file and (ROOT / file).exists()}
            for file in files:
                target = folder / "source" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, target)
            if args.url:
                set_addresses(folder / "source", args.url, args.tag or "main")
            tools = make_environment(folder / "tools", "build", "twine")
            shutil.rmtree(DIST, ignore_errors=True)
            run(tools / "python", "-m", "build", "--outdir", DIST, folder / "source")
            sdist, wheel = DIST / f"neonlite-{version}.tar.gz", DIST / f"neonlite-{version}-py3-none-any.whl"
            run(tools / "python", "-m", "twine", "check", "--strict", sdist, wheel)
            with tarfile.open(sdist) as archive:
                found = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
            check_files("the sdist", found - {"PKG-INFO"}, files)
            with zipfile.ZipFile(wheel) as archive:
                found = {name for name in archive.namelist() if not name.startswith(f"neonlite-{version}.dist-info/")}
            check_files("the wheel", found, {file for file in files if file.startswith("neonlite/")})
            run_readme(make_environment(folder / "bare", wheel), folder / "empty")
            recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
            values = {"VERSION": version, "SHA256": hashlib.sha256(sdist.read_bytes()).hexdigest()}
            values |= {"REPOSITORY": args.url} if args.url else {}
            RECIPE.parent.mkdir(exist_ok=True)
            RECIPE.write_text(re.sub(r"<(\w+)>", lambda x: values.get(x[1], x[0]), recipe), encoding="utf-8")
        except (ReleaseError, subprocess.CalledProcessError) as error:
            print(f"release-check: {error}", file=sys.stderr)
            return 1
    print(f"release-check: passed. {sdist.name} and {wheel.name} are in dist/, the recipe is build/recipe.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
