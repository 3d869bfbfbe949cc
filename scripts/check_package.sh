#!/bin/sh
# Builds the sdist, and from it the wheel, into dist/; checks both, and installs the wheel with its
# dependencies into an environment of its own.
#
#   sh scripts/check_package.sh [PYTHON]          # default: python3
set -eu

python=${1:-python3}
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
install() { "$here/$1/bin/pip" install --quiet --disable-pip-version-check --no-input "$2" $3; }

"$python" -m venv "$here/tools"
install tools build 'twine check-wheel-contents check-jsonschema'
rm -rf dist
"$here/tools/bin/python" -m build --outdir dist . >"$here/build.log" 2>&1 || {
    cat "$here/build.log" >&2
    exit 1
}
"$here/tools/bin/twine" check --strict dist/*
"$here/tools/bin/check-wheel-contents" dist/*.whl

# Patterns of hatchling without a slash match in every directory.
wanted="CHANGELOG.md CITATION.cff LICENSE PKG-INFO README.md docs pyproject.toml src tests"
found=$(tar -tzf dist/*.tar.gz | cut -d/ -f2 | grep -v '^\.gitignore$' | LC_ALL=C sort -u | tr '\n' ' ')
[ "$found" = "$wanted " ] || {
    echo "The sdist has: $found- and not: $wanted" >&2
    exit 1
}

check="$here/tools/bin/check-jsonschema"
"$check" --builtin-schema vendor.citation-file-format CITATION.cff
"$check" --builtin-schema vendor.github-workflows .github/workflows/*.yml
for form in .github/ISSUE_TEMPLATE/*.yml; do
    case $form in
        */config.yml) "$check" --builtin-schema vendor.github-issue-config "$form" ;;
        *) "$check" --builtin-schema vendor.github-issue-forms "$form" ;;
    esac
done

"$python" -m venv "$here/clean"
install clean dist/*.whl ''
"$here/clean/bin/pip" check --disable-pip-version-check
installed=$("$here/clean/bin/phalanx" --version)
built=$(basename dist/*.whl | cut -d- -f2)
[ "$installed" = "phalanx $built" ] || {
    echo "The wheel of $built installs: $installed" >&2
    exit 1
}
echo "$installed: sdist and wheel build, pass their checks and install"
