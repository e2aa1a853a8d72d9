#!/bin/sh
# Tests skeleton.example.com beside this file, with real mounts: as root: sh test.sh
set -eu
cd "$(dirname "$0")"

#[go]
go vet .
go test -count=1 .
go build -o skeleton.example.com .
program=./skeleton.example.com
#[end]
#[python]
python3 -B -m unittest
program=./driver.py
#[end]
# The doctor calls the driver as clusters do, and kills it in the middle of calls.
volplane driver doctor --exec "$program --endpoint=\$(CSI_ENDPOINT) --node=\$(NODE_NAME) --dir=\$(SCRATCH)/volumes"
