#!/bin/sh
# Tests skeleton beside this file, with real mounts: as root: sh test.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
#[sh]
shell=${1:-sh}
driver() { "$shell" "$here/skeleton" "$@"; }
#[end]
#[python]
driver() { "$here/skeleton" "$@"; }
#[end]
#[go]
(cd "$here" && go build -o skeleton .)
driver() { "$here/skeleton" "$@"; }
#[end]
work=$(mktemp -d)
#[attach]
export POOL="$work/pool"
#[end]
# As long as a kubelet's, and with the volume's name at the end.
dir=$work/pods/8d2f1f1e/volumes/example.com~skeleton/data
trap 'umount "$dir" 2>/dev/null || :; rm -rf --one-file-system "$work"' EXIT

# want STATUS ARGUMENT... calls the driver: one JSON object of that status on
# standard output, nothing on the other, and the exit code that goes with it.
want() {
	status=$1 code=0
	shift
	driver "$@" >"$work/out" 2>"$work/err" || code=$?
	[ ! -s "$work/err" ] || stop "$* wrote to standard error: $(cat "$work/err")"
	[ "$(jq -rs 'map(.status) | join(" and ")' "$work/out")" = "$status" ] || stop "$* answered $(cat "$work/out"), not $status"
	[ "$status" = Success ] && expected=0 || expected=1
	[ "$code" = "$expected" ] || stop "$* ended with $code"
}
stop() {
	printf 'FAIL: %s\n' "$1" >&2
	exit 1
}

want 'Not supported' frobnicate
want 'Not supported'

#[mount]
at() { findmnt --noheadings --output "$1" --mountpoint "$dir"; }

want Success init
[ "$(jq -r .capabilities.attach "$work/out")" = false ] || stop 'it attaches'
want 'Not supported' attach '{}' node1

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
#[end]
#[attach]
want Success init
[ "$(jq -r .capabilities.attach "$work/out")" = true ] || stop 'it does not attach'
want 'Not supported' mount "$dir" '{}'
json='{"kubernetes.io/pvOrVolumeName":"pv 1","kubernetes.io/readwrite":"rw"}'
want Failure attach "$json" node1
json='{"kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw"}'

# One node at a time has it, and may ask for it again.
want Success isattached "$json" node1
[ "$(jq -r .attached "$work/out")" = false ] || stop 'it is attached from the start'
want Success attach "$json" node1
device=$(jq -r .device "$work/out")
want Success attach "$json" node1
[ "$(jq -r .device "$work/out")" = "$device" ] || stop 'the device changes'
want Failure attach "$json" node2
want Success isattached "$json" node1
[ "$(jq -r .attached "$work/out")" = true ] || stop 'it is not attached'
want Success isattached "$json" node2
[ "$(jq -r .attached "$work/out")" = false ] || stop 'it is attached to another node'
for known in "$device" ''; do
	want Success waitforattach "$known" "$json"
	[ "$(jq -r .device "$work/out")" = "$device" ] || stop "the device is another one for '$known'"
done

# It is mounted once, and is gone without a trace.
want Success mountdevice "$dir" "$device" "$json"
echo kept >"$dir/file"
want Success mountdevice "$dir" "$device" "$json"
[ "$(findmnt --noheadings --mountpoint "$dir" | wc -l)" = 1 ] || stop 'it is mounted twice'
want Success unmountdevice "$dir"
[ ! -e "$dir" ] || stop 'the directory stays'
want Success unmountdevice "$dir"
want Success mountdevice "$dir" '' "$json"
[ "$(cat "$dir/file")" = kept ] || stop 'a file is lost'
want Success unmountdevice "$dir"

# Only the node that has it can give it away.
want Success detach pv1 node2
want Failure attach "$json" node2
want Success detach pv1 node1
want Success detach pv1 node1
want Success attach "$json" node2
want Success detach pv1 node2

# What a user must not be able to do.
for bad in ../pv1 .. /etc '' '-rf' "\$(touch $work/pwned)" "a';touch $work/pwned;'"; do
	want Failure attach "$(jq -cn --arg name "$bad" '{"kubernetes.io/pvOrVolumeName": $name}')" node1
	want Failure detach "$bad" node1
done
for bad in '{]' ''; do
	want Failure attach "$bad" node1
done
[ ! -e "$work/pwned" ] || stop 'a name was run as a command'
#[end]
echo PASS
