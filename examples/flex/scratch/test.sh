#!/bin/sh
# Tests scratch beside this file, with real mounts: as root, sh test.sh [SHELL]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
shell=${1:-sh}
work=$(mktemp -d)
export SCRATCH_SHARES="$work/shares"
# As long as a kubelet's, and with the volume's name at the end.
dir=$work/pods/8d2f1f1e/volumes/example.com~scratch/data
trap 'umount "$dir" 2>/dev/null || :; rm -rf --one-file-system "$work"' EXIT

# want STATUS ARGUMENT... calls the driver: one JSON object of that status on
# standard output, nothing on the other, and the exit code that goes with it.
want() {
	status=$1 code=0
	shift
	"$shell" "$here/scratch" "$@" >"$work/out" 2>"$work/err" || code=$?
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
want 'Not supported' getvolumename '{}'
want 'Not supported' frobnicate
want 'Not supported'

# In memory: of the size that is asked for, once, for the group.
want Success mount "$dir" '{"size":"8Mi","kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw","kubernetes.io/fsGroup":"1234"}'
[ "$(at FSTYPE)" = tmpfs ] || stop "mounted is $(at FSTYPE)"
case $(at OPTIONS) in *size=8192k*gid=1234*) ;; *) stop "options are $(at OPTIONS)" ;; esac
echo kept >"$dir/file"
want Success mount "$dir" '{"size":"8Mi"}'
[ "$(cat "$dir/file")" = kept ] || stop 'a second mount hides the first'
want Success unmount "$dir"
[ ! -e "$dir" ] || stop 'the directory stays'
want Success unmount "$dir"

# A directory of the node: what is in it stays.
want Success mount "$dir" '{"share":"logs","kubernetes.io/readwrite":"rw"}'
echo stays >"$dir/file"
want Success unmount "$dir"
want Success mount "$dir" '{"share":"logs","kubernetes.io/readwrite":"ro"}'
[ "$(cat "$dir/file")" = stays ] || stop 'the share lost a file'
! touch "$dir/file" 2>/dev/null || stop 'it is writable'
want Success unmount "$dir"

# What a Pod's author must not be able to do.
for bad in '{"share":"../../etc"}' '{"share":"a/b"}' '{"share":"-o"}' '{"size":"1m,uid=0"}' '{"size":"8Mi","share":"logs"}' \
	"{\"share\":\"\$(touch $work/pwned)\"}" '{"share":"'"'"';touch '"$work"'/pwned;'"'"'"}' '{"kubernetes.io/fsGroup":"0,uid=5"}' '{]' '[]' ''; do
	want Failure mount "$dir" "$bad"
	[ -z "$(at FSTYPE)" ] || stop "$bad is mounted"
done
[ ! -e "$work/pwned" ] || stop 'an option was run as a command'
echo PASS
