#!/bin/sh
# A virtual environment at $1 with the wheel $2 and what a router needs; no pip stays in it.
set -eu
venv=$1 wheel=$2 constraints=$3
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --no-cache-dir --constraint "$constraints" "$wheel[router,otel]"
"$venv/bin/tandem" --version
"$venv/bin/pip" uninstall --quiet --yes pip setuptools
