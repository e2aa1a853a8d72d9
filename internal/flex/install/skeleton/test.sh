#!/bin/sh
# Tests skeleton beside this file, with real mounts: as root, sh test.sh [SHELL]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
shell=${1:-sh}
work=$(mktemp -d)
# As long as a kubelet's, and with the volume's name at the end.
dir=$work/pods/8d2f1f1e/volumes/example.com~skeleton/data
trap 'umount "$dir" 2>/dev/null || :; rm -rf --one-file-system "$work"' EXIT

# want STATUS ARGUMENT... calls the driver: one JSON object of that status on
# standard output, nothing on the other, and the exit code that goes with it.
want() {
	status=$1 code=0
	shift
	"$shell" "$here/skeleton" "$@" >"$work/out" 2>"$work/err" || code=$?
	[ ! -s "$work/err" ] || stop "$* wrote to standard error: $(cat "$work/err")"
	[ "$(jq -rs 'map(.status) | join(" and ")' "$work/out")" = "$status" ] || stop "$* answered $(cat "$work/out"), not $status"
	[ "$status" = Success ] && expected=0 || expected=1
	[ "$code" = "$expected" ] || stop "$* ended with $code"
}
stop() {
	printf 'FAIL: %s\n' "$1" >&2
	exit 1
}
at() { findmnt --noheadings --output "$1" --mountpoint "$dir"; }

want Success init
[ "$(jq -r .capabilities.attach "$work/out")" = false ] || stop 'it attaches'
want 'Not supported' attach '{}' node1
want 'Not supported' frobnicate
want 'Not supported'

# It is mounted once, and is gone without a trace.
want Success mount "$dir" '{"size":"8Mi","kubernetes.io/readwrite":"rw","kubernetes.io/fsGroup":"1234"}'
echo kept >"$dir/file"
want Success mount "$dir" '{"size":"8Mi","kubernetes.io/readwrite":"rw"}'
[ "$(cat "$dir/file")" = kept ] || stop 'a second mount hides the first'
want Success unmount "$dir"
[ ! -e "$dir" ] || stop 'the directory stays'
want Success unmount "$dir"
want Success mount "$dir" '{"kubernetes.io/readwrite":"ro"}'
! touch "$dir/file" 2>/dev/null || stop 'it is writable'
want Success unmount "$dir"

# What a Pod's author must not be able to do.
for bad in '{"size":"1M,uid=0"}' "{\"size\":\"\$(touch $work/pwned)\"}" '{"kubernetes.io/fsGroup":"0,uid=5"}' '{]' ''; do
	want Failure mount "$dir" "$bad"
	[ -z "$(at FSTYPE)" ] || stop "$bad is mounted"
done
[ ! -e "$work/pwned" ] || stop 'an option was run as a command'
echo PASS
