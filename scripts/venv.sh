#!/bin/sh
# venv.sh PYTHON VENV: a virtual environment with pip in it.
set -eu
python=$1
venv=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Penstock needs Python 3.11 or newer, and '$python' is not. Hint: make PYTHON=python3.12 …" >&2
    exit 1
fi
if "$python" -c 'import ensurepip' 2>/dev/null; then
    exec "$python" -m venv --clear "$venv"
fi
# Debian splits ensurepip off into python3-venv; the pip outside can install one inside.
if "$python" -m venv --clear --without-pip "$venv" &&
    "$python" -m pip --python "$venv/bin/python" --quiet --disable-pip-version-check install pip; then
    exit 0
fi
rm -rf "$venv"
echo "'$python' can make no virtual environment. Hint: install its venv module (Debian: python3-venv)." >&2
exit 1
