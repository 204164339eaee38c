"""The release: versions in several files, the addresses of the package, the recipe for conda; ``.ci/release.py``."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import neonlite

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))
ReleaseError = RELEASE["ReleaseError"]
FILES = {
    "neonlite/version.py": '__version__ = "0.2.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## [0.2.0] - 2027-01-31\n\n## [0.1.0] - 2026-12-01\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 0.2.0\n",
    "README.md": '# neonlite\n\n[docs](docs/a.md#b) [neon](https://x.org/a) [top](#top) <img src="docs/i.svg">\n',
    "pyproject.toml": '[project]\nname = "neonlite"\n',
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_this_repository_has_one_version():
    assert RELEASE["check_versions"](ROOT, None) == neonlite.__version__


def test_a_release_has_the_version_of_its_tag(root):
    assert RELEASE["check_versions"](root, "v0.2.0") == "0.2.0"


@pytest.mark.parametrize(
    ("name", "old", "new", "tag", "words"),
    [
        ("CHANGELOG.md", "[0.2.0]", "[0.3.0]", None, "expected one version, got neonlite/version.py: 0.2.0, CHANGELOG"),
        ("CHANGELOG.md", "## ", "", None, "CHANGELOG.md: none"),
        ("CITATION.cff", "version: 0.2.0", "version: 0.1.0", None, "CITATION.cff: 0.1.0"),
        ("neonlite/version.py", "0.2.0", "0.2.1", "v0.2.0", "neonlite/version.py: 0.2.1"),
        ("README.md", "", "", "v0.1.0", "the tag: 0.1.0"),
        ("README.md", "", "", "0.2.0", "expected the tag v0.2.0, got 0.2.0"),
        (
            "CHANGELOG.md",
            "2027-01-31",
            "not released yet",
            "v0.2.0",
            "expected the heading '## [0.2.0] - YEAR-MONTH-DAY",
        ),
        (
            "README.md",
            "# neonlite",
            "is not\nreleased yet",
            "v0.2.0",
            "README.md: expected no words 'not released yet'",
        ),
    ],
)
def test_a_release_that_is_not_ready_is_refused(root, name, old, new, tag, words):
    (root / name).write_text(FILES[name].replace(old, new))
    with pytest.raises(ReleaseError, match=re.escape(words)):
        RELEASE["check_versions"](root, tag)


def test_the_package_has_the_addresses_of_its_repository(root):
    RELEASE["set_addresses"](root, "https://example.org/neonlite", "v0.2.0")
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == "https://example.org/neonlite"
    assert urls["Changelog"] == "https://example.org/neonlite/blob/v0.2.0/CHANGELOG.md"
    text = (root / "README.md").read_text()
    assert "[docs](https://example.org/neonlite/blob/v0.2.0/docs/a.md#b)" in text
    assert "[neon](https://x.org/a) [top](#top)" in text
    assert 'src="https://example.org/neonlite/raw/v0.2.0/docs/i.svg"' in text


def test_pyproject_has_no_addresses_which_the_release_adds():
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_files_that_a_package_lacks_or_has_in_addition_are_an_error():
    with pytest.raises(ReleaseError, match=r"the wheel: missing b; too many: c, d"):
        RELEASE["check_files"]("the wheel", {"a", "c", "d"}, {"a", "b"})


def test_the_recipe_for_conda_has_the_dependencies_of_the_package():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    def listed(text: str) -> dict[str, str]:
        names = re.findall(r"^ *- ([\w-]+) >=([\d.]+)$", text, re.MULTILINE)
        return {name.replace("_", "-"): version for name, version in names}

    def required(requirements: list[str]) -> dict[str, str]:
        return dict(requirement.split(">=") for requirement in requirements)

    host, _, run = recipe.partition("  host:\n")[2].partition("\ntests:")[0].partition("  run:\n")
    assert listed(run) == required(project["project"]["dependencies"])
    assert listed(host) == required(project["build-system"]["requires"])
    assert project["project"]["description"] in recipe
    for script, target in project["project"]["scripts"].items():
        assert f"- {script} = {target}" in recipe
    assert all(f"- {name}" in recipe for name in project["project"]["license-files"])
